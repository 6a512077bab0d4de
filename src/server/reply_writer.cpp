#include "server/reply_writer.h"

#include <algorithm>

#include "server/sse.h"

namespace percheron::server {
namespace {

void append_member(std::string& json, std::string_view name, std::uint64_t value) {
    json += '"';
    json += name;
    json += "\":";
    append_number(json, value);
}

}  // namespace

void add_draft(ChoiceStatistics& sum, const ChoiceStatistics& more) {
    if (!more.proposer.empty()) sum.proposer = more.proposer;
    sum.draft_rounds += more.draft_rounds;
    sum.drafted_tokens += more.drafted_tokens;
    sum.accepted_tokens += more.accepted_tokens;
    auto& positions = sum.accepted_per_position;
    positions.resize(std::max(positions.size(), more.accepted_per_position.size()));
    for (std::size_t i = 0; i < more.accepted_per_position.size(); ++i)
        positions[i] += more.accepted_per_position[i];
}

void append_usage(std::string& json, const ReplyUsage& usage) {
    json += '{';
    append_member(json, "prompt_tokens", usage.prompt_tokens);
    json += ',';
    append_member(json, "completion_tokens", usage.completion_tokens);
    json += ',';
    append_member(json, "total_tokens",
                  std::uint64_t{usage.prompt_tokens} + usage.completion_tokens);
    json += R"(,"prompt_tokens_details":{)";
    append_member(json, "cached_tokens", usage.cached_tokens);
    if (usage.image_tokens > 0) {
        json += ',';
        append_member(json, "image_tokens", usage.image_tokens);
    }
    json += R"(},"completion_tokens_details":{)";
    append_member(json, "reasoning_tokens", usage.reasoning_tokens);
    json += '}';
    const ChoiceStatistics& draft = usage.draft;
    if (!draft.proposer.empty()) {
        json += R"(,"draft":{"proposer":)";
        append_quoted(json, draft.proposer);
        json += ',';
        append_member(json, "rounds", draft.draft_rounds);
        json += ',';
        append_member(json, "drafted", draft.drafted_tokens);
        json += ',';
        append_member(json, "accepted", draft.accepted_tokens);
        json += R"(,"accepted_per_position":[)";
        for (std::size_t i = 0; i < draft.accepted_per_position.size(); ++i) {
            if (i > 0) json += ',';
            append_number(json, std::uint64_t{draft.accepted_per_position[i]});
        }
        json += "]}";
    }
    json += '}';
}

void append_progress(std::string& json, const PromptProgress& progress) {
    json += R"("prompt_progress":{"total":)";
    append_number(json, std::uint64_t{progress.total});
    json += R"(,"cache":)";
    append_number(json, std::uint64_t{progress.cached});
    json += R"(,"processed":)";
    append_number(json, std::uint64_t{progress.processed});
    json += R"(,"time_ms":)";
    append_number(json, progress.milliseconds);
    json += '}';
}

void append_token_ids(std::string& json, std::span<const TokenDetail> tokens) {
    json += '[';
    for (std::size_t i = 0; i < tokens.size(); ++i) {
        if (i > 0) json += ',';
        append_number(json, static_cast<std::uint64_t>(to_int(tokens[i].id)));
    }
    json += ']';
}

}  // namespace percheron::server
