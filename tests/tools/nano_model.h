// The embedded model in tests: on the CPU, or where PERCHERON_TEST_DEVICE says.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "support/quiet_log.h"
#include "text/tokenizer.h"
#include "tools/load_engine.h"
#include "tools/model_path.h"

namespace percheron::tools {

class NanoModel : public ::testing::Test {
  protected:
    static const std::filesystem::path& folder() {
        static const std::filesystem::path path = resolve_model("").value();
        return path;
    }
    static const Tokenizer& tokenizer() {
        static const Tokenizer instance = Tokenizer::load(folder() / "tokenizer.json").value();
        return instance;
    }
    // Ids of text that is always there and stays as it is: prose, then code and tool calls.
    static const std::vector<TokenId>& text() {
        static const std::vector<TokenId> ids = [] {
            std::string all;
            for (const char* file : {"/LICENSE", "/bench/draft_texts.jsonl"}) {
                std::ifstream in(std::string(PERCHERON_SOURCE_DIR) + file, std::ios::binary);
                all.append(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
            }
            return tokenizer().encode(all);
        }();
        return ids;
    }
    static LoadOptions options(Bytes kv_memory, std::uint32_t max_running) {
        LoadOptions result;
        result.folder = folder();
        result.kv_memory = kv_memory;
        result.max_running = max_running;
        result.threads = 1;
        const char* const device = std::getenv("PERCHERON_TEST_DEVICE");
        result.device = device != nullptr ? device : "cpu";
        return result;
    }
    static std::unique_ptr<Engine> load(const LoadOptions& options) {
        const tests::QuietLog quiet;
        auto engine = load_engine(options, tokenizer());
        EXPECT_TRUE(engine.ok()) << (engine.ok() ? "" : engine.error().message());
        return std::move(engine).value();
    }
};

}  // namespace percheron::tools
