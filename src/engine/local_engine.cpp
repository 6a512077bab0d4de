#include "engine/local_engine.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <utility>

#include "cache/cache_store.h"
#include "core/logging.h"
#include "core/throughput.h"
#include "draft/verification.h"
#include "engine/draft_rounds.h"
#include "engine/engine_start.h"
#include "engine/event_batches.h"
#include "engine/image_queue.h"
#include "engine/mask_threads.h"
#include "engine/prefix_disk.h"
#include "engine/prompt_scorer.h"
#include "engine/reprefill.h"
#include "engine/request_check.h"
#include "engine/sequence.h"
#include "engine/step_probe.h"
#include "engine/step_runner.h"
#include "engine/token_commit.h"

namespace percheron::engine {

namespace {

constexpr std::chrono::milliseconds time_between_looks{100};
constexpr std::size_t mask_orders = 4096;  // that may wait; who finds no place is late

double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
}

class LocalEngine final : public Engine {
  public:
    LocalEngine(NetworkParts parts, std::unique_ptr<cache::CacheStore> caches,
                std::unique_ptr<cache::DiskTier> tier, LocalEngineOptions options);
    ~LocalEngine() override;

    const EngineDescription& description() const override { return description_; }
    EngineStatus status() const override;
    Result<RequestId> submit(GenerationRequest request, EngineEventSink& sink) override;
    void cancel(RequestId request, std::uint32_t choice) override;

  private:
    struct Cancel {
        RequestId request{};
        std::uint32_t choice = 0;
    };

    // The submitting threads' side.
    std::uint64_t new_seed();

    void wake();

    // The engine thread's side.
    void run();
    Status probe();
    bool take_inbox();
    void take_in(std::unique_ptr<Sequence> sequence);
    void line_up(std::unique_ptr<Sequence> sequence);
    const std::vector<Sequence*>& all();
    std::uint32_t waiting_now() const;
    void end_cancelled_and_late();
    void encode();
    void read_from_disk();
    Status step();
    void order_masks(Sequence& sequence, std::span<const TokenId> drafts);
    void take_held();
    void take_tokens(PlannedRows& planned, const sampling::LogitRows& logits, std::size_t first);
    void announce(Sequence& sequence);
    void tell_progress(Sequence& sequence);
    void finish(Sequence& sequence, Ending ending);
    void finish_step(double seconds);
    void die(const Error& error);

    NetworkParts parts_;
    std::unique_ptr<cache::CacheStore> caches_;
    const LocalEngineOptions options_;
    EngineDescription description_;

    // Shared, under mutex_.
    mutable std::mutex mutex_;
    std::condition_variable wake_;
    bool stopping_ = false;
    std::vector<std::unique_ptr<Sequence>> submitted_;
    std::vector<Cancel> cancelled_;
    std::uint32_t alive_choices_ = 0;  // submitted and not finished
    std::uint64_t last_request_ = 0;
    std::uint64_t last_arrival_ = 0;
    std::mt19937_64 seeds_;
    EngineStatus status_;
    Throughput prefilled_;
    Throughput decoded_;

    // The engine thread's own.
    ImageQueue images_;
    Scheduler scheduler_;
    std::unique_ptr<PrefixDisk> disk_;  // null: the prefix cache has no files
    Reprefill reprefill_;
    StepRunner runner_;
    StepPlan plan_;
    EventBatches events_;
    TokenCommit tokens_;
    std::unique_ptr<DraftRounds> rounds_;  // null: no speculation
    std::uint32_t accepted_now_ = 0;
    std::uint32_t late_masks_now_ = 0;
    bool all_held_ = false;                    // nothing can be done until a mask is there
    std::uint64_t seen_fulfilled_ = 0;         // of fulfilled_, before masks were looked for
    std::atomic<std::uint64_t> fulfilled_{0};  // orders of masks
    MaskThreads mask_threads_;
    std::array<std::uint32_t, StepRecord::most_proposers> drafts_now_{};  // by proposer
    PromptScorer scorer_{runner_, tokens_.sampler(), options_.banned_tokens};
    std::vector<Cancel> cancels_now_;
    std::vector<Sequence*> all_;
    std::uint32_t finished_now_ = 0;

    std::thread thread_;
};

LocalEngine::LocalEngine(NetworkParts parts, std::unique_ptr<cache::CacheStore> caches,
                         std::unique_ptr<cache::DiskTier> tier, LocalEngineOptions options)
    : parts_(std::move(parts)),
      caches_(std::move(caches)),
      options_(std::move(options)),
      description_(describe(parts_, options_)),
      seeds_(options_.seed.value_or(0)),
      prefilled_(Clock::now()),
      decoded_(Clock::now()),
      images_(parts_.tower.get(), options_.image_memory),
      scheduler_(options_.scheduler),
      reprefill_(description_.kv_tokens),
      runner_(*parts_.network, *caches_),
      tokens_(description_.vocabulary, options_.banned_tokens, events_),
      mask_threads_(options_.mask_threads, mask_orders) {
    mask_threads_.on_fulfilled([this] {
        fulfilled_.fetch_add(1);
        wake();
    });
    if (DraftRounds::Proposers proposers = make_proposers(parts_, *caches_, options_);
        !proposers.empty()) {
        rounds_ =
            std::make_unique<DraftRounds>(std::move(proposers), options_.draft, step_shape(parts_),
                                          options_.banned_tokens, scheduler_);
        description_.proposer = rounds_->name();
        scheduler_.cache().watch_checkpoints([this](CheckpointId id) { rounds_->forget(id); });
    }
    if (tier) {
        disk_ = std::make_unique<PrefixDisk>(std::move(tier), *caches_, scheduler_);
        disk_->start([this] { wake(); });
    }
    status_.kv_tokens_total = description_.kv_tokens;
    status_.kv_tokens_free = description_.kv_tokens;
    thread_ = std::thread([this] { run(); });
}

// From other threads of the engine's.
void LocalEngine::wake() {
    { const std::lock_guard lock(mutex_); }
    wake_.notify_one();
}

LocalEngine::~LocalEngine() {
    {
        const std::lock_guard lock(mutex_);
        stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
}

EngineStatus LocalEngine::status() const {
    const std::lock_guard lock(mutex_);
    EngineStatus status = status_;
    const auto now = Clock::now();
    status.waiting += static_cast<std::uint32_t>(submitted_.size());
    status.prefill_tokens_per_second = prefilled_.per_second(now);
    status.decode_tokens_per_second = decoded_.per_second(now);
    if (disk_) status.prefix_disk = disk_->status();
    return status;
}

Result<RequestId> LocalEngine::submit(GenerationRequest request, EngineEventSink& sink) {
    PERCHERON_TRY(check_request(request, description_.limits));
    if (!request.thinking_budget && description_.limits.has_think_tags) {
        request.thinking_budget = options_.thinking_budget;
    }
    const std::uint64_t seed = request.sampling.seed ? *request.sampling.seed : new_seed();
    std::vector<std::unique_ptr<Sequence>> sequences;
    for (std::uint32_t choice = 0; choice < request.choices; ++choice) {
        sequences.push_back(
            make_sequence(request, options_, description_.vocabulary, seed, choice, sink));
    }

    RequestId id{};
    {
        const std::lock_guard lock(mutex_);
        if (!status_.alive) {
            return Error(ErrorCode::unavailable, "the engine has stopped: " + status_.failure,
                         reasons::engine_dead);
        }
        if (request.choices > description_.limits.most_choices - alive_choices_) {
            return Error(ErrorCode::unavailable,
                         "the waiting list is full (" + std::to_string(alive_choices_) +
                             " requests run or wait); try again in a moment",
                         reasons::queue_full);
        }
        alive_choices_ += request.choices;
        id = RequestId(++last_request_);
        for (auto& sequence : sequences) {
            sequence->request = id;
            sequence->arrival = ++last_arrival_;
            submitted_.push_back(std::move(sequence));
        }
    }
    wake_.notify_one();
    return id;
}

void LocalEngine::cancel(RequestId request, std::uint32_t choice) {
    {
        const std::lock_guard lock(mutex_);
        cancelled_.push_back({request, choice});
    }
    wake_.notify_one();
}

std::uint64_t LocalEngine::new_seed() {
    constexpr int unused_bits = 11;  // below 2^53 every JSON reader gives a seed back whole
    if (options_.seed) {
        const std::lock_guard lock(mutex_);
        return seeds_() >> unused_bits;
    }
    std::random_device system;
    return (std::uint64_t{system()} << 32 | system()) >> unused_bits;
}

void LocalEngine::run() {
    try {
        if (Status status = probe(); !status.ok()) {
            die(status.error());
            return;
        }
        while (take_inbox()) {
            end_cancelled_and_late();
            encode();
            read_from_disk();
            if (scheduler_.idle() && waiting_now() == 0) {
                reprefill_.start(scheduler_);
            } else {
                reprefill_.stop(scheduler_);
            }
            if (Status status = step(); !status.ok()) {
                die(status.error());
                return;
            }
        }
    } catch (const std::exception& exception) {
        die(Error(ErrorCode::internal, exception.what()));
    }
}

// What steps cost, where drafts are chosen by it.
Status LocalEngine::probe() {
    if (!rounds_ || rounds_->depths() == nullptr) {
        return {};
    }
    return probe_steps(*parts_.network, *caches_, *rounds_, options_, [this] {
        const std::lock_guard lock(mutex_);
        return stopping_ || !submitted_.empty();
    });
}

// Waits until there is something to do; false: the engine is being destroyed.
bool LocalEngine::take_inbox() {
    std::unique_lock lock(mutex_);
    const bool reads = disk_ && !disk_->waiting().empty();
    const auto something_to_do = [&] {
        return stopping_ || !submitted_.empty() || !cancelled_.empty() ||
               (!scheduler_.idle() && !all_held_) || !images_.waiting().empty() ||
               (disk_ && disk_->has_news()) || fulfilled_.load() != seen_fulfilled_ ||
               (!reprefill_.empty() && !reads && !all_held_);
    };
    if (reads || all_held_) {
        // Whoever waits for a disk or a mask may have a deadline.
        wake_.wait_for(lock, time_between_looks, something_to_do);
    } else {
        wake_.wait(lock, something_to_do);
    }
    if (stopping_) {
        return false;
    }
    for (auto& sequence : submitted_) {
        take_in(std::move(sequence));
    }
    status_.waiting = waiting_now();
    submitted_.clear();
    cancels_now_.swap(cancelled_);
    return true;
}

// Whoever brings images waits for their features first.
void LocalEngine::take_in(std::unique_ptr<Sequence> sequence) {
    if (sequence->images.empty()) {
        line_up(std::move(sequence));
    } else {
        images_.add(std::move(sequence));
    }
}

// Then for what the disk has of its prompt.
void LocalEngine::line_up(std::unique_ptr<Sequence> sequence) {
    if (!disk_ || !disk_->take(sequence)) {
        scheduler_.add(std::move(sequence));
    }
}

// Valid until the next call; sequences may end while it is read.
const std::vector<Sequence*>& LocalEngine::all() {
    all_.clear();
    scheduler_.append_all(all_);
    for (const auto& sequence : images_.waiting()) {
        all_.push_back(sequence.get());
    }
    if (disk_) {
        for (const auto& sequence : disk_->waiting()) {
            all_.push_back(sequence.get());
        }
    }
    return all_;
}

std::uint32_t LocalEngine::waiting_now() const {
    const std::size_t beside =
        images_.waiting().size() + (disk_ ? disk_->waiting().size() : std::size_t{0});
    return scheduler_.waiting() + static_cast<std::uint32_t>(beside);
}

// One slice of an image between two steps.
void LocalEngine::encode() {
    images_.advance();
    if (auto failure = images_.take_failure()) {
        finish(*failure->first, {FinishReason::failed, std::move(failure->second)});
    }
    for (auto& sequence : images_.ready()) {
        line_up(std::move(sequence));
    }
    images_.ready().clear();
}

// What has come since the last step.
void LocalEngine::read_from_disk() {
    if (!disk_) return;
    disk_->advance();
    for (auto& sequence : disk_->ready()) {
        scheduler_.add(std::move(sequence));
    }
    disk_->ready().clear();
}

void LocalEngine::end_cancelled_and_late() {
    const auto now = Clock::now();
    for (Sequence* sequence : all()) {
        const bool cancelled =
            std::any_of(cancels_now_.begin(), cancels_now_.end(), [&](const Cancel& cancel) {
                return cancel.request == sequence->request &&
                       (cancel.choice == all_choices || cancel.choice == sequence->choice);
            });
        if (cancelled) {
            finish(*sequence, {FinishReason::cancelled, {}});
        } else if (sequence->deadline && now >= *sequence->deadline) {
            finish(*sequence, {FinishReason::deadline, {}});
        }
    }
    cancels_now_.clear();
}

Status LocalEngine::step() {
    seen_fulfilled_ = fulfilled_.load();
    take_held();
    scheduler_.plan(plan_);
    all_held_ = plan_.rows.empty() && plan_.admitted.empty() && scheduler_.held() > 0;
    for (const PlannedRows& planned : plan_.rows) {
        if (planned.wants_token) {
            order_masks(*planned.sequence,
                        std::span(planned.sequence->drafting.drafts).first(planned.drafts));
        }
    }
    const auto start = Clock::now();
    for (const Admission& admission : plan_.admitted) {
        Sequence& sequence = *admission.sequence;
        if (admission.restore) {
            caches_->restore(*sequence.slot, sequence.computed, *admission.restore);
        } else {
            caches_->clear_slot(*sequence.slot);
        }
        if (rounds_) rounds_->begin(sequence, admission.restore);
        if (!plan_.background) {
            announce(sequence);
        }
    }
    if (!plan_.rows.empty()) {
        PERCHERON_ASSIGN(const sampling::LogitRows computed, runner_.run(plan_));
        PERCHERON_ASSIGN(const auto logits, scorer_.score(plan_, computed, events_));
        scheduler_.commit(plan_, seconds_between(start, Clock::now()));
        for (const StateCopy& copy : plan_.copies) {
            caches_->save(copy.slot, copy.position, copy.checkpoint);
        }
        for (const PlannedRows& planned : plan_.rows) {
            tell_progress(*planned.sequence);
        }
        const auto computed_at = Clock::now();
        std::size_t row = 0;
        for (PlannedRows& planned : plan_.rows) {
            if (planned.wants_token) {
                take_tokens(planned, logits, row);
                row += 1 + planned.drafts;
            }
        }
        if (rounds_) {
            PERCHERON_TRY(rounds_->propose(plan_, seconds_between(start, computed_at),
                                           seconds_between(computed_at, Clock::now())));
            rounds_->save(plan_.copies);
        }
        for (const PlannedRows& planned : plan_.rows) {
            if (disk_ && planned.sequence != nullptr) disk_->store(plan_, planned);
        }
    }
    reprefill_.after_step(scheduler_);
    finish_step(seconds_between(start, Clock::now()));
    return {};
}

// Begins the masks of a sequence's rows, unless they were begun before.
void LocalEngine::order_masks(Sequence& sequence, std::span<const TokenId> drafts) {
    AnswerMasks* const masks = sequence.masks.get();
    const std::size_t tokens = sequence.tokens.size();
    if (masks == nullptr || masks->is_of(tokens) || !masks->idle() || !mask_threads_.has_place()) {
        return;
    }
    if (!masks->begin(tokens, sequence.thinking, drafts)) {
        return;
    }
    if (options_.mask_threads == 0) {
        masks->fulfil();
    } else {
        mask_threads_.order(sequence.masks);
    }
}

// Tokens of those that sat out and whose masks are there now (M2).
void LocalEngine::take_held() {
    if (scheduler_.held() == 0) {
        return;
    }
    for (Sequence* const sequence : all()) {
        if (!sequence->held()) {
            continue;
        }
        order_masks(*sequence, {});
        if (!sequence->masks->usable_drafts(sequence->tokens.size(), sequence->thinking, {})) {
            continue;
        }
        std::optional<Ending> ending = tokens_.take(*sequence, sequence->held_logits, 0);
        sequence->held_logits.clear();
        if (ending) {
            finish(*sequence, std::move(*ending));
        }
    }
}

// The token behind the newest, and those behind the drafts that hold: from logits[first] on.
void LocalEngine::take_tokens(PlannedRows& planned, const sampling::LogitRows& logits,
                              std::size_t first) {
    Sequence& sequence = *planned.sequence;
    std::span<const TokenId> drafts = std::span(sequence.drafting.drafts).first(planned.drafts);
    if (sequence.masks) {
        const std::optional<std::uint32_t> usable =
            sequence.masks->usable_drafts(sequence.tokens.size(), sequence.thinking, drafts);
        if (!usable) {
            const sampling::LogitRow newest = logits[first];
            if (Status fetched = newest.fetch(); !fetched.ok()) {
                finish(sequence, {FinishReason::failed, std::move(fetched).error()});
                planned.sequence = nullptr;
                return;
            }
            sequence.held_logits.assign(newest.values.begin(), newest.values.end());
            ++late_masks_now_;
        }
        drafts = drafts.first(usable.value_or(0));
    }
    if (sequence.held()) {
        sequence.drafting.drafts.clear();
        return;
    }
    std::optional<Ending> ending;
    const draft::Verdict verdict = draft::verify(drafts, [&](std::uint32_t row) {
        ending = tokens_.take(sequence, logits[first + row], row);
        // What could not be chosen is no token of the draft.
        const bool failed = ending && ending->error;
        return draft::TakenToken{failed ? TokenId(-1) : sequence.tokens.back(), ending.has_value()};
    });
    Scheduler::accept(sequence, verdict.accepted);
    accepted_now_ += verdict.accepted;
    drafts_now_[sequence.drafting.proposer] += planned.drafts;
    if (rounds_) {
        const auto drafted = static_cast<std::uint32_t>(drafts.size());
        rounds_->count(sequence, drafted, verdict);
        if (drafted > 0) {
            tokens_.note_round(sequence, drafted, verdict.accepted);
        }
    }
    if (ending) {
        if (disk_) disk_->store(plan_, planned);
        finish(sequence, std::move(*ending));
        planned.sequence = nullptr;
    }
}

void LocalEngine::announce(Sequence& sequence) {
    if (sequence.announced) {
        return;
    }
    sequence.announced = true;
    sequence.first_admitted = Clock::now();
    EngineEvents::Admitted admitted;
    admitted.request = sequence.request;
    admitted.choice = sequence.choice;
    admitted.cached_tokens = sequence.first_hit.value_or(0);
    admitted.seed = sequence.seed;
    events_.of(sequence.sink).admitted.push_back(admitted);
    tell_progress(sequence);
}

// Where it asks for it and there is something new to tell: a prompt that is computed again after a
// preemption was told of before.
void LocalEngine::tell_progress(Sequence& sequence) {
    const std::uint32_t done = std::min(sequence.computed, sequence.prompt_tokens);
    if (!sequence.progress || (*sequence.progress >= done && done > 0)) {
        return;
    }
    sequence.progress = done;
    events_.of(sequence.sink)
        .progress.push_back(
            {sequence.request, sequence.first_hit.value_or(0), done, sequence.prompt_tokens});
}

void LocalEngine::finish(Sequence& sequence, Ending ending) {
    announce(sequence);
    if (ending.error) {
        log_error("request " + std::to_string(to_int(sequence.request)) +
                  " failed: " + ending.error->message());
    }
    const auto now = Clock::now();
    EngineEvents::Finished finished;
    finished.request = sequence.request;
    finished.choice = sequence.choice;
    finished.reason = ending.reason;
    finished.error = std::move(ending.error);
    ChoiceStatistics& statistics = finished.statistics;
    statistics.prompt_tokens = sequence.prompt_tokens;
    statistics.cached_tokens = sequence.first_hit.value_or(0);
    statistics.generated_tokens = sequence.generated();
    statistics.queue_seconds = seconds_between(sequence.submitted, sequence.first_admitted);
    const auto first_token = sequence.generated() > 0 ? sequence.first_token : now;
    statistics.prefill_seconds = seconds_between(sequence.first_admitted, first_token);
    statistics.decode_seconds = seconds_between(first_token, now);
    if (rounds_) {
        rounds_->write_statistics(sequence, statistics);
        rounds_->end(sequence);
    }
    events_.of(sequence.sink).finished.push_back(std::move(finished));
    ++finished_now_;
    std::unique_ptr<Sequence> ended = images_.remove(sequence);
    if (!ended && disk_) {
        ended = disk_->remove(sequence);
    }
    if (!ended) {
        ended = scheduler_.remove(sequence);
    }
    if (ending.reason != FinishReason::failed && ended->generated() > 0) {
        reprefill_.add(std::move(ended), ending.reason == FinishReason::stop_token, scheduler_);
    }
}

// Status first, so that whoever hears of an end finds its slot and pages free.
void LocalEngine::finish_step(double seconds) {
    StepRecord record;
    record.numeric_class = plan_.numeric_class;
    record.sequences = static_cast<std::uint32_t>(plan_.rows.size());
    record.background = plan_.background;
    record.preempted = static_cast<std::uint32_t>(plan_.preempted.size());
    record.seconds = seconds;
    for (const PlannedRows& planned : plan_.rows) {
        record.rows += planned.count;
        record.drafts += planned.drafts;
    }
    record.accepted = std::exchange(accepted_now_, 0);
    record.late_masks = std::exchange(late_masks_now_, 0);
    record.drafts_by = std::exchange(drafts_now_, {});
    {
        const std::lock_guard lock(mutex_);
        alive_choices_ -= finished_now_;
        status_.running = scheduler_.running();
        status_.waiting = waiting_now();
        status_.images_encoded = images_.encoded();
        status_.images_reused = images_.reused();
        status_.kv_tokens_free = std::uint64_t{scheduler_.available_pages()} * ops::page_tokens;
        status_.reprefill_pending = reprefill_.pending();
        status_.checkpoints = scheduler_.cache().checkpoints();
        status_.preemptions += record.preempted;
        status_.late_masks += record.late_masks;
        if (record.rows > 0) {
            ++status_.steps;
            const bool decode = record.numeric_class == ops::NumericClass::decode;
            (decode ? decoded_ : prefilled_)
                .add(Clock::now(), record.rows - record.drafts + record.accepted);
        }
    }
    finished_now_ = 0;
    if (record.rows > 0 && options_.on_step) {
        options_.on_step(record);
    }
    events_.deliver();
}

// The step loop cannot go on: everybody is told, and submit() refuses from now on.
void LocalEngine::die(const Error& error) {
    log_error("the engine has stopped: " + error.message());
    {
        const std::lock_guard lock(mutex_);
        status_.alive = false;
        status_.failure = error.message();
        for (auto& sequence : submitted_) {
            take_in(std::move(sequence));
        }
        submitted_.clear();
    }
    plan_.clear();
    for (Sequence* sequence : all()) {
        finish(*sequence, {FinishReason::failed, Error(ErrorCode::unavailable,
                                                       "the engine has stopped: " + error.message(),
                                                       reasons::engine_dead)});
    }
    finish_step(0);
}

}  // namespace

Result<std::unique_ptr<Engine>> make_local_engine(NetworkParts parts, LocalEngineOptions options) {
    const model::ModelConfig& config = parts.network->config();
    PERCHERON_TRY(check_options(parts, options));
    // Where logits lie far away, tokens are chosen from digests of them.
    if (const Status used = parts.network->use_digests(options.banned_tokens);
        !used.ok() && used.error().code() != ErrorCode::unsupported) {
        return used.error();
    }
    const cache::CacheShape shape = cache::CacheShape::of(
        config, options.kv_dtype, draft::uncommitted_rows(options.draft.depth), options.draft.mtp);
    PERCHERON_ASSIGN(auto caches, cache::CacheStore::create(
                                      shape, options.scheduler.pages, options.scheduler.max_running,
                                      *parts.backend, options.scheduler.checkpoints));
    std::unique_ptr<cache::DiskTier> tier;
    if (options.prefix_disk) {
        add_shape(options.prefix_disk->folder, shape);
        PERCHERON_ASSIGN(tier, cache::DiskTier::open(*options.prefix_disk));
    }
    return std::unique_ptr<Engine>(
        new LocalEngine(std::move(parts), std::move(caches), std::move(tier), std::move(options)));
}

}  // namespace percheron::engine
