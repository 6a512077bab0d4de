#include "engine/step_probe.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <limits>
#include <vector>

#include "engine/sequence.h"
#include "ops/batch.h"

namespace percheron::engine {
namespace {

constexpr int rounds_of_probes = 3;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

class StepProbe {
  public:
    StepProbe(model::Network& network, cache::CacheStore& caches, DraftRounds& rounds,
              const LocalEngineOptions& options)
        : network_(network), caches_(caches), rounds_(rounds), options_(options) {
        const auto vocabulary = static_cast<std::uint32_t>(network.config().vocabulary);
        // Tokens that differ, as those of texts do: their experts are different ones.
        for (std::uint32_t i = 0; i <= probed_rows.back(); ++i) {
            tokens_.push_back(TokenId(static_cast<int>((i * 2654435761u >> 7) % vocabulary)));
            pages_.push_back(PageId(i));
            rows_.push_back(i);
        }
        rows_.pop_back();
    }

    std::uint32_t sequences_of(std::uint32_t rows) const {
        const std::uint32_t round = options_.draft.depth + 1;
        return (rows + round - 1) / round;
    }

    // Whether the engine has slots, pages and rows for it.
    bool fits(std::uint32_t rows, std::uint32_t sequences) const {
        return sequences <= std::min(options_.scheduler.max_running, options_.scheduler.pages) &&
               rows <=
                   std::min<std::size_t>(options_.scheduler.decode_rows, network_.max_logit_rows());
    }

    // Seconds of a verification step: each sequence's first row is committed, the others are kept.
    Result<double> step(std::uint32_t rows, std::uint32_t sequences) {
        const std::uint32_t round = (rows + sequences - 1) / sequences;
        sequences_.clear();
        for (std::uint32_t first = 0; first < rows; first += round) {
            ops::SequenceRows sequence;
            sequence.first_row = first;
            sequence.row_count = std::min(round, rows - first);
            sequence.commit_rows = 1;
            sequence.slot = RequestSlot(static_cast<std::uint32_t>(sequences_.size()));
            sequence.pages = std::span(pages_).subspan(sequences_.size(), 1);
            caches_.clear_slot(sequence.slot);
            sequences_.push_back(sequence);
        }
        ops::RowBatch batch;
        batch.numeric_class = ops::NumericClass::decode;
        batch.sequences = sequences_;
        batch.tokens = std::span(tokens_).first(rows);
        batch.logit_rows = std::span(rows_).first(rows);
        digests_.resize(network_.digested() != nullptr ? rows : 0);
        batch.digests = digests_;
        const auto start = Clock::now();
        PERCHERON_ASSIGN([[maybe_unused]] const auto logits,
                         network_.forward(batch, caches_.views()));
        return seconds_since(start);
    }

    // After a step of one row of each sequence.
    Status passes(std::uint32_t sequences, bool observe) {
        SamplingParameters greedy;
        greedy.temperature = 0;
        for (std::uint32_t who = 0; who < rounds_.proposers().size(); ++who) {
            draft::Proposer& proposer = *rounds_.proposers()[who];
            if (!proposer.takes_time()) continue;
            std::vector<std::vector<TokenId>> drafts(sequences);
            std::vector<draft::DraftSequence> shown;
            for (std::uint32_t i = 0; i < sequences; ++i) {
                draft::DraftSequence seen;
                seen.slot = RequestSlot(i);
                seen.tokens = std::span(tokens_).subspan(i, 2);
                seen.prompt_tokens = 1;
                seen.pages = std::span(pages_).subspan(i, 1);
                seen.drawing.parameters = &greedy;
                seen.first_row = i;
                seen.rows = 1;
                seen.most = std::min(2u, options_.draft.depth);
                seen.drafts = &drafts[i];
                proposer.begin(seen.slot);
                shown.push_back(seen);
            }
            const auto start = Clock::now();
            PERCHERON_TRY(proposer.propose(ops::NumericClass::decode, shown));
            const double seconds = seconds_since(start);
            if (observe && !drafts[0].empty()) {
                const auto named = static_cast<std::uint32_t>(drafts[0].size());
                rounds_.depths()->probed_passes(who, sequences, proposer.one_pass() ? 1 : named,
                                                seconds);
            }
            for (const draft::DraftSequence& seen : shown)
                proposer.begin(seen.slot);
        }
        return {};
    }

  private:
    model::Network& network_;
    cache::CacheStore& caches_;
    DraftRounds& rounds_;
    const LocalEngineOptions& options_;
    std::vector<TokenId> tokens_;
    std::vector<PageId> pages_;
    std::vector<std::uint32_t> rows_;
    std::vector<ops::SequenceRows> sequences_;
    std::vector<ops::DigestRequest> digests_;
};

}  // namespace

Status probe_steps(model::Network& network, cache::CacheStore& caches, DraftRounds& rounds,
                   const LocalEngineOptions& options, const std::function<bool()>& somebody_waits) {
    StepProbe probe(network, caches, rounds, options);
    const auto start = Clock::now();
    const auto over = [&] {
        const double seconds = seconds_since(start);
        return seconds > long_probe || (seconds > short_probe && somebody_waits());
    };
    // What the first steps meet they bring into the caches of the machine: they do not count.
    for (const std::uint32_t rows : {8u, 1u}) {
        if (!probe.fits(rows, probe.sequences_of(rows))) continue;
        PERCHERON_ASSIGN([[maybe_unused]] const double cold,
                         probe.step(rows, probe.sequences_of(rows)));
    }
    PERCHERON_TRY(probe.passes(1, false));
    // The least of each: what else the machine does only adds.
    double one = std::numeric_limits<double>::max(), together = one, apart = one;
    for (int round = 0; round < rounds_of_probes; ++round) {
        for (const std::uint32_t rows : probed_rows) {
            const std::uint32_t sequences = probe.sequences_of(rows);
            if (!probe.fits(rows, sequences)) break;
            if (over()) return {};
            PERCHERON_ASSIGN(const double seconds, probe.step(rows, sequences));
            rounds.depths()->probed_step(rows, sequences, seconds);
            if (rows == 1) {
                one = std::min(one, seconds);
                PERCHERON_TRY(probe.passes(1, true));
            }
            if (rows != probed_sequences || sequences == rows || !probe.fits(rows, rows)) continue;
            PERCHERON_ASSIGN(const double of_many, probe.step(rows, rows));
            PERCHERON_TRY(probe.passes(rows, true));
            together = std::min(together, seconds);
            apart = std::min(apart, of_many);
            rounds.depths()->probed_sequence(std::max(0.0, apart - together) / (rows - sequences) /
                                             one);
        }
    }
    return {};
}

}  // namespace percheron::engine
