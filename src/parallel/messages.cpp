#include "parallel/messages.h"

#include <algorithm>
#include <memory>

#include <link.h>

namespace percheron {

// Beside their types, where the concepts of message_bytes.h look for them.
constexpr ErrorCode last_of(ErrorCode) {
    return ErrorCode::internal;
}
constexpr FinishReason last_of(FinishReason) {
    return FinishReason::failed;
}

}  // namespace percheron

namespace percheron::parallel {
namespace {

template <class S, class T>
concept Is = std::same_as<std::remove_const_t<S>, T>;

// A reason is a word of static storage.
std::string_view known_reason(std::string_view word) {
    for (const std::string_view known :
         {reasons::invalid_value, reasons::unsupported_parameter, reasons::context_length_exceeded,
          reasons::queue_full, reasons::shutting_down, reasons::engine_dead,
          reasons::numerical_fault, reasons::replay_exhausted, reasons::no_token_left,
          reasons::constraint_too_costly}) {
        if (word == known) return known;
    }
    return {};
}

}  // namespace

void fields(MessageWriter& archive, const Error& error) {
    archive(error.code(), error.message(), std::string(error.reason()));
}
void fields(MessageReader& archive, Error& error) {
    ErrorCode code{};
    std::string message;
    std::string reason;
    archive(code, message, reason);
    error = Error(code, std::move(message), known_reason(reason));
}

void fields(MessageWriter& archive, const std::optional<Error>& error) {
    archive(error.has_value());
    if (error) fields(archive, *error);
}
void fields(MessageReader& archive, std::optional<Error>& error) {
    bool there = false;
    archive(there);
    error.reset();
    if (there) fields(archive, error.emplace(ErrorCode::internal, ""));
}

template <class Archive, Is<SamplingParameters> S>
void fields(Archive& archive, S& s) {
    archive(s.temperature, s.top_p, s.min_p, s.top_k, s.repetition_penalty, s.presence_penalty,
            s.frequency_penalty, s.logit_bias, s.seed, s.top_logprobs);
}

template <class Archive, Is<ImageCanvas> S>
void fields(Archive& archive, S& s) {
    archive(s.height, s.width, s.pixels, s.mean, s.deviation);
}

template <class Archive, Is<RequestLimits> S>
void fields(Archive& archive, S& s) {
    archive(s.vocabulary, s.context_tokens, s.most_choices, s.has_think_tags, s.has_vision,
            s.image_token, s.patch, s.merge, s.image_tokens, s.feature_row_bytes, s.image_memory);
}

template <class Archive, Is<EngineDescription> S>
void fields(Archive& archive, S& s) {
    archive(s.model_name, s.vocabulary, s.context_tokens, s.kv_tokens, s.page_tokens, s.kv_dtype,
            s.max_running, s.stop_tokens, s.proposer, s.grammars, s.vision, s.limits);
}

template <class Archive, Is<PrefixDiskStatus> S>
void fields(Archive& archive, S& s) {
    archive(s.on, s.paused, s.entries, s.bytes, s.limit_bytes, s.queued_bytes, s.bytes_written,
            s.bytes_restored, s.restores, s.evictions, s.refused, s.dropped);
}

// Without `ranks`, of which the front knows more.
template <class Archive, Is<EngineStatus> S>
void fields(Archive& archive, S& s) {
    archive(s.alive, s.failure, s.running, s.waiting, s.kv_tokens_free, s.kv_tokens_total,
            s.reprefill_pending, s.checkpoints, s.steps, s.preemptions, s.late_masks, s.prefix_disk,
            s.images_encoded, s.images_reused, s.prefill_tokens_per_second,
            s.decode_tokens_per_second);
}

template <class Archive, Is<ChoiceStatistics> S>
void fields(Archive& archive, S& s) {
    archive(s.prompt_tokens, s.cached_tokens, s.generated_tokens, s.queue_seconds,
            s.prefill_seconds, s.decode_seconds, s.draft_rounds, s.drafted_tokens,
            s.accepted_tokens, s.accepted_per_position, s.proposer);
}

template <class Archive, Is<TokenLogprob> S>
void fields(Archive& archive, S& s) {
    archive(s.id, s.logprob);
}
template <class Archive, Is<EngineEvents::Logprobs> S>
void fields(Archive& archive, S& s) {
    archive(s.chosen, s.top);
}
template <class Archive, Is<EngineEvents::Admitted> S>
void fields(Archive& archive, S& s) {
    archive(s.request, s.choice, s.cached_tokens, s.seed);
}
template <class Archive, Is<EngineEvents::Progress> S>
void fields(Archive& archive, S& s) {
    archive(s.request, s.cached, s.done, s.total);
}
template <class Archive, Is<EngineEvents::Tokens> S>
void fields(Archive& archive, S& s) {
    archive(s.request, s.choice, s.first, s.count, s.has_logprobs, s.first_logprob, s.drafted,
            s.accepted);
}
template <class Archive, Is<EngineEvents::PromptScores> S>
void fields(Archive& archive, S& s) {
    archive(s.request, s.first, s.count, s.first_logprob);
}
template <class Archive, Is<EngineEvents::Finished> S>
void fields(Archive& archive, S& s) {
    archive(s.request, s.choice, s.reason);
    fields(archive, s.error);
    archive(s.statistics);
}
template <class Archive, Is<EngineEvents> S>
void fields(Archive& archive, S& s) {
    archive(s.admitted, s.progress, s.prompt_scores, s.runs, s.finished, s.tokens, s.logprobs);
}

template <class Archive, Is<PromptImage> S>
void span_fields(Archive& archive, S& s) {
    archive(s.first, s.count, s.grid_height, s.grid_width, s.content_hash);
}

// A canvas that several images share crosses once.
void fields(MessageWriter& archive, const std::vector<PromptImage>& images) {
    archive(static_cast<std::uint32_t>(images.size()));
    for (std::size_t i = 0; i < images.size(); ++i) {
        span_fields(archive, images[i]);
        std::size_t same = 0;
        while (images[same].canvas != images[i].canvas) {
            ++same;
        }
        archive(static_cast<std::uint32_t>(same));
        if (same == i) fields(archive, *images[i].canvas);
    }
}
void fields(MessageReader& archive, std::vector<PromptImage>& images) {
    std::uint32_t count = 0;
    archive(count);
    images.clear();
    for (std::uint32_t i = 0; i < count && archive.ok(); ++i) {
        PromptImage& image = images.emplace_back();
        span_fields(archive, image);
        std::uint32_t same = 0;
        archive(same);
        if (!archive.ok() || same > i) return archive.refuse();
        if (same < i) {
            image.canvas = images[same].canvas;
            continue;
        }
        auto canvas = std::make_shared<ImageCanvas>();
        fields(archive, *canvas);
        image.canvas = std::move(canvas);
    }
}

template <class Archive, Is<GenerationRequest> S>
void fields(Archive& archive, S& s) {
    archive(s.prompt);
    fields(archive, s.images);
    archive(s.sampling, s.choices, s.max_tokens, s.min_tokens, s.ignore_eos, s.extra_stop_tokens,
            s.thinking_budget, s.prompt_logprobs, s.loop_guard, s.draft, s.use_cache,
            s.report_progress, s.cache_salt, s.priority, s.deadline);
}

template <class Archive, Is<Hello> S>
void fields(Archive& archive, S& s) {
    archive(s.build);
}
template <class Archive, Is<Stage> S>
void fields(Archive& archive, S& s) {
    archive(s.name);
}
template <class Archive, Is<Ready> S>
void fields(Archive& archive, S& s) {
    archive(s.description);
}
template <class Archive, Is<Refused> S>
void fields(Archive& archive, S& s) {
    fields(archive, s.error);
}
template <class Archive, Is<Events> S>
void fields(Archive& archive, S& s) {
    archive(s.sink, s.events);
}
template <class Archive, Is<Rejected> S>
void fields(Archive& archive, S& s) {
    archive(s.request);
    fields(archive, s.error);
}
template <class Archive, Is<StatusReport> S>
void fields(Archive& archive, S& s) {
    archive(s.status);
}
template <class Archive, Is<Submit> S>
void fields(Archive& archive, S& s) {
    archive(s.sink, s.request, s.content, s.rules);
}
template <class Archive, Is<Cancel> S>
void fields(Archive& archive, S& s) {
    archive(s.request, s.choice);
}

namespace {

template <class T>
Message framed(MessageKind kind, const T& message) {
    MessageWriter writer;
    writer(std::uint32_t{0}, static_cast<std::uint8_t>(kind));
    fields(writer, message);
    Message frame = writer.take();
    const auto length = static_cast<std::uint32_t>(frame.size() - sizeof(std::uint32_t));
    std::memcpy(frame.data(), &length, sizeof length);
    return frame;
}

template <class T>
bool read_fields(std::span<const std::uint8_t> bytes, T& message) {
    MessageReader reader(bytes);
    fields(reader, message);
    return reader.done();
}

bool lies_within(std::uint64_t first, std::uint64_t count, std::size_t size) {
    return first + count <= size;
}

// An id of the linker over what it made (NT_GNU_BUILD_ID of the main program).
int find_build(dl_phdr_info* program, std::size_t, void* result) {
    constexpr std::uint32_t build_note = 3;
    for (int i = 0; i < program->dlpi_phnum; ++i) {
        const auto& header = program->dlpi_phdr[i];
        if (header.p_type != PT_NOTE) continue;
        // The loader gives addresses as numbers.  NOLINTNEXTLINE(performance-no-int-to-ptr)
        const auto* at = reinterpret_cast<const std::uint8_t*>(program->dlpi_addr + header.p_vaddr);
        const auto* const end = at + header.p_memsz;
        while (at + 12 <= end) {
            std::uint32_t sizes[3];  // of the name, of the content; type
            std::memcpy(sizes, at, sizeof sizes);
            const auto* const content = at + 12 + (sizes[0] + 3) / 4 * 4;
            if (sizes[2] == build_note && content + sizes[1] <= end) {
                for (std::uint32_t k = 0; k < sizes[1]; ++k) {
                    constexpr char digits[] = "0123456789abcdef";
                    auto& text = *static_cast<std::string*>(result);
                    text += digits[content[k] >> 4];
                    text += digits[content[k] & 15];
                }
                return 1;
            }
            at = content + (sizes[1] + 3) / 4 * 4;
        }
    }
    return 1;  // the first is the program itself
}

}  // namespace

Message frame_of(const Hello& message) {
    return framed(MessageKind::hello, message);
}
Message frame_of(const Stage& message) {
    return framed(MessageKind::stage, message);
}
Message frame_of(const Ready& message) {
    return framed(MessageKind::ready, message);
}
Message frame_of(const Refused& message) {
    return framed(MessageKind::refused, message);
}
Message frame_of(const Events& message) {
    return framed(MessageKind::events, message);
}
Message frame_of(const Rejected& message) {
    return framed(MessageKind::rejected, message);
}
Message frame_of(const StatusReport& message) {
    return framed(MessageKind::status, message);
}
Message frame_of(const Submit& message) {
    return framed(MessageKind::submit, message);
}
Message frame_of(const Cancel& message) {
    return framed(MessageKind::cancel, message);
}

bool read(std::span<const std::uint8_t> bytes, Hello& message) {
    return read_fields(bytes, message);
}
bool read(std::span<const std::uint8_t> bytes, Stage& message) {
    return read_fields(bytes, message);
}
bool read(std::span<const std::uint8_t> bytes, Ready& message) {
    return read_fields(bytes, message);
}
bool read(std::span<const std::uint8_t> bytes, Refused& message) {
    return read_fields(bytes, message);
}
bool read(std::span<const std::uint8_t> bytes, Events& message) {
    if (!read_fields(bytes, message)) return false;
    const EngineEvents& events = message.events;
    const std::size_t logprobs = events.logprobs.size();
    return std::all_of(events.runs.begin(), events.runs.end(),
                       [&](const EngineEvents::Tokens& run) {
                           return lies_within(run.first, run.count, events.tokens.size()) &&
                                  (!run.has_logprobs ||
                                   lies_within(run.first_logprob, run.count, logprobs));
                       }) &&
           std::all_of(events.prompt_scores.begin(), events.prompt_scores.end(),
                       [&](const EngineEvents::PromptScores& scores) {
                           return lies_within(scores.first_logprob, scores.count, logprobs);
                       }) &&
           std::all_of(events.finished.begin(), events.finished.end(),
                       [](const EngineEvents::Finished& finished) {
                           return (finished.reason == FinishReason::failed) ==
                                  finished.error.has_value();
                       });
}
bool read(std::span<const std::uint8_t> bytes, Rejected& message) {
    return read_fields(bytes, message);
}
bool read(std::span<const std::uint8_t> bytes, StatusReport& message) {
    return read_fields(bytes, message);
}
bool read(std::span<const std::uint8_t> bytes, Submit& message) {
    return read_fields(bytes, message);
}
bool read(std::span<const std::uint8_t> bytes, Cancel& message) {
    return read_fields(bytes, message);
}

const std::string& own_build() {
    static const std::string build = [] {
        std::string text;
        dl_iterate_phdr(find_build, &text);
        return text.empty() ? std::string("without an id") : text;
    }();
    return build;
}

}  // namespace percheron::parallel
