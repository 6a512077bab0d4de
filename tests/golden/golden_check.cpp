#include "golden/golden_check.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <vector>

#include "cache/cache_store.h"
#include "golden/picture_check.h"
#include "model/network.h"
#include "ops/composed_backend.h"
#include "support/sequence_runner.h"

namespace percheron::tests {
namespace {

double mean_of(const float* values, std::size_t n) {
    return std::accumulate(values, values + n, 0.0) / static_cast<double>(n);
}

double rms_around(const float* values, std::size_t n, double centre) {
    double squares = 0;
    for (std::size_t i = 0; i < n; ++i) {
        squares += (values[i] - centre) * (values[i] - centre);
    }
    return std::sqrt(squares / static_cast<double>(n));
}

// max|ours - golden| / RMS(golden).
double ratio_of(const float* ours, const float* golden, std::size_t n, bool centred) {
    const double our_centre = centred ? mean_of(ours, n) : 0.0;
    const double golden_centre = centred ? mean_of(golden, n) : 0.0;
    double worst = 0;
    for (std::size_t i = 0; i < n; ++i) {
        const double difference = (ours[i] - our_centre) - (golden[i] - golden_centre);
        // Not max(): a NaN must win.
        if (!(std::fabs(difference) <= worst)) worst = std::fabs(difference);
    }
    return worst / rms_around(golden, n, golden_centre);
}

std::size_t top_of(const float* values, std::size_t n) {
    return static_cast<std::size_t>(std::max_element(values, values + n) - values);
}

// (largest - second largest) / RMS of the centred values.
double relative_gap(const float* values, std::size_t n) {
    const std::size_t top = top_of(values, n);
    double second = -INFINITY;
    for (std::size_t i = 0; i < n; ++i) {
        if (i != top) second = std::max<double>(second, values[i]);
    }
    return (values[top] - second) / rms_around(values, n, mean_of(values, n));
}

constexpr double clear_gap = 2e-3;
constexpr double greedy_gap = 1e-2;
constexpr double pool_gap = 1e-4;

// What the network leaves behind for one prompt.
struct PromptRun {
    std::vector<float> logits;               // [T, vocabulary]
    std::vector<std::vector<float>> layers;  // per layer [T, hidden]
    std::vector<float> hidden;               // [T, hidden]
    std::vector<std::vector<std::vector<std::uint32_t>>>
        selected;  // per sparse layer, per position
};

class PromptCheck {
  public:
    PromptCheck(const model::ModelConfig& config, model::Network& network, ops::Backend& backend,
                const GoldenFile& golden, const GoldenOptions& options, std::string prompt,
                std::vector<float> features)
        : config_(config),
          network_(network),
          backend_(backend),
          golden_(golden),
          options_(options),
          prompt_(std::move(prompt)),
          features_(std::move(features)) {
        for (const int id : golden.ids(prompt_)) {
            ids_.push_back(TokenId(id));
        }
    }

    Result<GoldenFigures> run() {
        const std::size_t reply = tensor("f32.greedy") ? tensor("f32.greedy")->values.size() : 0;
        const auto count = static_cast<std::uint32_t>((ids_.size() + reply) / ops::page_tokens + 1);
        PERCHERON_ASSIGN(const DType kv_dtype,
                         cache::kv_dtype_of(options_.kv_dtype, backend_.arithmetic()));
        PERCHERON_ASSIGN(const auto caches,
                         cache::CacheStore::create(cache::CacheShape::of(config_, kv_dtype), count,
                                                   1, backend_));
        std::vector<PageId> pages;
        for (std::uint32_t page = count; page > 0; --page) {
            pages.push_back(PageId(page - 1));
        }
        SequenceRunner runner(network_, caches->views(), RequestSlot(0), pages);
        const std::vector<ops::EmbeddingOverride> overrides = picture_rows();
        if (overrides.size() * config_.hidden != features_.size()) {
            return Error(ErrorCode::internal,
                         prompt_ + ": has " + std::to_string(overrides.size()) +
                             " placeholders for " + std::to_string(features_.size()) + " numbers");
        }
        runner.overrides = overrides;
        PERCHERON_TRY(compute(runner));

        figures_.prompts = 1;
        compare_logits();
        compare_tops();
        compare_last();
        compare_layers();
        compare_states(caches->views());
        compare_pools();
        if (reply > 0) PERCHERON_TRY(compare_greedy(runner));
        return figures_;
    }

  private:
    const GoldenTensor* tensor(const std::string& name) const {
        return golden_.find(prompt_ + "." + name);
    }
    const float* our_logits(std::size_t position) const {
        return run_.logits.data() + position * config_.vocabulary;
    }

    // What stands in the place of image placeholders.
    std::vector<ops::EmbeddingOverride> picture_rows() const {
        std::vector<ops::EmbeddingOverride> overrides;
        for (std::size_t row = 0; row < ids_.size(); ++row) {
            if (ids_[row] != config_.image_token) continue;
            overrides.push_back({static_cast<std::uint32_t>(row),
                                 features_.data() + overrides.size() * config_.hidden});
        }
        return overrides;
    }

    Status compute(SequenceRunner& runner) {
        run_.layers.resize(config_.layers());
        const auto sparse_layers = static_cast<std::size_t>(std::count(
            config_.mixers.begin(), config_.mixers.end(), model::MixerKind::sparse_attention));
        run_.selected.resize(sparse_layers);
        std::size_t selections = 0;
        auto* const composed = dynamic_cast<ops::ComposedBackend*>(&backend_);
        if (composed != nullptr) {
            composed->observe_selections([&](const ops::SelectTokens& op) {
                auto& layer = run_.selected[selections++ % sparse_layers];
                for (std::size_t row = 0; row < op.counts.size(); ++row) {
                    const std::uint32_t* const first = op.positions.row(row);
                    layer.emplace_back(first, first + op.counts[row]);
                }
            });
        }
        runner.after_step = [&](std::size_t) {
            for (std::size_t layer = 0; layer < config_.layers(); ++layer) {
                append(network_.tap(layer), run_.layers[layer]);
            }
            append(network_.hidden(), run_.hidden);
        };
        auto logits = runner.prefill(ids_, options_.chunk);
        runner.after_step = nullptr;
        if (composed != nullptr) composed->observe_selections(nullptr);
        PERCHERON_ASSIGN(run_.logits, std::move(logits));
        return {};
    }

    void append(const ops::Activations& rows, std::vector<float>& out) {
        const std::size_t before = out.size();
        out.resize(before + rows.rows * rows.columns);
        backend_.read(rows, out.data() + before);
    }

    // The positions whose logits are stored whole: those listed, or the last ones.
    std::vector<std::size_t> whole_rows() const {
        const GoldenTensor* const golden = tensor("f32.logits");
        if (golden == nullptr) return {};
        std::vector<std::size_t> positions(golden->rows());
        if (const GoldenTensor* const rows = tensor("f32.logit_rows")) {
            std::copy(rows->values.begin(), rows->values.end(), positions.begin());
        } else {
            std::iota(positions.begin(), positions.end(), ids_.size() - golden->rows());
        }
        return positions;
    }

    void compare_logits() {
        const GoldenTensor* const golden = tensor("f32.logits");
        const std::size_t vocabulary = config_.vocabulary;
        const std::vector<std::size_t> positions = whole_rows();
        for (std::size_t i = 0; i < positions.size(); ++i) {
            const float* const ours = our_logits(positions[i]);
            figures_.logits.add(ratio_of(ours, golden->row(i), vocabulary, true));
            compare_top(ours, top_of(golden->row(i), vocabulary),
                        relative_gap(golden->row(i), vocabulary));
        }
    }

    // Positions of which only the largest logits are stored.
    void compare_tops() {
        const GoldenTensor* const ids = tensor("f32.top4_ids");
        const GoldenTensor* const values = tensor("f32.top4_logits");
        if (ids == nullptr || values == nullptr) return;
        const std::vector<std::size_t> whole = whole_rows();
        for (std::size_t row = 0; row < ids->rows(); ++row) {
            if (std::find(whole.begin(), whole.end(), row) != whole.end()) continue;
            const float* const ours = our_logits(row);
            const double rms =
                rms_around(ours, config_.vocabulary, mean_of(ours, config_.vocabulary));
            compare_top(ours, static_cast<std::size_t>(ids->row(row)[0]),
                        (values->row(row)[0] - values->row(row)[1]) / rms);
        }
    }

    void compare_top(const float* ours, std::size_t golden_top, double gap) {
        const bool agrees = top_of(ours, config_.vocabulary) == golden_top;
        ++figures_.positions;
        figures_.top_token.add(agrees);
        if (gap > clear_gap) figures_.clear_top_token.add(agrees);
    }

    void compare_last() {
        const GoldenTensor* const ids = tensor("f32.last_ids");
        const GoldenTensor* const values = tensor("f32.last_logits");
        if (ids == nullptr || values == nullptr) return;
        const float* const ours = our_logits(ids_.size() - 1);
        double worst = 0;
        for (std::size_t i = 0; i < ids->values.size(); ++i) {
            const double difference =
                ours[static_cast<std::size_t>(ids->values[i])] - values->values[i];
            if (!(std::fabs(difference) <= worst)) worst = std::fabs(difference);
        }
        const std::size_t vocabulary = config_.vocabulary;
        figures_.last_logits.add(worst / rms_around(ours, vocabulary, mean_of(ours, vocabulary)));
        if (tensor("f32.logits") == nullptr && tensor("f32.top4_ids") == nullptr) {
            const double rms = rms_around(ours, vocabulary, mean_of(ours, vocabulary));
            compare_top(ours, static_cast<std::size_t>(ids->values[0]),
                        (values->values[0] - values->values[1]) / rms);
        }
    }

    void compare_rows(const std::vector<float>& ours, const float* golden, Difference& out) {
        const std::size_t hidden = config_.hidden;
        for (std::size_t row = 0; row < ids_.size(); ++row) {
            out.add(ratio_of(ours.data() + row * hidden, golden + row * hidden, hidden, false));
        }
    }

    // One entry a layer, or transformers' list: what enters each layer, then the normed end.
    void compare_layers() {
        if (const GoldenTensor* const hidden = tensor("f32.hidden")) {
            compare_rows(run_.hidden, hidden->values.data(), figures_.hidden);
        }
        const GoldenTensor* const golden = tensor("f32.layers");
        if (golden == nullptr) return;
        const std::size_t layers = config_.layers();
        if (golden->rows() == layers) {
            for (std::size_t layer = 0; layer < layers; ++layer) {
                compare_rows(run_.layers[layer], golden->row(layer), figures_.layers);
            }
            return;
        }
        for (std::size_t layer = 0; layer + 1 < layers; ++layer) {
            compare_rows(run_.layers[layer], golden->row(layer + 1), figures_.layers);
        }
        compare_rows(run_.hidden, golden->row(layers), figures_.hidden);
        if (const GoldenTensor* const own = tensor("own.layers")) {
            compare_rows(run_.layers[layers - 1], own->row(layers - 1), figures_.layers);
        }
    }

    const GoldenTensor* state_tensor(const std::string& name, std::size_t layer) const {
        const std::string index = std::to_string(layer);
        const GoldenTensor* const found = tensor("f32." + name + index);
        return found != nullptr ? found : tensor("f32." + name + "_layer" + index);
    }

    void compare_states(const model::CacheViews& caches) {
        std::size_t kda_layer = 0;
        for (std::size_t layer = 0; layer < config_.layers(); ++layer) {
            if (config_.mixers[layer] != model::MixerKind::kda) continue;
            const ops::KdaSlots& slots = caches.kda[kda_layer++];
            if (const GoldenTensor* const state = state_tensor("kda_state", layer)) {
                const std::vector<float> ours = from_backend(slots.state, state->values.size());
                figures_.kda_state.add(
                    ratio_of(ours.data(), state->values.data(), ours.size(), false));
            }
            if (const GoldenTensor* const conv = state_tensor("conv_state", layer)) {
                figures_.conv_state.add(conv_ratio(slots, *conv));
            }
        }
    }

    std::vector<float> from_backend(float* data, std::size_t count) {
        std::vector<float> values(count);
        backend_.read({data, DType::f32, 1, count}, values.data());
        return values;
    }

    // Golden: [channels, taps], newest last, zeros before the sequence.  Ours: rows by position.
    double conv_ratio(const ops::KdaSlots& slots, const GoldenTensor& golden) {
        const std::size_t channels = golden.rows();
        const std::size_t taps = golden.row_size();
        const std::vector<float> rows = from_backend(slots.conv, slots.ring * channels);
        std::vector<float> ours(channels * taps, 0.0f);
        for (std::size_t tap = 0; tap < taps; ++tap) {
            if (ids_.size() + tap < taps) continue;
            const std::size_t position = ids_.size() + tap - taps;
            for (std::size_t c = 0; c < channels; ++c) {
                ours[c * taps + tap] = rows[position % slots.ring * channels + c];
            }
        }
        return ratio_of(ours.data(), golden.values.data(), ours.size(), false);
    }

    void compare_pools() {
        std::size_t sparse_layer = 0;
        for (std::size_t layer = 0; layer < config_.layers(); ++layer) {
            if (config_.mixers[layer] == model::MixerKind::kda) continue;
            const auto& selected = run_.selected[sparse_layer++];
            const std::string index = std::to_string(layer);
            const GoldenTensor* const pools = tensor("f32.pools" + index);
            const GoldenTensor* const gaps = tensor("f32.pool_gap" + index);
            if (pools == nullptr || gaps == nullptr || selected.size() != ids_.size()) continue;
            for (std::size_t row = 0; row < ids_.size(); ++row) {
                if (!(gaps->values[row] > pool_gap)) continue;
                figures_.pools.add(same_pools(selected[row], *pools, row));
            }
        }
    }

    bool same_pools(const std::vector<std::uint32_t>& positions, const GoldenTensor& pools,
                    std::size_t row) const {
        std::vector<float> ours(pools.row_size(), 0.0f);
        for (const std::uint32_t position : positions) {
            const std::size_t pool = position / config_.index_pool;
            const bool complete = (pool + 1) * config_.index_pool <= row + 1;
            if (complete) ours[pool] = 1.0f;
        }
        return std::equal(ours.begin(), ours.end(), pools.row(row));
    }

    // Token by token in decode class, each step fed the golden token.
    Status compare_greedy(SequenceRunner& runner) {
        const GoldenTensor* const golden = tensor("f32.greedy");
        const GoldenTensor* const gaps = tensor("f32.greedy_gap");
        std::vector<float> logits(our_logits(ids_.size() - 1),
                                  our_logits(ids_.size() - 1) + config_.vocabulary);
        for (std::size_t i = 0; i < golden->values.size(); ++i) {
            const double gap =
                gaps != nullptr ? gaps->values[i] : relative_gap(logits.data(), logits.size());
            const auto wanted = static_cast<std::size_t>(golden->values[i]);
            if (!(gap > greedy_gap)) return {};
            figures_.greedy.add(top_of(logits.data(), logits.size()) == wanted);
            const auto next = static_cast<TokenId>(wanted);
            PERCHERON_ASSIGN(logits, runner.decode({&next, 1}));
        }
        return {};
    }

    const model::ModelConfig& config_;
    model::Network& network_;
    ops::Backend& backend_;
    const GoldenFile& golden_;
    const GoldenOptions& options_;
    std::string prompt_;
    std::vector<float> features_;  // of the prompt's pictures
    std::vector<TokenId> ids_;
    PromptRun run_;
    GoldenFigures figures_;
};

bool has_pictures(const GoldenFile& golden, const model::ModelConfig& config,
                  const std::string& prompt) {
    const std::vector<int> ids = golden.ids(prompt);
    return std::find(ids.begin(), ids.end(), to_int(config.image_token)) != ids.end();
}

std::string line(const char* name, const Difference& d) {
    char text[160];
    std::snprintf(text, sizeof text, "  %-18s max|d|/RMS %.3g, mean %.3g, over %zu\n", name,
                  d.worst, d.mean(), d.positions);
    return text;
}

std::string line(const char* name, const Agreement& a) {
    char text[160];
    std::snprintf(text, sizeof text, "  %-18s %zu of %zu (%.2f %%)\n", name, a.agreeing, a.compared,
                  100.0 * a.share());
    return text;
}

}  // namespace

void Difference::add(double ratio) {
    ++positions;
    sum += ratio;
    if (!(ratio <= worst)) worst = ratio;
}

void Difference::add(const Difference& other) {
    positions += other.positions;
    sum += other.sum;
    if (!(other.worst <= worst)) worst = other.worst;
}

void GoldenFigures::add(const GoldenFigures& other) {
    positions += other.positions;
    prompts += other.prompts;
    logits.add(other.logits);
    last_logits.add(other.last_logits);
    top_token.add(other.top_token);
    clear_top_token.add(other.clear_top_token);
    greedy.add(other.greedy);
    pools.add(other.pools);
    features.add(other.features);
    layers.add(other.layers);
    hidden.add(other.hidden);
    kda_state.add(other.kda_state);
    conv_state.add(other.conv_state);
}

std::string GoldenFigures::to_string() const {
    std::string text = std::to_string(prompts) + " prompts, " + std::to_string(positions) +
                       " positions with golden top tokens\n";
    const auto difference = [&](const char* name, const Difference& d) {
        if (d.positions > 0) text += line(name, d);
    };
    difference("logits", logits);
    difference("last top logits", last_logits);
    difference("vision features", features);
    difference("layer outputs", layers);
    difference("final hidden", hidden);
    difference("KDA state", kda_state);
    difference("conv state", conv_state);
    text += line("top token", top_token);
    text += line("top, clear gap", clear_top_token);
    char share[120];
    std::snprintf(share, sizeof share, "  %-18s %zu of %zu positions (%.2f %%)\n", "clear gaps",
                  clear_top_token.compared, positions,
                  positions == 0 ? 0.0
                                 : 100.0 * static_cast<double>(clear_top_token.compared) /
                                       static_cast<double>(positions));
    text += share;
    if (greedy.compared > 0) text += line("greedy tokens", greedy);
    if (pools.compared > 0) text += line("selected pools", pools);
    return text;
}

Result<GoldenFigures> check_golden(checkpoint::Checkpoint& checkpoint, ops::Backend& backend,
                                   const GoldenFile& golden, const GoldenOptions& options) {
    const model::ModelConfig& config = checkpoint.config();
    model::NetworkOptions network_options;
    network_options.max_rows = options.chunk;
    network_options.max_logit_rows = options.chunk;
    PERCHERON_ASSIGN(const auto network,
                     model::Network::load(config, checkpoint, backend, network_options));
    std::vector<std::size_t> layers(config.layers());
    std::iota(layers.begin(), layers.end(), std::size_t{0});
    PERCHERON_TRY(network->set_taps(layers));

    PERCHERON_ASSIGN(PictureCheck pictures,
                     PictureCheck::make(checkpoint, backend, golden.folder()));
    GoldenFigures total;
    PERCHERON_ASSIGN(const std::vector<double> features, pictures.compare(golden));
    for (const double ratio : features) {
        total.features.add(ratio);
    }
    for (const std::string& prompt : golden.prompts()) {
        if (!options.only.empty() && prompt != options.only) continue;
        if (backend.vision() == nullptr && has_pictures(golden, config, prompt)) continue;
        PERCHERON_ASSIGN(std::vector<float> rows, pictures.features_of_prompt(prompt));
        PromptCheck check(config, *network, backend, golden, options, prompt, std::move(rows));
        PERCHERON_ASSIGN(const GoldenFigures figures, check.run());
        if (options.progress) options.progress(prompt, figures);
        total.add(figures);
    }
    return total;
}

std::vector<std::string> shortcomings(const GoldenFigures& figures, ops::Arithmetic arithmetic,
                                      bool fp8_caches) {
    std::vector<std::string> sentences;
    const auto require = [&](bool met, std::string sentence) {
        if (!met) sentences.push_back(std::move(sentence));
    };
    require(figures.prompts + figures.features.positions > 0, "Nothing golden was compared.");
    if (arithmetic == ops::Arithmetic::standard) {
        const std::size_t per_cent = fp8_caches ? 2 : 1;  // that may differ
        const std::string agreeing = std::to_string(100 - per_cent) + " % of the positions";
        require(figures.clear_top_token.share() >= 1.0 - 0.01 * static_cast<double>(per_cent),
                "The top token agrees at fewer than " + agreeing + " with a clear gap.");
        // Of few positions as many may be near ties by chance.
        const std::size_t few = 3;
        const std::size_t differing = figures.top_token.compared - figures.top_token.agreeing;
        require(differing <= std::max(few, figures.top_token.compared * per_cent / 100),
                "The top token agrees at fewer than " + agreeing + ".");
        return sentences;
    }
    constexpr double limit = 1e-3;
    const auto close = [&](const char* name, const Difference& d) {
        require(d.worst <= limit,
                std::string("The difference of ") + name + " exceeds 1e-3 of the golden RMS.");
    };
    close("the logits", figures.logits);
    close("the last position's top logits", figures.last_logits);
    close("the vision features", figures.features);
    close("the layers' outputs", figures.layers);
    close("the final hidden rows", figures.hidden);
    close("the KDA states", figures.kda_state);
    close("the convolution states", figures.conv_state);
    require(figures.clear_top_token.all(), "A top token with a clear gap differs.");
    require(static_cast<double>(figures.clear_top_token.compared) >=
                0.98 * static_cast<double>(figures.positions),
            "Fewer than 98 % of the positions have a clear top token.");
    require(figures.greedy.all(), "A greedy continuation differs.");
    require(figures.pools.all(), "A selection of pools with a clear gap differs.");
    return sentences;
}

}  // namespace percheron::tests
