#include "server/request_log.h"

#include <openssl/sha.h>

namespace percheron::server {

std::string digest_of(const std::vector<TokenId>& ids) {
    std::string bytes;
    bytes.reserve(ids.size() * 4);
    for (const TokenId id : ids) {
        const auto number = static_cast<std::uint32_t>(to_int(id));
        for (int shift = 0; shift < 32; shift += 8) {
            bytes += static_cast<char>((number >> shift) & 255u);
        }
    }
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), digest);
    std::string text;
    for (int i = 0; i < 8; ++i) {
        text += "0123456789abcdef"[digest[i] >> 4];
        text += "0123456789abcdef"[digest[i] & 15];
    }
    return text;
}

void log_reply(ServerState& state, std::string_view id, std::string_view route,
               std::string_view key_label, const Reply& reply) {
    using Milliseconds = std::chrono::duration<double, std::milli>;
    const auto started = reply.setup().received;
    const bool has_tokens = reply.first_token() != std::chrono::steady_clock::time_point{};
    const double first = has_tokens ? Milliseconds(reply.first_token() - started).count() : 0.0;
    const auto& choices = reply.choices();
    for (std::size_t index = 0; index < choices.size(); ++index) {
        const EndedChoice& choice = choices[index];
        const ChoiceStatistics& statistics = choice.statistics;
        const double seconds = statistics.decode_seconds;
        const double rate = seconds > 0 ? (choice.summary.tokens - 1) / seconds : 0.0;
        std::vector<LogField> fields{{"id", std::string(id)},
                                     {"route", std::string(route)},
                                     {"prompt", std::uint64_t{reply.usage().prompt_tokens}},
                                     {"cached", std::uint64_t{reply.usage().cached_tokens}},
                                     {"thinking", std::uint64_t{choice.summary.reasoning_tokens}},
                                     {"tokens", std::uint64_t{choice.summary.tokens}},
                                     {"sha", digest_of(choice.ids)},
                                     {"finish", choice.finish},
                                     {"stop_reason", choice.stop_reason},
                                     {"seed", choice.seed},
                                     {"tok_s", rate},
                                     {"ttft_ms", first},
                                     {"prefill_ms", statistics.prefill_seconds * 1000},
                                     {"rounds", std::uint64_t{statistics.draft_rounds}},
                                     {"drafted", std::uint64_t{statistics.drafted_tokens}},
                                     {"accepted", std::uint64_t{statistics.accepted_tokens}}};
        if (choices.size() > 1) fields.push_back({"choice", std::uint64_t{index}});
        if (!key_label.empty()) fields.push_back({"key", std::string(key_label)});
        state.log_line(LogLevel::info, "request", fields);
    }
}

}  // namespace percheron::server
