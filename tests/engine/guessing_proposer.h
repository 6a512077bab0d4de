// A proposer that knows the fake network: it names the very tokens that belong there, or, as often
// as it is told to, others.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <vector>

#include "draft/draw.h"
#include "draft/proposer.h"
#include "engine/fake_network.h"
#include "sampling/sampler.h"

namespace percheron::engine::testing {

class GuessingProposer final : public draft::Proposer {
  public:
    GuessingProposer(double wrong, unsigned seed) : wrong_(wrong), random_(seed) {}

    std::string_view name() const override { return "guess"; }
    void begin(RequestSlot slot) override { features_[to_int(slot)].clear(); }
    Status propose(ops::NumericClass, std::span<draft::DraftSequence> sequences) override {
        for (draft::DraftSequence& sequence : sequences) {
            auto& features = features_[to_int(sequence.slot)];
            for (const auto& [position, values] : sequence.features) {
                features[position] = values;
            }
            if (sequence.most > 0 &&
                sequence.pages.size() * 64 < sequence.tokens.size() + sequence.most) {
                return Error(ErrorCode::internal, "pages do not cover the drafts");
            }
            if (sequence.most > 0) draft(sequence, features);
        }
        return {};
    }

  private:
    using Features = std::map<Position, const float*>;

    void draft(draft::DraftSequence& sequence, const Features& features) {
        History history;
        for (Position position = 0; position < sequence.tokens.size(); ++position) {
            const auto found = features.find(position);
            history.add(sequence.tokens[position],
                        position < sequence.prompt_tokens ? ops::NumericClass::prefill
                                                          : ops::NumericClass::decode,
                        found == features.end() ? nullptr : found->second);
        }
        // Sometimes fewer than wanted.
        const std::uint32_t count =
            random_() % 8 == 0 ? random_() % (sequence.most + 1) : sequence.most;
        for (std::uint32_t i = 0; i < count; ++i) {
            std::array<float, fake_vocabulary> logits{};
            for (std::uint32_t token = 0; token < fake_vocabulary; ++token) {
                logits[token] = fake_logit(history.hash(), token);
            }
            const Result<TokenId> drawn =
                draft::draw_draft(sampler_, sequence.drawing, logits,
                                  static_cast<Position>(sequence.tokens.size()), *sequence.drafts);
            TokenId token = drawn.value();
            if (std::bernoulli_distribution(wrong_)(random_)) {
                token = TokenId(static_cast<int>(random_() % fake_vocabulary));
            }
            sequence.drafts->push_back(token);
            history.add(token, ops::NumericClass::decode);
        }
    }

    double wrong_;
    std::mt19937 random_;
    sampling::Sampler sampler_{fake_vocabulary};
    std::map<std::uint32_t, Features> features_;
};

}  // namespace percheron::engine::testing
