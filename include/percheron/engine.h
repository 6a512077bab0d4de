// The public face of the engine: token ids in, token ids out.
//
// An Engine owns scheduler, caches and device.  Whoever submits a request gets its life back as
// events: admitted, then runs of tokens, then finished, in that order, exactly one `admitted` and
// one `finished` for every choice of every request that submit() accepted, unless the engine itself
// is destroyed; a choice that fails before its prompt was begun may lack the `admitted`.  All
// events of one engine step arrive in one call of the sink, so a server can turn a step into one
// wake-up.
//
// Text stays outside: templates, tokenizers, parsers and stop strings belong to the caller, which
// cancels a choice when the text says so.  Server, chat, bench and eval use only this header.
//
// Implementations: in process (src/engine), replay from a file (src/replay), in a rank process
// (src/parallel).
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "percheron/token_constraint.h"
#include "percheron/types.h"

#include "core/status.h"

namespace percheron {

// Error::reason() of what submit() refuses and of what ends as `failed`; a server passes them on as
// the error's code.
namespace reasons {
inline constexpr std::string_view invalid_value = "invalid_value";
inline constexpr std::string_view unsupported_parameter = "unsupported_parameter";
inline constexpr std::string_view context_length_exceeded = "context_length_exceeded";
inline constexpr std::string_view queue_full = "queue_full";            // code unavailable
inline constexpr std::string_view shutting_down = "shutting_down";      // code unavailable
inline constexpr std::string_view engine_dead = "engine_dead";          // code unavailable
inline constexpr std::string_view numerical_fault = "numerical_fault";  // code internal
inline constexpr std::string_view replay_exhausted =
    "replay_exhausted";                                             // no reply left; not_found
inline constexpr std::string_view no_token_left = "no_token_left";  // masks leave nothing; internal
inline constexpr std::string_view constraint_too_costly = "constraint_too_costly";  // internal
}  // namespace reasons

// How a token is chosen from the logits.  Ranges are checked by submit().
struct SamplingParameters {
    float temperature = 1.0f;         // >= 0; 0 is greedy
    float top_p = 1.0f;               // (0, 1]
    float min_p = 0.0f;               // [0, 1)
    int top_k = 0;                    // 0 = off
    float repetition_penalty = 1.0f;  // > 0; 1 = off
    float presence_penalty = 0.0f;    // [-2, 2]
    float frequency_penalty = 0.0f;   // [-2, 2]
    std::vector<std::pair<TokenId, float>> logit_bias;
    std::optional<std::uint64_t> seed;  // absent: the engine picks one and reports it
    int top_logprobs = -1;  // -1: none; 0: of the chosen token only; n: also the n largest
};

// A picture as the vision tower's first product reads it, before numbers are scaled: RGB bytes
// [height][width][3], the resized picture at the top left, the rest black.  Both sides are
// multiples of patch x merge of the model's vision part (28 for GLM-5.3-Flash).
// ops::image_patches() (ops/image_patches.h) makes the tower's rows of it, any span of rows at a
// time: the rows as floats are eight times as large as these bytes, so nobody need hold them all.
struct ImageCanvas {
    std::uint32_t height = 0;
    std::uint32_t width = 0;
    std::vector<std::uint8_t> pixels;
    // A byte v of channel c is the number (v / 255 - mean[c]) / deviation[c]; of the model's
    // preprocessor_config.json, so that an engine need not read it.
    std::array<float, 3> mean{0.48145466f, 0.4578275f, 0.40821073f};
    std::array<float, 3> deviation{0.26862954f, 0.26130258f, 0.27577711f};
};

// A picture of a prompt.  It stands where `prompt` holds `count` placeholders in a row, each of
// them the model's image token; the k-th placeholder's embedding is replaced by the tower's k-th
// output row (cells of merge x merge patches, in reading order).
struct PromptImage {
    std::uint32_t first = 0;  // index in `prompt` of the first placeholder
    std::uint32_t count = 0;  // = grid_height x grid_width / merge^2, at least 1
    // Patches a column and a row: the canvas's sides / patch, multiples of merge.
    std::uint32_t grid_height = 0;
    std::uint32_t grid_width = 0;
    std::shared_ptr<const ImageCanvas> canvas;  // never null; images of equal bytes may share one
    // SHA-256 over sides, scale and bytes of the canvas: two images of one hash are one picture to
    // the tower.  Caches of states after the image, and of the tower's rows, are keyed by it and
    // not by the placeholders' ids, which are the same for every picture.
    std::array<std::uint8_t, 32> content_hash{};
};

struct GenerationRequest {
    std::vector<TokenId> prompt;  // at least one token; placeholders of images included
    // In the order of the prompt, spans apart from each other.  Every image token of the prompt
    // lies in one of them: text from outside never becomes one.  Empty: text alone.
    std::vector<PromptImage> images;
    SamplingParameters sampling;
    std::uint32_t choices = 1;                // independent continuations of the prompt
    std::optional<std::uint32_t> max_tokens;  // at least 1; absent: what is left of the context
    std::uint32_t min_tokens = 0;             // stop ids are not chosen before this many
    bool ignore_eos = false;                  // no stop id ends the reply; none is chosen either
    std::vector<TokenId> extra_stop_tokens;   // beside the model's own stop ids
    std::optional<std::uint32_t> thinking_budget;  // tokens before the engine closes the thinking
    // What the reply after its thinking must be; null: anything.  No stop id ends the thinking of
    // such a reply, and where the grammar allows nothing but stop ids, they come in spite of
    // min_tokens and ignore_eos.
    std::shared_ptr<const OutputGrammar> grammar;
    // Log-probs of the prompt's own tokens, as sampling.top_logprobs counts them; of the first
    // choice alone, and without the prefix cache, which would leave out the computing.
    int prompt_logprobs = -1;
    std::optional<bool> loop_guard;  // absent: the engine's option; without effect on ignore_eos
    bool draft = true;               // false: no speculation for this request
    bool use_cache = true;           // false: the prefix cache is not looked up
    bool report_progress = false;    // of the prompt, in Progress events
    std::string cache_salt;          // requests with different salts never share cache entries
    int priority = 0;                // larger is sooner
    std::optional<std::chrono::steady_clock::time_point> deadline;
    std::string last_message;  // text of the last message; only the replay engine reads it
};

enum class FinishReason {
    stop_token,  // a stop id was chosen
    max_tokens,  // max_tokens were produced
    context,     // the model's context is full
    deadline,
    loop,  // the loop guard fired
    cancelled,
    failed,  // `error` says why
};

// One alternative at a position: its id and natural log-probability.
struct TokenLogprob {
    TokenId id{};
    float logprob = 0;
};

// Counted by the engine over the life of one choice.
struct ChoiceStatistics {
    std::uint32_t prompt_tokens = 0;
    std::uint32_t cached_tokens = 0;     // prompt tokens whose state came from the cache
    std::uint32_t generated_tokens = 0;  // delivered in events, a closing stop id included
    double queue_seconds = 0;
    double prefill_seconds = 0;
    double decode_seconds = 0;
    std::uint32_t draft_rounds = 0;
    std::uint32_t drafted_tokens = 0;
    std::uint32_t accepted_tokens = 0;
    std::vector<std::uint32_t> accepted_per_position;
    std::string proposer;  // empty: nothing was drafted
};

// All that happened in one engine step.
struct EngineEvents {
    struct Admitted {  // the prompt is about to be computed
        RequestId request{};
        std::uint32_t choice = 0;
        std::uint32_t cached_tokens = 0;
        std::uint64_t seed = 0;
    };
    // How far the prompt is, for requests that ask: once when it is admitted, then after every
    // step that computed rows of it, up to the whole.  Of the first choice alone; `done` rises.
    struct Progress {
        RequestId request{};
        std::uint32_t cached = 0;  // prompt tokens found in the prefix cache
        std::uint32_t done = 0;    // those and what has been computed
        std::uint32_t total = 0;   // of the prompt
    };
    struct Tokens {  // tokens [first, first + count) of `tokens` below
        RequestId request{};
        std::uint32_t choice = 0;
        std::uint32_t first = 0;
        std::uint32_t count = 0;
        // The k-th token of this run has its entry at logprobs[first_logprob + k] when
        // has_logprobs.
        bool has_logprobs = false;
        std::uint32_t first_logprob = 0;
        // Of the round of speculation that gave this run, as `statistics` of the end will have
        // summed them; drafted 0: there was none.
        std::uint32_t drafted = 0;
        std::uint32_t accepted = 0;
    };
    struct Logprobs {
        float chosen = 0;  // under the model's distribution, before penalties and temperature
        std::vector<TokenLogprob> top;
    };
    // Scores of the prompt's tokens [first, first + count), entry k at logprobs[first_logprob + k].
    // They begin with the second token and come in order and without gaps, all before the first
    // run of the request's first choice.
    struct PromptScores {
        RequestId request{};
        std::uint32_t first = 0;
        std::uint32_t count = 0;
        std::uint32_t first_logprob = 0;
    };
    struct Finished {
        RequestId request{};
        std::uint32_t choice = 0;
        FinishReason reason = FinishReason::stop_token;
        std::optional<Error> error;  // only with `failed`
        ChoiceStatistics statistics;
    };

    // Order: every admission, then the progress and the scores of prompts, then the token runs,
    // then the ends.
    std::vector<Admitted> admitted;
    std::vector<Progress> progress;
    std::vector<PromptScores> prompt_scores;
    std::vector<Tokens> runs;
    std::vector<Finished> finished;
    std::vector<TokenId> tokens;
    std::vector<Logprobs> logprobs;

    bool empty() const {
        return admitted.empty() && progress.empty() && prompt_scores.empty() && runs.empty() &&
               finished.empty();
    }
    void clear() {
        admitted.clear();
        progress.clear();
        prompt_scores.clear();
        runs.clear();
        finished.clear();
        tokens.clear();
        logprobs.clear();
    }
};

class EngineEventSink {
  public:
    virtual ~EngineEventSink() = default;
    // Called on the engine's thread, once a step; must not block or call back into the engine.
    // The sink may move the content out.
    virtual void on_events(EngineEvents& events) = 0;
    // True while much of what was delivered is not yet handled.  An engine whose steps cost it
    // nothing (replay) waits then; one that computes goes on.  Any thread.
    virtual bool congested() const { return false; }
};

// What submit() holds a request to (engine/request_check.h).
struct RequestLimits {
    std::uint32_t vocabulary = 0;
    std::uint32_t context_tokens = 0;  // prompt and reply of one choice
    std::uint32_t most_choices = 0;    // that the engine holds, running and waiting together
    bool has_think_tags = false;
    bool has_vision = false;
    // With vision:
    TokenId image_token{-1};
    std::size_t patch = 0;           // pixels of a patch's side
    std::size_t merge = 0;           // patches of a token's side
    std::uint32_t image_tokens = 0;  // of one image at most
    std::size_t feature_row_bytes = 0;
    Bytes image_memory = 0;  // for the feature rows of all who wait and run
};

// What an engine is, fixed after start.
struct EngineDescription {
    std::string model_name;
    std::uint32_t vocabulary = 0;
    std::uint32_t context_tokens = 0;  // prompt + reply of one request
    std::uint64_t kv_tokens = 0;       // tokens the pool holds over all requests
    std::uint32_t page_tokens = 64;
    // Of latents and index keys: bf16, fp8 or f32; empty where there are none.
    std::string kv_dtype;
    std::uint32_t max_running = 0;
    std::vector<TokenId> stop_tokens;
    std::string proposer;   // empty without speculation
    bool grammars = false;  // requests may carry a grammar; false: submit() refuses them
    bool vision = false;    // requests may hold images; false: submit() refuses them as unsupported
    RequestLimits limits;   // all zero where submit() has rules of its own (replay)
};

// The prefix cache's files.
struct PrefixDiskStatus {
    bool on = false;
    bool paused = false;             // a write failed; another is tried after a while
    std::uint64_t entries = 0;       // states that a prompt may go on from
    std::uint64_t bytes = 0;         // of all files
    std::uint64_t limit_bytes = 0;   // that they may have
    std::uint64_t queued_bytes = 0;  // copies that wait to be written
    std::uint64_t bytes_written = 0;
    std::uint64_t bytes_restored = 0;
    std::uint64_t restores = 0;   // prompts that found more there than in memory
    std::uint64_t evictions = 0;  // files given up for others
    std::uint64_t refused = 0;    // files that are damaged, of another model or program
    std::uint64_t dropped = 0;    // pages and states not written: the disk fell behind or paused
};

// A process that computes for this one.
struct RankStatus {
    std::uint32_t rank = 0;
    std::int64_t process = 0;  // its id; 0: there is none at the moment
    bool up = false;           // it takes requests
    std::string stage;         // "serving", "loading weights, 43 %", "starting again in 4 s"
    std::uint64_t restarts = 0;
    std::string last_end;  // how the one before ended; empty: there was none
};

// What an engine is doing, at the end of its latest step.
struct EngineStatus {
    // False: nothing is computed, `failure` says why.  For good, but for an engine with ranks,
    // which starts them again.
    bool alive = true;
    std::string failure;
    std::vector<RankStatus> ranks;  // empty: the engine runs in this process
    std::uint32_t running = 0;
    std::uint32_t waiting = 0;
    std::uint64_t kv_tokens_free = 0;
    std::uint64_t kv_tokens_total = 0;
    std::uint64_t reprefill_pending = 0;
    std::uint64_t checkpoints = 0;
    std::uint64_t steps = 0;
    std::uint64_t preemptions = 0;  // running choices that gave up their pages
    std::uint64_t late_masks = 0;   // steps a choice sat out because its mask was not ready
    PrefixDiskStatus prefix_disk;
    std::uint64_t images_encoded = 0;      // by the vision tower
    std::uint64_t images_reused = 0;       // of requests, whose features were there already
    double prefill_tokens_per_second = 0;  // over the last seconds
    double decode_tokens_per_second = 0;
};

class Engine {
  public:
    virtual ~Engine() = default;

    virtual const EngineDescription& description() const = 0;
    virtual EngineStatus status() const = 0;  // any thread

    // Checks the request against ranges, context and pools, and queues it.  Thread-safe.
    // The sink must outlive the request's last event.
    // Errors, each with its reason: invalid_argument (a range: invalid_value; prompt + max_tokens
    // beyond the context: context_length_exceeded, the message names both and the largest that
    // fits), unsupported (a feature this engine lacks: unsupported_parameter), unavailable
    // (queue_full, shutting_down, engine_dead).  A message about one field begins with its name.
    virtual Result<RequestId> submit(GenerationRequest request, EngineEventSink& sink) = 0;

    // Ends one choice, or all with choice = all_choices, within a step; its Finished event still
    // comes.  Unknown or finished requests are ignored.  Thread-safe.
    static constexpr std::uint32_t all_choices = 0xffffffffu;
    virtual void cancel(RequestId request, std::uint32_t choice = all_choices) = 0;
};

}  // namespace percheron
