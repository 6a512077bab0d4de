#include "tools/draft_measure.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <numeric>
#include <random>

#include <nlohmann/json.hpp>

#include "cache/cache_store.h"
#include "model/mtp_layer.h"
#include "sampling/sampler.h"
#include "tools/devices.h"
#include "tools/model_source.h"

namespace percheron::tools {
namespace {

using SortedJson = nlohmann::json;

constexpr std::uint64_t measuring_seed = 20231;

// p over the whole vocabulary, zero for what top-p leaves out.
Status distribution(sampling::Sampler& sampler, const sampling::SamplingRow& row,
                    std::vector<double>& out) {
    PERCHERON_ASSIGN(const auto candidates, sampler.candidates(row));
    std::fill(out.begin(), out.end(), 0.0);
    double largest = -INFINITY;
    for (const auto& candidate : candidates)
        largest = std::max(largest, candidate.logit);
    double total = 0;
    for (const auto& candidate : candidates)
        total += std::exp(candidate.logit - largest);
    for (const auto& candidate : candidates) {
        out[static_cast<std::size_t>(to_int(candidate.id))] =
            std::exp(candidate.logit - largest) / total;
    }
    return {};
}

// Compares the layer with the trunk along texts.
class Comparison {
  public:
    Comparison(const MeasureOptions& options, std::size_t vocabulary)
        : sampler_(vocabulary), trunk_(vocabulary), layer_(vocabulary) {
        drawn_.temperature = options.temperature;
        drawn_.top_p = options.top_p;
        greedy_.temperature = 0;
    }

    Status compare(std::span<const float> trunk, std::span<const float> layer, Position position,
                   Agreement& agreement) {
        sampling::SamplingRow of_trunk;
        of_trunk.logits = trunk;
        of_trunk.parameters = &greedy_;
        of_trunk.position = position;
        of_trunk.noise = {measuring_seed, 0};
        sampling::SamplingRow of_layer = of_trunk;
        of_layer.logits = layer;
        PERCHERON_ASSIGN(const bool greedy, agree(of_trunk, of_layer));
        of_trunk.parameters = of_layer.parameters = &drawn_;
        PERCHERON_ASSIGN(const bool coupled, agree(of_trunk, of_layer));
        ++agreement.positions;
        agreement.greedy += greedy ? 1 : 0;
        agreement.coupled += coupled ? 1 : 0;
        double common = greedy ? 1 : 0;
        if (drawn_.temperature > 0) {
            PERCHERON_TRY(distribution(sampler_, of_trunk, trunk_));
            PERCHERON_TRY(distribution(sampler_, of_layer, layer_));
            common = 0;
            for (std::size_t v = 0; v < trunk_.size(); ++v) {
                common += std::min(trunk_[v], layer_[v]);
            }
        }
        agreement.classical += common;
        agreement.bound += common / (2 - common);  // (1 - d) / (1 + d)
        return {};
    }

  private:
    Result<bool> agree(const sampling::SamplingRow& one, const sampling::SamplingRow& other) {
        PERCHERON_ASSIGN(const TokenId first, sampler_.choose(one));
        PERCHERON_ASSIGN(const TokenId second, sampler_.choose(other));
        return first == second;
    }

    sampling::Sampler sampler_;
    SamplingParameters drawn_, greedy_;
    std::vector<double> trunk_, layer_;
};

// The trunk and its MTP layer over one text at a time.
class TextRunner {
  public:
    static constexpr std::uint32_t chunk = ops::page_tokens;

    Status load(const MeasureOptions& options) {
        PERCHERON_ASSIGN(source_, open_model(options.load.folder, options.load.threads));
        const model::ModelConfig& config = source_->config;
        PERCHERON_ASSIGN(backend_, make_backend({options.load.device, options.load.threads,
                                                 options.load.arithmetic},
                                                config, chunk));
        if (config.mtp_layers == 0 || backend_->mtp() == nullptr) return {};
        model::NetworkOptions rows;
        rows.max_rows = rows.max_logit_rows = chunk;
        PERCHERON_ASSIGN(trunk_, model::Network::load(config, *source_->weights, *backend_, rows));
        PERCHERON_ASSIGN(layer_,
                         model::MtpLayer::load(*trunk_, *source_->weights, *backend_, rows));
        PERCHERON_ASSIGN(const DType kv_dtype, cache::kv_dtype_of("auto", options.load.arithmetic));
        const std::uint32_t pages = cache::pages_for(options.tokens);
        PERCHERON_ASSIGN(caches_,
                         cache::CacheStore::create(cache::CacheShape::of(config, kv_dtype, 0, true),
                                                   pages, 1, *backend_, 0));
        for (std::uint32_t page = 0; page < pages; ++page)
            pages_.push_back(PageId(page));
        return {};
    }
    bool has_layer() const { return layer_ != nullptr; }
    std::size_t vocabulary() const { return source_->config.vocabulary; }

    Status run(std::span<const TokenId> ids, Comparison& comparison, Agreement& agreement) {
        const std::size_t width = vocabulary();
        std::vector<float> trunk, before;  // `before`: the layer's row for the chunk's first token
        for (Position first = 0; first + 1 < ids.size(); first += chunk) {
            const auto count =
                static_cast<std::uint32_t>(std::min<std::size_t>(chunk, ids.size() - 1 - first));
            std::vector<std::uint32_t> rows(count);
            std::iota(rows.begin(), rows.end(), 0u);
            ops::SequenceRows sequence;
            sequence.row_count = sequence.commit_rows = count;
            sequence.first_position = sequence.state_position = first;
            sequence.pages = pages_;
            ops::RowBatch batch;
            batch.numeric_class = ops::NumericClass::prefill;
            batch.sequences = {&sequence, 1};
            batch.logit_rows = rows;
            batch.tokens = ids.subspan(first, count);
            PERCHERON_ASSIGN(const auto of_trunk, trunk_->forward(batch, caches_->views()));
            trunk.assign(of_trunk.begin(), of_trunk.end());
            batch.tokens = ids.subspan(first + 1, count);
            PERCHERON_ASSIGN(const auto of_layer, layer_->forward(batch, trunk_->hidden(), rows,
                                                                  caches_->views().latent.back()));
            // Row t of the trunk and row t - 1 of the layer speak of the same token.
            for (std::uint32_t row = 0; row < count; ++row) {
                const std::span<const float> guess =
                    row == 0 ? std::span<const float>(before)
                             : of_layer.subspan((row - 1) * width, width);
                if (guess.empty()) continue;
                PERCHERON_TRY(comparison.compare(std::span(trunk).subspan(row * width, width),
                                                 guess, first + row + 1, agreement));
            }
            const auto last = of_layer.subspan((count - 1) * width, width);
            before.assign(last.begin(), last.end());
        }
        return {};
    }

  private:
    std::optional<ModelSource> source_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> trunk_;
    std::unique_ptr<model::MtpLayer> layer_;
    std::unique_ptr<cache::CacheStore> caches_;
    std::vector<PageId> pages_;
};

// Waits for the ends of replies and keeps their books.
class Books final : public EngineEventSink {
  public:
    void on_events(EngineEvents& events) override {
        const std::lock_guard lock(mutex_);
        for (EngineEvents::Finished& finished : events.finished) {
            ends_.push_back(std::move(finished));
        }
        changed_.notify_all();
    }
    EngineEvents::Finished wait_for_next() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return !ends_.empty(); });
        EngineEvents::Finished next = std::move(ends_.front());
        ends_.erase(ends_.begin());
        return next;
    }

  private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::vector<EngineEvents::Finished> ends_;
};

}  // namespace

void Agreement::add(const Agreement& other) {
    positions += other.positions;
    greedy += other.greedy;
    coupled += other.coupled;
    classical += other.classical;
    bound += other.bound;
}

void Rounds::add(const ChoiceStatistics& statistics) {
    rounds += statistics.draft_rounds;
    drafted += statistics.drafted_tokens;
    accepted += statistics.accepted_tokens;
    generated += statistics.generated_tokens;
    seconds += statistics.decode_seconds;
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

double Rounds::mean_tokens() const {
    return rounds == 0 ? 1 : 1 + static_cast<double>(accepted) / static_cast<double>(rounds);
}

double Rounds::noise() const {
    if (tokens_a_round.size() < 2) return 0;
    std::vector<double> values = tokens_a_round;
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

Result<DraftMeasure> measure_drafts(const std::vector<MeasuredText>& texts,
                                    const MeasureOptions& options, const Tokenizer& tokenizer,
                                    const std::function<void(std::string_view)>& progress) {
    DraftMeasure measure;
    {
        TextRunner runner;
        if (options.tokens > 0) PERCHERON_TRY(runner.load(options));
        Comparison comparison(options, runner.has_layer() ? runner.vocabulary() : 0);
        const bool wanted = options.tokens > 0 && runner.has_layer();
        for (std::size_t i = 0; wanted && i < texts.size(); ++i) {
            const auto ids = std::span(texts[i].ids);
            PERCHERON_TRY(runner.run(ids.first(std::min<std::size_t>(ids.size(), options.tokens)),
                                     comparison, measure.agreement[texts[i].kind]));
            progress("text " + std::to_string(i + 1) + " of " + std::to_string(texts.size()));
        }
    }
    PERCHERON_ASSIGN(const auto engine, load_engine(options.load, tokenizer));
    for (std::size_t i = 0; i < texts.size(); ++i) {
        Books books;
        GenerationRequest request;
        const std::size_t length = texts[i].prompt_tokens > 0
                                       ? texts[i].prompt_tokens
                                       : std::min<std::size_t>(texts[i].ids.size(), options.prompt);
        request.prompt.assign(texts[i].ids.begin(),
                              texts[i].ids.begin() + static_cast<std::ptrdiff_t>(length));
        request.sampling.temperature = options.temperature;
        request.sampling.top_p = options.top_p;
        request.sampling.seed = measuring_seed + i;
        request.max_tokens = options.replies;
        request.ignore_eos = texts[i].prompt_tokens == 0;
        PERCHERON_TRY(engine->submit(request, books));
        const EngineEvents::Finished end = books.wait_for_next();
        if (end.error) return *end.error;
        measure.rounds[texts[i].kind].add(end.statistics);
        progress("reply " + std::to_string(i + 1) + " of " + std::to_string(texts.size()));
    }
    return measure;
}

}  // namespace percheron::tools
