// Entry points that take any bytes and abort when a promise is broken.
//
// Built twice: by the option PERCHERON_FUZZ as libFuzzer programs (tokenizer_fuzz, template_fuzz,
// reply_fuzz, http_fuzz, chat_body_fuzz, api_body_fuzz, http_reply_fuzz, metrics_text_fuzz), and
// into fuzz_test, which feeds each entry some thousand seeded inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>
#include <string_view>

namespace percheron::fuzz {

using Input = std::span<const std::uint8_t>;

void tokenizer(Input input);
void chat_template(Input input);
void reply(Input input);
void http_request(Input input);
void chat_body(Input input);
void api_body(Input input);
void http_reply(Input input);
void metrics_text(Input input);

inline void promise(bool kept, const char* what) {
    if (kept) return;
    std::fprintf(stderr, "broken promise: %s\n", what);
    std::abort();
}

// Takes an input apart from its front.
class Reader {
  public:
    explicit Reader(Input input) : rest_(input) {}

    std::uint8_t byte() {
        if (rest_.empty()) return 0;
        const std::uint8_t value = rest_.front();
        rest_ = rest_.subspan(1);
        return value;
    }
    bool empty() const { return rest_.empty(); }
    std::string_view rest() const {
        return {reinterpret_cast<const char*>(rest_.data()), rest_.size()};
    }

  private:
    Input rest_;
};

}  // namespace percheron::fuzz

#ifdef PERCHERON_LIBFUZZER
#define PERCHERON_FUZZ_ENTRY(function)                                                  \
    extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) { \
        percheron::fuzz::function({data, size});                                        \
        return 0;                                                                       \
    }
#else
#define PERCHERON_FUZZ_ENTRY(function)
#endif
