#include "tools/quantize_layers.h"

#include <algorithm>
#include <numeric>

#include "cache/cache_store.h"
#include "model/mtp_layer.h"
#include "model/trunk_weights.h"
#include "ops/composed_backend.h"
#include "ops/cpu/cpu_primitives.h"
#include "ops/cpu/levels.h"

namespace percheron::tools {
namespace {

// Rows of a step; a multiple of the prefill grid.
constexpr std::size_t calibration_rows = 4 * ops::page_tokens;

class WatchedPrimitives final : public ops::cpu::CpuPrimitives {
  public:
    using CpuPrimitives::CpuPrimitives;

    const ProductWatcher* watcher = nullptr;

  protected:
    void products(std::span<const ops::Linear> ops) override {
        if (watcher != nullptr && *watcher) (*watcher)(ops);
        CpuPrimitives::products(ops);
    }
};

// The CPU's kernels under the plain composition of stages, every product of which passes by.
class WatchedBackend final : public ops::ComposedBackend {
  public:
    static Result<std::unique_ptr<WatchedBackend>> create(std::size_t threads) {
        PERCHERON_ASSIGN(const ops::cpu::Kernels* const kernels, ops::cpu::choose_level(""));
        auto pool = std::make_unique<ThreadPool>(ThreadPoolOptions{.threads = threads});
        auto primitives = std::make_unique<WatchedPrimitives>(*kernels, *pool);
        return std::unique_ptr<WatchedBackend>(
            new WatchedBackend(std::move(pool), std::move(primitives)));
    }
    ops::MtpStages& mtp_stages() { return *mtp(); }

    // Nobody watches once the object is gone.
    class Watch {
      public:
        Watch(WatchedBackend& backend, const ProductWatcher& watcher) : backend_(backend) {
            backend_.watched_.watcher = &watcher;
        }
        ~Watch() { backend_.watched_.watcher = nullptr; }
        Watch(const Watch&) = delete;
        Watch& operator=(const Watch&) = delete;

      private:
        WatchedBackend& backend_;
    };

  private:
    WatchedBackend(std::unique_ptr<ThreadPool> pool, std::unique_ptr<WatchedPrimitives> primitives)
        : ComposedBackend("cpu", ops::Arithmetic::standard, std::move(primitives)),
          pool_(std::move(pool)),
          watched_(static_cast<WatchedPrimitives&>(this->primitives())) {}

    std::unique_ptr<ThreadPool> pool_;
    WatchedPrimitives& watched_;
};

// Room for a step's rows.
class Buffer {
  public:
    explicit Buffer(std::size_t columns) : columns_(columns), values_(calibration_rows * columns) {}
    ops::Activations activations(std::size_t rows) {
        return {values_.data(), DType::f32, rows, columns_};
    }
    Rows<float> rows(std::size_t count) { return {values_.data(), count, columns_}; }

  private:
    std::size_t columns_;
    std::vector<float> values_;
};

// One layer of one kind, so that the caches hold that layer alone.
model::ModelConfig alone(const model::ModelConfig& config, model::MixerKind kind) {
    model::ModelConfig one = config;
    one.mixers = {kind};
    one.feed_forward = {model::FeedForwardKind::experts};
    one.mtp_layers = 0;
    return one;
}

}  // namespace

Result<ops::WeightMatrix> ReplacedWeights::matrix(std::string_view stem, std::size_t n,
                                                  std::size_t k) {
    const auto found = replaced_.find(stem);
    if (found != replaced_.end()) return found->second;
    return source_.matrix(stem, n, k);
}

std::filesystem::path LayerFiles::streams(std::size_t index) const {
    return folder / ("streams-" + std::to_string(index));
}

std::filesystem::path LayerFiles::inputs() const {
    return folder / "feed-forward-inputs";
}

class LayeredNetwork::Layer {
  public:
    Layer(LayeredNetwork& network, std::size_t index)
        : network_(network),
          config_(network.config_),
          index_(index),
          mtp_(index == config_.layers()),
          streams_(config_.streams * config_.hidden),
          normed_(config_.hidden),
          output_(config_.hidden),
          residual_(mtp_ ? config_.hidden : 0),
          post_(config_.streams),
          comb_(config_.streams * config_.streams),
          between_((config_.streams + 1) * config_.streams) {}

    Status load() {
        PERCHERON_ASSIGN(backend_, WatchedBackend::create(network_.threads_));
        PERCHERON_TRY(take_weights());
        const bool kda = !mtp_ && config_.mixers[index_] == model::MixerKind::kda;
        const model::ModelConfig one =
            alone(config_, kda ? model::MixerKind::kda : model::MixerKind::sparse_attention);
        std::size_t longest = 0;
        for (const CalibrationText& text : network_.texts_)
            longest = std::max(longest, text.ids.size());
        const std::uint32_t pages = cache::pages_for(longest);
        PERCHERON_ASSIGN(const DType kv_dtype,
                         cache::kv_dtype_of("auto", ops::Arithmetic::standard));
        PERCHERON_ASSIGN(caches_, cache::CacheStore::create(cache::CacheShape::of(one, kv_dtype),
                                                            pages, 1, *backend_));
        for (std::uint32_t page = 0; page < pages; ++page)
            pages_.push_back(PageId(page));
        return backend_->prepare(model::shape_of(config_), calibration_rows, 1);
    }

    Status take_weights() {
        if (mtp_) {
            PERCHERON_TRY(
                model::load_mtp_layer(config_, network_.weights_, *backend_, mtp_weights_));
            PERCHERON_ASSIGN(const ops::WeightMatrix table,
                             network_.weights_.matrix("model.language_model.embed_tokens",
                                                      config_.vocabulary, config_.hidden));
            PERCHERON_ASSIGN(embedding_,
                             backend_->place(table, "embed_tokens", ops::WeightUse::rows));
            final_norm_.resize(config_.hidden);
            return network_.weights_.vector("model.language_model.norm.weight", final_norm_);
        }
        weights_ = {};
        return model::load_layer(config_, network_.weights_, *backend_, index_, weights_);
    }

    const ops::ExpertsWeights* experts() const {
        if (mtp_) return &mtp_weights_.stages.experts;
        return weights_.experts ? &*weights_.experts : nullptr;
    }

    Status attend(const ProductWatcher& watcher, RowFile& inputs) {
        const WatchedBackend::Watch watch(*backend_, watcher);
        PERCHERON_ASSIGN(const RowFile streams,
                         RowFile::open(network_.files_.streams(index_),
                                       config_.streams * config_.hidden, network_.tokens_));
        if (mtp_) return attend_mtp(streams, inputs);
        PERCHERON_ASSIGN(RowFile updated,
                         RowFile::create(updated_path(), config_.streams * config_.hidden));
        PERCHERON_ASSIGN(RowFile gates,
                         RowFile::create(gates_path(), (config_.streams + 1) * config_.streams));
        PERCHERON_TRY(each_step(0, [&](std::size_t row, const ops::RowBatch& batch) -> Status {
            const std::size_t count = batch.rows();
            PERCHERON_TRY(streams.read(row, streams_.rows(count)));
            turn(batch, nullptr, &weights_.attention_turn);
            if (weights_.kda) {
                backend_->kda_mixer(*weights_.kda, caches_->views().kda[0], batch,
                                    normed_.activations(count), output_.activations(count));
            } else {
                backend_->sparse_mixer(*weights_.sparse, caches_->views().latent[0], batch,
                                       normed_.activations(count), output_.activations(count));
            }
            const ops::Activations output = output_.activations(count);
            turn(batch, &output, &weights_.feed_forward_turn);
            PERCHERON_TRY(updated.write(row, streams_.rows(count)));
            join_gates(count);
            PERCHERON_TRY(gates.write(row, between_.rows(count)));
            return inputs.write(row, normed_.rows(count));
        }));
        PERCHERON_TRY(updated.finish(false));
        return gates.finish(false);
    }

    Status feed_forward(const ProductWatcher& watcher, const RowFile& inputs, bool keep) {
        const WatchedBackend::Watch watch(*backend_, watcher);
        if (mtp_) {
            return each_step(1, [&](std::size_t row, const ops::RowBatch& batch) -> Status {
                const std::size_t count = batch.rows();
                PERCHERON_TRY(inputs.read(row, normed_.rows(count)));
                backend_->moe_ffn(mtp_weights_.stages.experts, batch, normed_.activations(count),
                                  output_.activations(count));
                return {};
            });
        }
        const std::size_t width = config_.streams * config_.hidden;
        PERCHERON_ASSIGN(const RowFile updated,
                         RowFile::open(updated_path(), width, network_.tokens_));
        PERCHERON_ASSIGN(
            const RowFile gates,
            RowFile::open(gates_path(), (config_.streams + 1) * config_.streams, network_.tokens_));
        std::optional<RowFile> next;
        if (keep) {
            PERCHERON_ASSIGN(next, RowFile::create(network_.files_.streams(index_ + 1), width));
        }
        PERCHERON_TRY(each_step(0, [&](std::size_t row, const ops::RowBatch& batch) -> Status {
            const std::size_t count = batch.rows();
            PERCHERON_TRY(inputs.read(row, normed_.rows(count)));
            if (weights_.dense) {
                backend_->dense_ffn(*weights_.dense, batch, normed_.activations(count),
                                    output_.activations(count));
            } else {
                backend_->moe_ffn(*weights_.experts, batch, normed_.activations(count),
                                  output_.activations(count));
            }
            if (!next) return {};
            PERCHERON_TRY(updated.read(row, streams_.rows(count)));
            PERCHERON_TRY(gates.read(row, between_.rows(count)));
            split_gates(count);
            const ops::Activations output = output_.activations(count);
            turn(batch, &output, nullptr);
            return next->write(row, streams_.rows(count));
        }));
        return next ? next->finish(true) : Status();
    }

    void remove_files() const {
        std::error_code ignored;
        for (const std::filesystem::path& path :
             {updated_path(), gates_path(), network_.files_.inputs()}) {
            std::filesystem::remove(path, ignored);
        }
    }

  private:
    std::filesystem::path updated_path() const { return network_.files_.folder / "updated"; }
    std::filesystem::path gates_path() const { return network_.files_.folder / "gates"; }

    Status attend_mtp(const RowFile& streams, RowFile& inputs) {
        const ops::MtpWeights& weights = mtp_weights_.stages;
        std::size_t first_token = 0;  // of the text, in `streams`
        std::size_t text = 0;
        return each_step(1, [&](std::size_t row, const ops::RowBatch& batch) -> Status {
            const std::size_t count = batch.rows();
            const Position position = batch.sequences[0].first_position;
            if (position == 0 && row > 0) first_token += network_.texts_[text++].ids.size();
            PERCHERON_TRY(streams.read(first_token + position, streams_.rows(count)));
            ops::MhcTurn last;
            last.streams = streams_.activations(count);
            last.final_norm = final_norm_.data();
            last.normed = normed_.activations(count);
            backend_->mhc_turn(last, batch);
            std::vector<std::uint32_t> rows(count);
            std::iota(rows.begin(), rows.end(), 0u);
            backend_->mtp_stages().mtp_input(weights, embedding_, batch, normed_.activations(count),
                                             rows, residual_.activations(count),
                                             normed_.activations(count));
            backend_->sparse_mixer(weights.attention, caches_->views().latent[0], batch,
                                   normed_.activations(count), output_.activations(count));
            backend_->mtp_stages().residual_turn(
                weights.post_attention_norm, output_.activations(count),
                residual_.activations(count), normed_.activations(count));
            return inputs.write(row, normed_.rows(count));
        });
    }

    // body(first row, batch) for every step of every text, in order.  `ahead`: a row's token is
    // that many behind its position.
    template <class Body>
    Status each_step(std::size_t ahead, Body&& body) {
        PERCHERON_ASSIGN(const CalibrationPictures* const pictures, network_.pictures());
        std::size_t row = 0;
        for (const CalibrationText& text : network_.texts_) {
            const std::size_t length = text.ids.size() - ahead;
            for (std::size_t first = 0; first < length; first += calibration_rows) {
                const std::size_t count = std::min(calibration_rows, length - first);
                ops::SequenceRows sequence;
                sequence.row_count = sequence.commit_rows = static_cast<std::uint32_t>(count);
                sequence.first_position = sequence.state_position = static_cast<Position>(first);
                sequence.pages = pages_;
                ops::RowBatch batch;
                batch.numeric_class = ops::NumericClass::prefill;
                batch.sequences = {&sequence, 1};
                batch.tokens = std::span(text.ids).subspan(first + ahead, count);
                const auto overrides = pictures->rows(text, first + ahead, count);
                batch.overrides = overrides;
                PERCHERON_TRY(body(row, batch));
                row += count;
            }
        }
        return {};
    }

    void turn(const ops::RowBatch& batch, const ops::Activations* output,
              const ops::MhcWeights* next) {
        const std::size_t count = batch.rows();
        ops::MhcTurn turn;
        turn.streams = streams_.activations(count);
        turn.output = output;
        turn.gates = {post_.activations(count), comb_.activations(count)};
        turn.next = next;
        turn.normed = normed_.activations(count);
        backend_->mhc_turn(turn, batch);
    }

    // A row of the gates' file is post, then comb.
    void join_gates(std::size_t count) {
        for (std::size_t row = 0; row < count; ++row) {
            float* const to = between_.rows(count).row(row);
            std::copy_n(post_.rows(count).row(row), config_.streams, to);
            std::copy_n(comb_.rows(count).row(row), config_.streams * config_.streams,
                        to + config_.streams);
        }
    }
    void split_gates(std::size_t count) {
        for (std::size_t row = 0; row < count; ++row) {
            const float* const from = between_.rows(count).row(row);
            std::copy_n(from, config_.streams, post_.rows(count).row(row));
            std::copy_n(from + config_.streams, config_.streams * config_.streams,
                        comb_.rows(count).row(row));
        }
    }

    LayeredNetwork& network_;
    const model::ModelConfig& config_;
    std::size_t index_;
    bool mtp_;
    std::unique_ptr<WatchedBackend> backend_;
    model::LayerWeights weights_;
    model::MtpLayerWeights mtp_weights_;
    ops::WeightMatrix embedding_;
    std::vector<float> final_norm_;
    std::unique_ptr<cache::CacheStore> caches_;
    std::vector<PageId> pages_;
    Buffer streams_, normed_, output_, residual_, post_, comb_, between_;
};

LayeredNetwork::LayeredNetwork(const model::ModelConfig& config, ReplacedWeights& weights,
                               const std::vector<CalibrationText>& texts, LayerFiles files,
                               std::size_t threads)
    : config_(config),
      weights_(weights),
      texts_(texts),
      files_(std::move(files)),
      threads_(threads) {
    for (const CalibrationText& text : texts)
        tokens_ += text.ids.size();
}

LayeredNetwork::~LayeredNetwork() = default;

Result<const CalibrationPictures*> LayeredNetwork::pictures() {
    if (!pictures_) {
        PERCHERON_ASSIGN(
            pictures_, CalibrationPictures::encode(texts_, config_, weights_.original(), threads_));
    }
    return &*pictures_;
}

Status LayeredNetwork::embed() {
    PERCHERON_ASSIGN(const CalibrationPictures* const pictures, this->pictures());
    PERCHERON_ASSIGN(
        const ops::WeightMatrix table,
        weights_.matrix("model.language_model.embed_tokens", config_.vocabulary, config_.hidden));
    const std::size_t width = config_.streams * config_.hidden;
    PERCHERON_ASSIGN(RowFile file, RowFile::create(files_.streams(0), width));
    std::vector<float> row(width);
    std::size_t place = 0;
    for (const CalibrationText& text : texts_) {
        const auto overrides = pictures->rows(text, 0, text.ids.size());
        auto next = overrides.begin();
        for (std::size_t position = 0; position < text.ids.size(); ++position) {
            if (next != overrides.end() && next->row == position) {
                std::copy_n(next++->features, config_.hidden, row.data());
            } else {
                const auto id = static_cast<std::size_t>(to_int(text.ids[position]));
                ops::dequantise_row(table, id, row.data());
            }
            for (std::size_t stream = 1; stream < config_.streams; ++stream)
                std::copy_n(row.data(), config_.hidden, row.data() + stream * config_.hidden);
            PERCHERON_TRY(file.write(place++, Rows<const float>(row.data(), 1, width)));
        }
    }
    return file.finish(true);
}

Status LayeredNetwork::attend(std::size_t index, const ProductWatcher& watcher) {
    if (!layer_) {
        layer_ = std::make_unique<Layer>(*this, index);
        PERCHERON_TRY(layer_->load());
    } else {
        PERCHERON_TRY(layer_->take_weights());
    }
    input_rows_ = tokens_ - (index == config_.layers() ? texts_.size() : 0);
    inputs_.reset();
    PERCHERON_ASSIGN(RowFile inputs, RowFile::create(files_.inputs(), config_.hidden));
    PERCHERON_TRY(layer_->attend(watcher, inputs));
    PERCHERON_TRY(inputs.finish(false));
    inputs_ = std::move(inputs);
    return {};
}

const ops::ExpertsWeights* LayeredNetwork::experts() const {
    return layer_->experts();
}

Status LayeredNetwork::feed_forward(const ProductWatcher& watcher, bool keep) {
    PERCHERON_TRY(layer_->take_weights());
    return layer_->feed_forward(watcher, *inputs_, keep);
}

void LayeredNetwork::leave() {
    if (layer_) layer_->remove_files();
    layer_.reset();
    inputs_.reset();
}

}  // namespace percheron::tools
