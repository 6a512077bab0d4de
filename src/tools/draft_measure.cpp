#include "tools/draft_measure.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <condition_variable>
#include <ctime>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <utility>

#include <nlohmann/json.hpp>

namespace percheron::tools {
namespace {

using SortedJson = nlohmann::json;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t measuring_seed = 20231;

// Waits for the ends of a number of replies; tokens count while all of them are decoding.
class Wave final : public EngineEventSink {
  public:
    explicit Wave(std::size_t streams) : streams_(streams) {}

    void on_events(EngineEvents& events) override {
        const std::lock_guard lock(mutex_);
        const auto now = Clock::now();
        for (const EngineEvents::Tokens& run : events.runs) {
            if (started_.size() == streams_) {
                tokens_ += run.count;
                until_ = now;
                cpu_until_ = std::clock();
            } else if (started_.insert(to_int(run.request)).second && started_.size() == streams_) {
                from_ = until_ = now;
                cpu_from_ = cpu_until_ = std::clock();
            }
        }
        for (EngineEvents::Finished& finished : events.finished) {
            ends_.push_back(std::move(finished));
        }
        changed_.notify_all();
    }
    // Of `accepted` replies.
    std::vector<EngineEvents::Finished>& wait(std::size_t accepted) {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [&] { return ends_.size() == accepted; });
        return ends_;
    }
    std::uint64_t tokens() const { return tokens_; }
    double seconds() const { return std::chrono::duration<double>(until_ - from_).count(); }
    double cpu_seconds() const {
        return static_cast<double>(cpu_until_ - cpu_from_) / CLOCKS_PER_SEC;
    }

  private:
    std::size_t streams_;
    std::mutex mutex_;
    std::condition_variable changed_;
    std::set<std::uint64_t> started_;
    std::vector<EngineEvents::Finished> ends_;
    std::uint64_t tokens_ = 0;
    Clock::time_point from_, until_;
    std::clock_t cpu_from_ = 0, cpu_until_ = 0;
};

struct Prompt {
    std::vector<TokenId> ids;
    bool ends = false;  // where the model ends it
    std::uint64_t seed = 0;
};

std::map<RoundsOf, std::vector<Prompt>> prompts_of(const std::vector<MeasuredText>& texts,
                                                   const MeasureOptions& options) {
    std::map<RoundsOf, std::vector<Prompt>> prompts;
    for (std::size_t i = 0; i < texts.size(); ++i) {
        const MeasuredText& text = texts[i];
        const auto add = [&](std::uint32_t depth, std::uint32_t tokens, bool ends) {
            Prompt prompt;
            prompt.ids.assign(text.ids.begin(), text.ids.begin() + tokens);
            prompt.ends = ends;
            prompt.seed = measuring_seed + i;
            prompts[{text.kind, text.language, depth}].push_back(std::move(prompt));
        };
        if (text.prompt_tokens > 0) {
            add(0, text.prompt_tokens, true);
            continue;
        }
        for (const std::uint32_t depth : options.prompts) {
            if (text.ids.size() >= depth || options.prompts.size() == 1) {
                const auto size = static_cast<std::uint32_t>(text.ids.size());
                add(depth, std::min(depth, size), false);
            }
        }
    }
    return prompts;
}

Status reply_to(Engine& engine, std::span<const Prompt> prompts, const MeasureOptions& options,
                std::uint32_t most, Rounds& rounds) {
    Wave wave(prompts.size());
    std::size_t accepted = 0;
    std::optional<Error> failure;
    for (const Prompt& prompt : prompts) {
        GenerationRequest request;
        request.prompt = prompt.ids;
        request.sampling.temperature = options.temperature;
        request.sampling.top_p = options.top_p;
        request.sampling.seed = prompt.seed;
        request.max_tokens = most;
        request.ignore_eos = !prompt.ends;
        const Result<RequestId> id = engine.submit(std::move(request), wave);
        if (!id.ok()) {
            failure = id.error();
            break;
        }
        ++accepted;
    }
    for (EngineEvents::Finished& end : wave.wait(accepted)) {
        if (end.error) failure = std::move(end.error);
        rounds.add(end.statistics);
    }
    if (failure) return *failure;
    rounds.timed_tokens += wave.tokens();
    rounds.seconds += wave.seconds();
    rounds.cpu_seconds += wave.cpu_seconds();
    return {};
}

std::vector<std::string> names_of(const std::string& proposers) {
    std::vector<std::string> names;
    for (std::size_t at = 0; at < proposers.size();) {
        const std::size_t end = std::min(proposers.find('+', at), proposers.size());
        names.push_back(proposers.substr(at, end - at));
        at = end + 1;
    }
    return names;
}

// An engine of one setting, and what it was measured to do.
class SettingRun {
  public:
    SettingRun(std::size_t setting, std::uint32_t run) : measured_{setting, run, {}} {}

    Status load(const MeasureOptions& options, const Tokenizer& tokenizer) {
        LoadOptions load = options.load;
        load.draft = options.settings[measured_.setting];
        load.on_step = [this](const engine::StepRecord& step) {
            for (std::size_t i = 0; i < step.drafts_by.size(); ++i)
                drafts_[i] += step.drafts_by[i];
        };
        PERCHERON_ASSIGN(engine_, load_engine(load, tokenizer));
        names_ = names_of(engine_->description().proposer);
        return {};
    }

    // Comes back when the engine has nothing left to do for its start, which others must not
    // disturb.
    Status warm_up(std::span<const Prompt> wave, const MeasureOptions& options) {
        Rounds ignored;
        return reply_to(*engine_, wave, options, 1, ignored);
    }

    Status reply(const RoundsOf& what, std::span<const Prompt> wave,
                 const MeasureOptions& options) {
        Rounds& rounds = measured_.rounds[what];
        for (auto& drafts : drafts_)
            drafts = 0;
        // Prompts are found in the prefix cache when it counts: decoding is measured.
        PERCHERON_TRY(warm_up(wave, options));
        PERCHERON_TRY(reply_to(*engine_, wave, options, options.replies, rounds));
        for (std::size_t i = 0; i < names_.size(); ++i)
            rounds.drafted_by[names_[i]] += drafts_[i];
        return {};
    }

    MeasuredRun take() { return std::move(measured_); }

  private:
    // By proposer, counted on the engine's thread.
    std::array<std::atomic<std::uint64_t>, engine::StepRecord::most_proposers> drafts_{};
    std::unique_ptr<Engine> engine_;
    std::vector<std::string> names_;
    MeasuredRun measured_;
};

// Every setting replies to a wave of prompts before the next wave; another begins each time.
Status reply_in_turn(const std::map<RoundsOf, std::vector<Prompt>>& prompts,
                     const MeasureOptions& options,
                     std::span<const std::unique_ptr<SettingRun>> settings) {
    std::size_t turn = 0;
    for (const auto& [what, of_kind] : prompts) {
        for (std::size_t first = 0; first < of_kind.size(); first += options.streams, ++turn) {
            const auto wave = std::span(of_kind).subspan(
                first, std::min<std::size_t>(options.streams, of_kind.size() - first));
            for (std::size_t i = 0; i < settings.size(); ++i)
                PERCHERON_TRY(settings[(turn + i) % settings.size()]->reply(what, wave, options));
        }
    }
    return {};
}

}  // namespace

void Rounds::add(const ChoiceStatistics& statistics) {
    ++replies;
    rounds += statistics.draft_rounds;
    drafted += statistics.drafted_tokens;
    accepted += statistics.accepted_tokens;
    generated += statistics.generated_tokens;
    const auto& positions = statistics.accepted_per_position;
    if (accepted_per_position.size() < positions.size()) {
        accepted_per_position.resize(positions.size());
    }
    for (std::size_t i = 0; i < positions.size(); ++i)
        accepted_per_position[i] += positions[i];
    if (statistics.draft_rounds > 0) {
        tokens_a_round.push_back(1 + static_cast<double>(statistics.accepted_tokens) /
                                         statistics.draft_rounds);
    }
}

double Rounds::rate() const {
    return seconds > 0 ? static_cast<double>(timed_tokens) / seconds : 0;
}

double Rounds::mean_tokens() const {
    return rounds == 0 ? 1 : 1 + static_cast<double>(accepted) / static_cast<double>(rounds);
}

double Rounds::noise() const {
    return noise_of_halves(tokens_a_round);
}

double noise_of_halves(std::vector<double> values) {
    if (values.size() < 2) return 0;
    std::mt19937 random(1);
    constexpr int cuts = 200;
    double sum = 0;
    for (int cut = 0; cut < cuts; ++cut) {
        std::shuffle(values.begin(), values.end(), random);
        const auto half = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
        const double first =
            std::accumulate(values.begin(), half, 0.0) / static_cast<double>(half - values.begin());
        const double second =
            std::accumulate(half, values.end(), 0.0) / static_cast<double>(values.end() - half);
        sum += std::fabs(first - second) / 2;
    }
    return sum / cuts;
}

Result<std::vector<MeasuredText>> parse_measured_texts(std::string_view lines,
                                                       const Tokenizer& tokenizer) {
    std::vector<MeasuredText> texts;
    std::size_t number = 0;
    while (!lines.empty()) {
        const std::size_t end = std::min(lines.find('\n'), lines.size());
        const std::string_view line = lines.substr(0, end);
        lines.remove_prefix(std::min(end + 1, lines.size()));
        ++number;
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const auto broken = [number](const std::string& what) {
            return Error(ErrorCode::corrupt, "line " + std::to_string(number) + ": " + what);
        };
        const SortedJson json = SortedJson::parse(line, nullptr, false);
        if (!json.is_object()) return broken("is no JSON object");
        MeasuredText text;
        text.kind = json.value("kind", SortedJson("text")).is_string()
                        ? json.value("kind", SortedJson("text")).get<std::string>()
                        : "text";
        if (json.contains("language") && json["language"].is_string()) {
            text.language = json["language"].get<std::string>();
        }
        if (json.contains("prompt") && json["prompt"].is_string()) {
            text.ids = tokenizer.encode_trusted(json["prompt"].get<std::string>());
            text.prompt_tokens = static_cast<std::uint32_t>(text.ids.size());
        } else if (json.contains("ids") && json["ids"].is_array()) {
            for (const SortedJson& id : json["ids"]) {
                if (!id.is_number_integer()) return broken("`ids` holds something else");
                text.ids.push_back(TokenId(id.get<int>()));
            }
        } else if (json.contains("text") && json["text"].is_string()) {
            text.ids = tokenizer.encode(json["text"].get<std::string>());
        } else {
            return broken("needs `text`, `ids` or `prompt`");
        }
        if (text.ids.size() < 3) return broken("is too short to measure anything");
        texts.push_back(std::move(text));
    }
    return texts;
}

Result<DraftWish> parse_setting(std::string_view setting) {
    const std::size_t colon = std::min(setting.find(':'), setting.size());
    DraftWish wish;
    wish.proposer = setting.substr(0, colon);
    if (colon < setting.size()) {
        const std::string depth(setting.substr(colon + 1));
        if (depth.empty() || depth.size() > 3 ||
            depth.find_first_not_of("0123456789") != std::string::npos) {
            return Error(ErrorCode::invalid_argument,
                         "the setting " + std::string(setting) +
                             " is no proposer, or proposer and depth as in mtp:2");
        }
        wish.depth = static_cast<std::uint32_t>(std::stoul(depth));
    }
    return wish;
}

Result<std::vector<MeasuredRun>> measure_rounds(
    const std::vector<MeasuredText>& texts, const MeasureOptions& options,
    const Tokenizer& tokenizer, const std::function<void(std::string_view)>& progress) {
    const auto prompts = prompts_of(texts, options);
    const std::size_t settings = options.settings.size();
    const std::size_t together = options.interleaved ? settings : 1;
    std::vector<MeasuredRun> runs;
    for (std::uint32_t run = 0; run < options.runs; ++run) {
        for (std::size_t first = 0; first < settings; first += together) {
            std::vector<std::unique_ptr<SettingRun>> measured;
            for (std::size_t setting = first; setting < first + together; ++setting) {
                measured.push_back(std::make_unique<SettingRun>(setting, run));
                PERCHERON_TRY(measured.back()->load(options, tokenizer));
                PERCHERON_TRY(
                    measured.back()->warm_up(std::span(prompts.begin()->second).first(1), options));
            }
            PERCHERON_TRY(reply_in_turn(prompts, options, measured));
            for (const auto& setting : measured)
                runs.push_back(setting->take());
            progress("run " + std::to_string(runs.size()) + " of " +
                     std::to_string(options.runs * settings));
        }
    }
    return runs;
}

}  // namespace percheron::tools
