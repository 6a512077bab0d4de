#include "engine/token_commit.h"

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "core/logging.h"

namespace percheron::engine {

std::optional<Ending> TokenCommit::take(Sequence& sequence, const sampling::LogitRow& logits,
                                        std::uint32_t number) {
    Result<TokenId> chosen = choose(sequence, logits, number);
    if (!chosen.ok()) {
        return Ending{FinishReason::failed, std::move(chosen).error()};
    }
    const TokenId token = sequence.thinking.forced().value_or(*chosen);
    if (sequence.generated() == 0) {
        sequence.first_token = Clock::now();
    }
    if (sequence.masks && !sequence.thinking.inside()) {
        sequence.masks->take(token);
    }
    sequence.tokens.push_back(token);
    sequence.thinking.observe(token);
    if (sequence.counts) {
        sequence.counts->add(token);
    }
    if (Status written = write_events(sequence, token, logits); !written.ok()) {
        return Ending{FinishReason::failed, std::move(written).error()};
    }

    const std::vector<TokenId>& stops = sequence.stop_tokens;
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
        return Ending{FinishReason::stop_token, {}};
    }
    if (sequence.generated() >= sequence.token_limit) {
        return Ending{sequence.limit_is_context ? FinishReason::context : FinishReason::max_tokens,
                      {}};
    }
    if (in_a_loop(sequence, token)) {
        return Ending{FinishReason::loop, {}};
    }
    return std::nullopt;
}

void TokenCommit::note_round(const Sequence& sequence, std::uint32_t drafted,
                             std::uint32_t accepted) {
    std::vector<EngineEvents::Tokens>& runs = events_.of(sequence.sink).runs;
    // Where not one token could be taken there is no run of this sequence.
    if (!runs.empty() && runs.back().request == sequence.request &&
        runs.back().choice == sequence.choice) {
        runs.back().drafted = drafted;
        runs.back().accepted = accepted;
    }
}

// Whether the reply ends for it: a loop inside the thinking closes that first.
bool TokenCommit::in_a_loop(Sequence& sequence, TokenId token) {
    if (!sequence.loop_guard || !sequence.loop_guard->observe(token) ||
        sequence.generated() < sequence.min_tokens) {
        return false;
    }
    const std::string who = "request " + std::to_string(to_int(sequence.request)) +
                            " is in a loop after " + std::to_string(sequence.generated()) +
                            " tokens";
    if (sequence.thinking.close()) {
        log_warning(who + " inside its thinking, which is closed");
        sequence.loop_guard->forget();
        return false;
    }
    log_warning(who + " and ends");
    return true;
}

Result<TokenId> TokenCommit::choose(const Sequence& sequence, const sampling::LogitRow& logits,
                                    std::uint32_t number) {
    sampling::SamplingRow row;
    row.logits = logits;
    row.parameters = &sequence.sampling;
    row.counts = sequence.counts ? &*sequence.counts : nullptr;
    row.banned = banned_tokens_;
    PERCHERON_TRY(mask_.apply(sequence, number, row));
    row.noise = sequence.noise();
    row.position = static_cast<Position>(sequence.tokens.size());
    return sampler_.choose(row);
}

Status TokenCommit::write_events(const Sequence& sequence, TokenId token,
                                 const sampling::LogitRow& logits) {
    EngineEvents& events = events_.of(sequence.sink);
    // Tokens of one sequence come one behind the other.
    const bool same_run = !events.runs.empty() && events.runs.back().request == sequence.request &&
                          events.runs.back().choice == sequence.choice;
    if (!same_run) {
        EngineEvents::Tokens start;
        start.request = sequence.request;
        start.choice = sequence.choice;
        start.first = static_cast<std::uint32_t>(events.tokens.size());
        start.first_logprob = static_cast<std::uint32_t>(events.logprobs.size());
        events.runs.push_back(start);
    }
    EngineEvents::Tokens& run = events.runs.back();
    ++run.count;
    events.tokens.push_back(token);
    if (sequence.sampling.top_logprobs >= 0) {
        run.has_logprobs = true;
        PERCHERON_TRY(sampler_.log_probabilities(
            logits, token, static_cast<std::size_t>(sequence.sampling.top_logprobs), banned_tokens_,
            events.logprobs.emplace_back()));
    }
    return {};
}

}  // namespace percheron::engine
