#include "tools/draft_agreement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "cache/cache_store.h"
#include "model/mtp_layer.h"
#include "sampling/sampler.h"
#include "tools/devices.h"
#include "tools/model_source.h"

namespace percheron::tools {
namespace {

constexpr std::uint64_t agreement_seed = 20231;

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
    Comparison(const AgreementOptions& options, std::size_t vocabulary)
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
        of_trunk.noise = {agreement_seed, 0};
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
class TextRunner final : public AgreementRunner {
  public:
    Status start(const AgreementOptions& options) {
        PERCHERON_ASSIGN(source_, open_model(options.load.folder, options.load.threads,
                                             options.load.fp4_activations));
        const model::ModelConfig& config = source_->config;
        PERCHERON_ASSIGN(backend_, make_backend({options.load.device, options.load.threads,
                                                 options.load.arithmetic},
                                                config, chunk));
        if (config.mtp_layers == 0 || backend_->mtp() == nullptr) return {};
        comparison_.emplace(options, config.vocabulary);
        model::NetworkOptions rows;
        rows.max_rows = rows.max_logit_rows = chunk;
        PERCHERON_ASSIGN(trunk_, model::Network::load(config, *source_->weights, *backend_, rows));
        PERCHERON_ASSIGN(layer_,
                         model::MtpLayer::load(*trunk_, *source_->weights, *backend_, rows));
        PERCHERON_ASSIGN(const DType kv_dtype,
                         cache::kv_dtype_of(options.load.kv_dtype, options.load.arithmetic));
        const std::uint32_t pages = cache::pages_for(options.tokens);
        PERCHERON_ASSIGN(caches_,
                         cache::CacheStore::create(cache::CacheShape::of(config, kv_dtype, 0, true),
                                                   pages, 1, *backend_, 0));
        for (std::uint32_t page = 0; page < pages; ++page)
            pages_.push_back(PageId(page));
        return {};
    }
    bool has_layer() const { return layer_ != nullptr; }

    Status run(std::span<const TokenId> ids, Agreement& agreement) override {
        ids = ids.first(std::min(ids.size(), pages_.size() * ops::page_tokens));
        const std::size_t width = source_->config.vocabulary;
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
                PERCHERON_TRY(comparison_->compare(std::span(trunk).subspan(row * width, width),
                                                   guess, first + row + 1, agreement));
            }
            const auto last = of_layer.subspan((count - 1) * width, width);
            before.assign(last.begin(), last.end());
        }
        return {};
    }

  private:
    static constexpr std::uint32_t chunk = ops::page_tokens;

    std::optional<Comparison> comparison_;
    std::optional<ModelSource> source_;
    std::unique_ptr<ops::Backend> backend_;
    std::unique_ptr<model::Network> trunk_;
    std::unique_ptr<model::MtpLayer> layer_;
    std::unique_ptr<cache::CacheStore> caches_;
    std::vector<PageId> pages_;
};

}  // namespace

void Agreement::add(const Agreement& other) {
    positions += other.positions;
    greedy += other.greedy;
    coupled += other.coupled;
    classical += other.classical;
    bound += other.bound;
}

Result<std::unique_ptr<AgreementRunner>> AgreementRunner::load(const AgreementOptions& options) {
    auto runner = std::make_unique<TextRunner>();
    PERCHERON_TRY(runner->start(options));
    if (!runner->has_layer()) return std::unique_ptr<AgreementRunner>();
    return std::unique_ptr<AgreementRunner>(std::move(runner));
}

}  // namespace percheron::tools
