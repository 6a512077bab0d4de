// What requests got from an engine, and what its drafts did for it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include <gtest/gtest.h>

#include "percheron/engine.h"

#include "engine/reply_collector.h"

namespace percheron::tools {

inline std::uint32_t number_of_environment(const char* name, std::uint32_t otherwise) {
    const char* const wanted = std::getenv(name);
    return wanted == nullptr ? otherwise
                             : static_cast<std::uint32_t>(std::strtoul(wanted, nullptr, 10));
}
// Tokens of a reply: enough for every edge here; scripts/test-slow wants more, on more threads.
inline std::uint32_t drafted_tokens() {
    return number_of_environment("DRAFTED_TOKENS", 130);
}
inline std::uint32_t drafted_threads() {
    return number_of_environment("DRAFTED_THREADS", 1);
}

struct DraftedReplies {
    std::vector<std::vector<TokenId>> tokens;  // of every choice of every request
    std::uint32_t rounds = 0, drafted = 0, accepted = 0;
    std::uint32_t first_accepted = 0;  // of the first draft of a round
    std::uint32_t deepest = 0;         // positions of a round that were ever accepted
    std::uint32_t cached = 0;
    std::size_t generated = 0;
};

// `together`: all are sent before the first is waited for.
inline DraftedReplies run_drafted(Engine& engine, const std::vector<GenerationRequest>& requests,
                                  bool together = true) {
    engine::testing::ReplyCollector collector;
    std::vector<RequestId> ids;
    std::size_t choices = 0;
    for (const GenerationRequest& request : requests) {
        ids.push_back(engine.submit(request, collector).value());
        choices += request.choices;
        if (!together) collector.wait_for(choices);
    }
    collector.wait_for(choices);
    EXPECT_EQ(collector.complaint(), "");
    DraftedReplies replies;
    for (std::size_t i = 0; i < requests.size(); ++i) {
        for (std::uint32_t choice = 0; choice < requests[i].choices; ++choice) {
            const engine::testing::CollectedReply reply = collector.reply(ids[i], choice);
            const ChoiceStatistics& statistics = reply.finished->statistics;
            EXPECT_NE(reply.finished->reason, FinishReason::failed);
            replies.tokens.push_back(reply.tokens);
            replies.generated += reply.tokens.size();
            replies.rounds += statistics.draft_rounds;
            replies.drafted += statistics.drafted_tokens;
            replies.accepted += statistics.accepted_tokens;
            replies.cached += statistics.cached_tokens;
            const auto& positions = statistics.accepted_per_position;
            if (!positions.empty()) replies.first_accepted += positions[0];
            for (std::uint32_t p = 0; p < positions.size(); ++p) {
                if (positions[p] > 0) replies.deepest = std::max(replies.deepest, p + 1);
            }
        }
    }
    return replies;
}

}  // namespace percheron::tools
