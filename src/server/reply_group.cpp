#include "server/reply_group.h"

#include <algorithm>
#include <utility>

namespace percheron::server {

// What one of several replies takes for its writer.
class ReplyGroup::Member final : public ReplyWriter {
  public:
    Member(ReplyGroup& group, std::uint32_t first_choice)
        : group_(group), first_choice_(first_choice) {}

    void begin() override {
        if (!std::exchange(group_.begun_, true)) group_.writer_.begin();
    }
    void progress(const PromptProgress& progress) override { group_.writer_.progress(progress); }
    void prompt_scores(std::uint32_t choice,
                       std::span<const EngineEvents::Logprobs> scores) override {
        group_.writer_.prompt_scores(first_choice_ + choice, scores);
    }
    void pieces(std::uint32_t choice, std::span<const ReplyPiece> pieces,
                const ReplyUsage& /*of this reply*/) override {
        group_.writer_.pieces(first_choice_ + choice, pieces, group_.usage());
    }
    void end_choice(std::uint32_t choice, const ChoiceEnd& end,
                    const ReplyUsage& /*of this reply*/) override {
        group_.writer_.end_choice(first_choice_ + choice, end, group_.usage());
    }
    void end(const ReplyUsage& /*of this reply*/) override {
        if (--group_.open_ == 0) group_.writer_.end(group_.usage());
    }
    void fail(const ApiError& error) override { group_.fail(error); }
    void keep_alive() override { group_.writer_.keep_alive(); }

  private:
    ReplyGroup& group_;
    std::uint32_t first_choice_;
};

ReplyGroup::ReplyGroup(ReplyWriter& writer, std::size_t replies, std::function<void()> failed)
    : writer_(writer), size_(replies), failed_(std::move(failed)), open_(replies) {}

ReplyGroup::~ReplyGroup() = default;

void ReplyGroup::add(std::shared_ptr<Reply> reply) {
    if (size_ > 1) {
        const std::uint32_t first =
            replies_.empty()
                ? 0
                : replies_.front()->setup().choices * static_cast<std::uint32_t>(replies_.size());
        members_.push_back(std::make_unique<Member>(*this, first));
    }
    replies_.push_back(std::move(reply));
}

Status ReplyGroup::start(std::vector<GenerationRequest> requests, const Reply::EndCallback& ended) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
        ReplyWriter& writer = members_.empty() ? writer_ : *members_[i];
        Status started = replies_[i]->start(std::move(requests[i]), writer, ended);
        if (started.ok()) continue;
        for (const auto& reply : replies_)
            reply->abandon();
        return started;
    }
    return {};
}

bool ReplyGroup::done() const {
    return has_failed_ || std::all_of(replies_.begin(), replies_.end(),
                                      [](const auto& reply) { return reply->ended(); });
}

void ReplyGroup::detach() {
    for (const auto& reply : replies_)
        reply->detach();
}

ReplyUsage ReplyGroup::usage() const {
    ReplyUsage sum;
    for (const auto& reply : replies_) {
        const ReplyUsage& usage = reply->usage();
        sum.prompt_tokens += usage.prompt_tokens;
        sum.image_tokens += usage.image_tokens;
        sum.cached_tokens += usage.cached_tokens;
        sum.completion_tokens += usage.completion_tokens;
        sum.reasoning_tokens += usage.reasoning_tokens;
        add_draft(sum.draft, usage.draft);
    }
    return sum;
}

void ReplyGroup::fail(const ApiError& error) {
    if (std::exchange(has_failed_, true)) return;
    writer_.fail(error);
    for (const auto& reply : replies_)
        reply->abandon();
    failed_();
}

}  // namespace percheron::server
