#include "model/vision_tower.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/weight_loader.h"
#include "ops/vision_stages.h"

namespace percheron::model {
namespace {

const std::string visual = "model.visual.";

ops::VisionShape shape_of(const VisionConfig& config) {
    ops::VisionShape shape;
    shape.patch_values = config.channels * config.temporal_patch * config.patch * config.patch;
    shape.hidden = config.hidden;
    shape.heads = config.heads;
    shape.intermediate = config.intermediate;
    shape.merge = config.merge;
    shape.out_hidden = config.out_hidden;
    shape.projection = config.projection_intermediate;
    shape.rms_eps = config.rms_norm_eps;
    shape.block_rms_eps = config.block_rms_norm_eps;
    shape.swiglu_limit = config.swiglu_limit;
    shape.rope_theta = config.rope_theta;
    return shape;
}

struct TowerWeights {
    ops::BiasedMatrix patch_embedding;
    std::vector<ops::VisionBlockWeights> blocks;
    ops::VisionMergerWeights merger;
};

Status biased(WeightLoader& loader, const std::string& stem, std::size_t n, std::size_t k,
              ops::BiasedMatrix& out) {
    PERCHERON_TRY(loader.matrix(stem, n, k, out.matrix));
    return loader.vector(stem + ".bias", n, out.bias);
}

Status load_block(WeightLoader& loader, const ops::VisionShape& shape, const std::string& at,
                  ops::VisionBlockWeights& out) {
    const std::size_t hidden = shape.hidden;
    PERCHERON_TRY(loader.vector(at + "norm1.weight", hidden, out.norm1));
    PERCHERON_TRY(biased(loader, at + "attn.qkv", 3 * hidden, hidden, out.qkv));
    PERCHERON_TRY(loader.vector(at + "attn.q_norm.weight", shape.head_dim(), out.query_norm));
    PERCHERON_TRY(loader.vector(at + "attn.k_norm.weight", shape.head_dim(), out.key_norm));
    PERCHERON_TRY(biased(loader, at + "attn.proj", hidden, hidden, out.out));
    PERCHERON_TRY(loader.vector(at + "norm2.weight", hidden, out.norm2));
    PERCHERON_TRY(biased(loader, at + "mlp.gate_proj", shape.intermediate, hidden, out.gate));
    PERCHERON_TRY(biased(loader, at + "mlp.up_proj", shape.intermediate, hidden, out.up));
    return biased(loader, at + "mlp.down_proj", hidden, shape.intermediate, out.down);
}

Status load_merger(WeightLoader& loader, const ops::VisionShape& shape,
                   ops::VisionMergerWeights& out) {
    const std::size_t wide = shape.out_hidden;
    PERCHERON_TRY(loader.vector(visual + "post_layernorm.weight", shape.hidden, out.post_norm));
    PERCHERON_TRY(
        biased(loader, visual + "downsample", wide, shape.hidden * shape.merged(), out.downsample));
    const std::string at = visual + "merger.";
    PERCHERON_TRY(loader.matrix(at + "proj", wide, wide, out.projection));
    PERCHERON_TRY(loader.vector(at + "post_projection_norm.weight", wide, out.projection_norm));
    PERCHERON_TRY(loader.vector(at + "post_projection_norm.bias", wide, out.projection_norm_bias));
    PERCHERON_TRY(loader.matrix(at + "gate_proj", shape.projection, wide, out.feed_forward.gate));
    PERCHERON_TRY(loader.matrix(at + "up_proj", shape.projection, wide, out.feed_forward.up));
    return loader.matrix(at + "down_proj", wide, shape.projection, out.feed_forward.down);
}

// Multiply-adds of a slice of attention against all patches, so that slices of large pictures
// take no longer than those of small ones.
constexpr std::size_t attention_slice = std::size_t{1} << 20;  // rows x patches

class Tower final : public VisionTower {
  public:
    Tower(const ModelConfig& config, ops::Backend& backend, const VisionOptions& options)
        : config_(config.vision),
          shape_(shape_of(config.vision)),
          backend_(backend),
          stages_(*backend.vision()),
          options_(options) {}

    Status load(const ModelConfig& config, WeightSource& source) {
        WeightLoader loader(config, source, backend_);
        PERCHERON_TRY(biased(loader, visual + "patch_embed.proj", shape_.hidden,
                             shape_.patch_values, weights_.patch_embedding));
        weights_.blocks.resize(config_.depth);
        for (std::size_t i = 0; i < config_.depth; ++i) {
            PERCHERON_TRY(load_block(loader, shape_, visual + "blocks." + std::to_string(i) + ".",
                                     weights_.blocks[i]));
        }
        PERCHERON_TRY(load_merger(loader, shape_, weights_.merger));

        const std::size_t patches = options_.max_tokens * shape_.merged();
        const std::size_t row = shape_.hidden * size_of(DType::f32);
        PERCHERON_ASSIGN(rows_memory_, backend_.allocate(patches * row, "picture rows"));
        PERCHERON_ASSIGN(heads_memory_, backend_.allocate(3 * patches * shape_.hidden *
                                                              size_of(stages_.heads_dtype()),
                                                          "picture attention"));
        PERCHERON_TRY(stages_.prepare(shape_, options_.slice_rows, patches));
        pixels_.resize(options_.slice_rows * shape_.patch_values);
        places_.reserve(patches);
        return {};
    }

    const VisionConfig& config() const override { return config_; }

    Status begin(PatchGrid grid, std::span<float> features) override {
        const std::size_t merge = shape_.merge;
        if (grid.height == 0 || grid.width == 0 || grid.height % merge != 0 ||
            grid.width % merge != 0 || tokens_of(grid) > options_.max_tokens) {
            return Error(ErrorCode::invalid_argument,
                         "a picture of " + std::to_string(grid.height) + " x " +
                             std::to_string(grid.width) +
                             " patches cannot be encoded: both must be multiples of " +
                             std::to_string(merge) + ", with at most " +
                             std::to_string(options_.max_tokens) + " tokens");
        }
        if (features.size() != tokens_of(grid) * shape_.out_hidden) {
            return Error(ErrorCode::invalid_argument,
                         "the features of a picture of " + std::to_string(tokens_of(grid)) +
                             " tokens do not fit " + std::to_string(features.size()) + " numbers");
        }
        grid_ = std::move(grid);
        features_ = features;
        list_places();
        phase_ = Phase::embed;
        block_ = 0;
        next_ = 0;
        return {};
    }

    bool advance() override {
        const std::size_t patches = places_.size();
        if (phase_ == Phase::done) return true;
        const std::size_t first = next_;
        const std::size_t count = std::min(slice_of(phase_), patches - first);
        compute(first, count);
        next_ = first + count;
        if (next_ < patches) return false;
        next_ = 0;
        switch (phase_) {
            case Phase::embed:
                phase_ = config_.depth > 0 ? Phase::project : Phase::merge;
                break;
            case Phase::project:
                phase_ = Phase::attend;
                break;
            case Phase::attend:
                phase_ = ++block_ < config_.depth ? Phase::project : Phase::merge;
                break;
            case Phase::merge:
            case Phase::done:
                phase_ = Phase::done;
                grid_.rows = nullptr;
                break;
        }
        return phase_ == Phase::done;
    }

  private:
    enum class Phase { embed, project, attend, merge, done };

    // The patches' places, in the order of their rows.
    void list_places() {
        const std::size_t merge = shape_.merge;
        places_.clear();
        for (std::size_t top = 0; top < grid_.height; top += merge) {
            for (std::size_t left = 0; left < grid_.width; left += merge) {
                for (std::size_t y = top; y < top + merge; ++y) {
                    for (std::size_t x = left; x < left + merge; ++x) {
                        places_.push_back(
                            {static_cast<std::uint32_t>(y), static_cast<std::uint32_t>(x)});
                    }
                }
            }
        }
    }

    std::size_t slice_of(Phase phase) const {
        if (phase != Phase::attend) return options_.slice_rows;
        constexpr std::size_t least = 16;
        return std::clamp(attention_slice / places_.size(), std::min(least, options_.slice_rows),
                          options_.slice_rows);
    }

    void compute(std::size_t first, std::size_t count) {
        const ops::Activations z{static_cast<float*>(rows_memory_->data()) + first * shape_.hidden,
                                 DType::f32, count, shape_.hidden};
        switch (phase_) {
            case Phase::embed: {
                const std::size_t values = shape_.patch_values;
                grid_.rows(first, count, std::span(pixels_).first(count * values));
                stages_.embed_patches(weights_.patch_embedding,
                                      Rows<const float>(pixels_.data(), count, values), z);
                return;
            }
            case Phase::project:
                stages_.project_heads(weights_.blocks[block_],
                                      std::span(places_).subspan(first, count), first, z, heads());
                return;
            case Phase::attend:
                stages_.finish_block(weights_.blocks[block_], heads(), first, z);
                return;
            case Phase::merge: {
                const std::size_t merged = shape_.merged();
                stages_.merge(weights_.merger, z,
                              {features_.data() + first / merged * shape_.out_hidden,
                               count / merged, shape_.out_hidden});
                return;
            }
            case Phase::done:
                return;
        }
    }

    ops::PatchHeads heads() const {
        ops::PatchHeads heads;
        heads.dtype = stages_.heads_dtype();
        heads.heads = shape_.heads;
        heads.dim = shape_.head_dim();
        heads.patches = places_.size();
        auto* const memory = static_cast<std::byte*>(heads_memory_->data());
        const std::size_t each = places_.size() * shape_.hidden * size_of(heads.dtype);
        heads.query = memory;
        heads.key = memory + each;
        heads.value = memory + 2 * each;
        return heads;
    }

    VisionConfig config_;
    ops::VisionShape shape_;
    ops::Backend& backend_;
    ops::VisionStages& stages_;
    VisionOptions options_;
    TowerWeights weights_;
    std::unique_ptr<ops::BackendBuffer> rows_memory_, heads_memory_;
    std::vector<float> pixels_;  // of one slice
    std::vector<ops::PatchPlace> places_;
    std::span<float> features_;
    PatchGrid grid_;
    Phase phase_ = Phase::done;
    std::size_t block_ = 0;
    std::size_t next_ = 0;  // first row of the next slice
};

}  // namespace

Bytes VisionTower::memory(const ModelConfig& config, const ops::Backend& backend,
                          const VisionOptions& options) {
    const ops::VisionStages* const stages = backend.vision();
    if (stages == nullptr) return 0;
    const ops::VisionShape shape = shape_of(config.vision);
    const std::size_t patches = options.max_tokens * shape.merged();
    const Bytes row = shape.hidden * (size_of(DType::f32) + 3 * size_of(stages->heads_dtype())) +
                      sizeof(ops::PatchPlace);
    return patches * row + stages->working_bytes(shape, options.slice_rows, patches) +
           options.slice_rows * shape.patch_values * sizeof(float);
}

Result<std::unique_ptr<VisionTower>> VisionTower::load(const ModelConfig& config,
                                                       WeightSource& weights, ops::Backend& backend,
                                                       const VisionOptions& options) {
    if (backend.vision() == nullptr) {
        return Error(ErrorCode::unsupported,
                     "the backend " + std::string(backend.name()) + " has no vision tower");
    }
    if (config.vision.hidden / config.vision.heads % 4 != 0) {
        return Error(ErrorCode::unsupported,
                     "vision_config: hidden_size / num_heads is " +
                         std::to_string(config.vision.hidden / config.vision.heads) +
                         "; the tower's heads must be multiples of 4 wide");
    }
    if (options.max_tokens == 0 || options.slice_rows == 0 ||
        options.slice_rows % (config.vision.merge * config.vision.merge) != 0) {
        return Error(ErrorCode::invalid_argument,
                     "the slices of a picture must hold whole tokens, at least one");
    }
    auto tower = std::make_unique<Tower>(config, backend, options);
    PERCHERON_TRY(tower->load(config, weights));
    return std::unique_ptr<VisionTower>(std::move(tower));
}

}  // namespace percheron::model
