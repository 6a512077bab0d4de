// What proposers with a memory of their own are told (draft/proposer.h): rows without gaps, the
// checkpoint that a sequence goes on from, what became a checkpoint, and when a sequence ends,
// whatever preempts, cancels, hits and comes again.
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/fake_network.h"
#include "engine/reply_collector.h"
#include "support/quiet_log.h"

namespace percheron::engine::testing {
namespace {

struct Told {
    std::string complaint;
    std::size_t resumed = 0, resumed_without = 0, saved = 0, ended = 0, begun = 0, rows = 0;
    std::size_t forgotten = 0, saved_over = 0;
};

// Keeps the tokens that it was shown, by slot and by checkpoint, and drafts as the sequence itself
// went on the time before.
class ContextKeeper final : public draft::Proposer {
  public:
    explicit ContextKeeper(Told& told) : told_(told) {}

    std::string_view name() const override { return "keeper"; }
    void begin(RequestSlot slot) override {
        ++told_.begun;
        shown_[slot].clear();
    }
    void resume(RequestSlot slot, Position position, CheckpointId checkpoint) override {
        if (!shown_[slot].empty()) complain("resume without begin");
        const auto saved = saved_.find(checkpoint);
        if (saved == saved_.end()) {
            ++told_.resumed_without;
            lost_[slot] = position;
            return;
        }
        if (saved->second.size() != position) complain("another position than was saved");
        ++told_.resumed;
        shown_[slot] = saved->second;
    }
    void save(RequestSlot slot, Position position, CheckpointId checkpoint) override {
        ++told_.saved;
        told_.saved_over += saved_.erase(checkpoint);
        const std::vector<TokenId>& shown = shown_[slot];
        if (lost_.contains(slot) || shown.size() < position) return;
        if (shown.size() != position) complain("a checkpoint that lies back");
        saved_[checkpoint] = shown;
    }
    void forget(CheckpointId checkpoint) override { told_.forgotten += saved_.erase(checkpoint); }
    void end(RequestSlot slot) override {
        ++told_.ended;
        shown_[slot].clear();
        lost_.erase(slot);
    }
    Status propose(ops::NumericClass, std::span<draft::DraftSequence> sequences) override {
        for (draft::DraftSequence& sequence : sequences) {
            std::vector<TokenId>& shown = shown_[sequence.slot];
            if (shown.empty() && lost_.contains(sequence.slot)) {
                if (sequence.first != lost_[sequence.slot]) complain("not from the checkpoint on");
                shown.assign(sequence.tokens.begin(), sequence.tokens.begin() + sequence.first);
            }
            if (shown.size() != sequence.first) complain("a gap or rows twice");
            for (std::uint32_t i = 0; i < sequence.rows; ++i) {
                shown.push_back(sequence.tokens[sequence.first + i]);
            }
            told_.rows += sequence.rows;
            if (!std::equal(shown.begin(), shown.end(), sequence.tokens.begin())) {
                complain("another text than was shown");
            }
            if (sequence.most > 0) {
                sequence.drafts->assign(sequence.most, TokenId(static_cast<int>(told_.rows % 40)));
            }
        }
        return {};
    }

  private:
    void complain(const std::string& what) {
        if (told_.complaint.empty()) told_.complaint = what;
    }

    Told& told_;
    std::map<RequestSlot, std::vector<TokenId>> shown_;
    std::map<RequestSlot, Position> lost_;  // slots that go on from a checkpoint that is not known
    std::map<CheckpointId, std::vector<TokenId>> saved_;
};

TEST(DraftContext, ProposersHearOfEverythingThatBecomesOfARow) {
    const tests::QuietLog quiet;
    std::uint64_t preempted = 0;
    for (unsigned seed = 0; seed < 6; ++seed) {
        Told told;
        std::size_t resumed = 0;
        {
            std::mt19937 random(seed);
            LocalEngineOptions options = fake_options(seed < 3 ? 24 : 13, 4);
            options.context_tokens = 12 * 64;
            options.scheduler.checkpoints = seed % 2 == 0 ? 6 : 20;
            options.draft.depth = 3;
            options.scheduler.draft_rows = 12;
            options.on_step = [&](const StepRecord& record) { preempted += record.preempted; };
            const auto engine =
                make_fake_engine(options, {}, false, std::make_unique<ContextKeeper>(told));
            // Conversations that branch off a few beginnings.
            std::vector<std::vector<TokenId>> texts(3);
            for (std::vector<TokenId>& text : texts) {
                for (int i = 0; i < 150; ++i) {
                    text.push_back(TokenId(static_cast<int>(random() % 40)));
                }
            }
            for (int wave = 0; wave < 12; ++wave) {
                ReplyCollector collector;
                std::size_t choices = 0;
                std::vector<std::pair<RequestId, GenerationRequest>> asked;
                for (int i = 0; i < 5; ++i) {
                    GenerationRequest request;
                    request.prompt = texts[random() % texts.size()];
                    const std::uint32_t more = random() % 200;
                    for (std::uint32_t k = 0; k < more; ++k) {
                        request.prompt.push_back(TokenId(static_cast<int>(random() % 40)));
                    }
                    request.sampling.seed = random();
                    request.ignore_eos = true;
                    request.max_tokens = 1 + random() % 150;
                    request.choices = 1 + random() % 2;
                    request.use_cache = random() % 6 != 0;
                    const RequestId id = engine->submit(request, collector).value();
                    choices += request.choices;
                    asked.push_back({id, request});
                }
                if (random() % 3 == 0) engine->cancel(asked[0].first);
                collector.wait_for(choices);
                for (const auto& [id, request] : asked) {
                    for (std::uint32_t choice = 0; choice < request.choices; ++choice) {
                        const CollectedReply reply = collector.reply(id, choice);
                        if (reply.finished->reason == FinishReason::cancelled) continue;
                        EXPECT_EQ(reply.tokens,
                                  expected_reply(request, *reply.seed, choice, 12 * 64).tokens);
                        resumed += reply.finished->statistics.cached_tokens > 0 ? 1 : 0;
                    }
                }
            }
        }
        EXPECT_EQ(told.complaint, "") << seed;
        EXPECT_GT(resumed, 10u);
        EXPECT_GE(told.resumed + told.resumed_without, resumed);
        // Only the checkpoint of a reply's last step, whose sequence is over, is not known.
        EXPECT_GT(told.resumed, 5 * told.resumed_without) << seed;
        EXPECT_GT(told.saved, 20u);
        EXPECT_GT(told.forgotten, 10u);
        // Nothing stays of a checkpoint that went; within a step an id may go on to another.
        EXPECT_LE(50 * told.saved_over, told.saved);
        EXPECT_GT(told.ended, 60u);
        EXPECT_GE(told.begun, told.ended);
    }
    EXPECT_GT(preempted, 5u);
}

}  // namespace
}  // namespace percheron::engine::testing
