// Encodes a text file on one thread and prints how fast, or the ids.
//
//   tokenizer_bench TOKENIZER.json TEXT           one line of JSON: bytes, tokens, best seconds of
//   five tokenizer_bench TOKENIZER.json TEXT --ids     the ids, one text a line; texts end with a
//   zero byte
//
// scripts/compare-tokenizer runs it against the reference.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>

#include "text/tokenizer.h"

namespace {

std::string content_of(const char* path) {
    std::ifstream stream(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

void print_ids(const percheron::Tokenizer& tokenizer, std::string_view texts) {
    while (!texts.empty()) {
        const std::size_t end = std::min(texts.find('\0'), texts.size());
        for (const percheron::TokenId id : tokenizer.encode(texts.substr(0, end))) {
            std::printf("%d ", percheron::to_int(id));
        }
        std::printf("\n");
        texts.remove_prefix(std::min(end + 1, texts.size()));
    }
}

void print_speed(const percheron::Tokenizer& tokenizer, const std::string& text) {
    double best = 1e9;
    std::size_t tokens = 0;
    for (int round = 0; round < 5; ++round) {
        const auto start = std::chrono::steady_clock::now();
        tokens = tokenizer.encode(text).size();
        best = std::min(
            best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
    }
    std::printf("{\"bytes\": %zu, \"tokens\": %zu, \"seconds\": %.6f}\n", text.size(), tokens,
                best);
}

}  // namespace

int main(int count, char** arguments) {
    if (count < 3) {
        std::fprintf(stderr, "usage: tokenizer_bench TOKENIZER.json TEXT [--ids]\n");
        return 2;
    }
    const auto tokenizer = percheron::Tokenizer::load(arguments[1]);
    if (!tokenizer.ok()) {
        std::fprintf(stderr, "%s\n", tokenizer.error().message().c_str());
        return 1;
    }
    const std::string text = content_of(arguments[2]);
    if (count > 3 && std::string(arguments[3]) == "--ids") {
        print_ids(*tokenizer, text);
    } else {
        print_speed(*tokenizer, text);
    }
    return 0;
}
