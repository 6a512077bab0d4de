// The MTP layer on the CUDA backend: against the reference backend, and against itself in other
// company, to the bit.
#include "model/mtp_layer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <numeric>

#include "cache/cache_store.h"
#include "model/network.h"
#include "ops/cuda/cuda_backend.h"
#include "ops/reference/reference_backend.h"
#include "ops_cuda/check.h"
#include "ops_cuda/formatted_weights.h"
#include "support/random_model.h"

using namespace percheron;
using namespace percheron::check;
using ops::WeightFormat;

namespace {

constexpr std::uint32_t most_rows = 512, pages = 520, slots = 512;

model::ModelConfig config_with_mtp() {
    model::ModelConfig config = cuda_config();
    config.mtp_layers = 1;
    return config;
}

template <class T>
T must(Result<T> result) {
    if (!result.ok()) {
        std::printf("%s\n", result.error().message().c_str());
        std::exit(1);
    }
    return std::move(result).value();
}

// Some rows of one step: which sequence, which position, which row of the trunk's it reads.
struct Row {
    std::uint32_t sequence;
    std::size_t position;
    std::uint32_t hidden;
};

// A backend with trunk, layer, caches and the trunk's rows, which are random here.
class MtpMachine {
  public:
    MtpMachine(std::unique_ptr<ops::Backend> backend, model::WeightSource& weights,
               DType kv_dtype = DType::bf16)
        : backend_(std::move(backend)), kv_dtype_(kv_dtype) {
        model::NetworkOptions options;
        options.max_rows = options.max_logit_rows = most_rows;
        trunk_ = must(model::Network::load(config_, weights, *backend_, options));
        layer_ = must(model::MtpLayer::load(*trunk_, weights, *backend_, options));
        Random random(3);
        const std::vector<float> values = normals(random, most_rows * config_.hidden);
        memory_ = must(backend_->allocate(values.size() * sizeof(float), "the trunk's rows"));
        backend_->copy_from_host(memory_->data(), values.data(), values.size() * sizeof(float));
        new_caches();
    }

    void new_caches() {
        caches_ = must(cache::CacheStore::create(cache::CacheShape::of(config_, kv_dtype_, 8, true),
                                                 pages, slots, *backend_));
    }

    // Rows of a sequence are neighbours and ascend.  Sequence s has pages 2 s and 2 s + 1, the
    // first four sequences more.  `own`: the layer's rows of the step before instead of the
    // trunk's.
    std::vector<float> step(const std::vector<Row>& rows, ops::NumericClass numeric_class,
                            bool own = false) {
        std::vector<ops::SequenceRows> sequences;
        std::vector<TokenId> tokens;
        std::vector<std::uint32_t> hidden_rows, wanted(rows.size());
        std::iota(wanted.begin(), wanted.end(), 0u);
        std::vector<std::vector<PageId>> tables;
        tables.reserve(rows.size());
        for (std::size_t i = 0; i < rows.size(); ++i) {
            if (i == 0 || rows[i].sequence != rows[i - 1].sequence) {
                ops::SequenceRows sequence;
                sequence.first_row = static_cast<std::uint32_t>(i);
                sequence.first_position = sequence.state_position =
                    static_cast<Position>(rows[i].position);
                sequence.slot = RequestSlot(rows[i].sequence);
                std::vector<PageId> table{PageId(pages - 1 - rows[i].sequence)};
                if (rows[i].sequence == 0)
                    for (std::uint32_t page = 0; page < 4; ++page)
                        table.push_back(PageId(3 - page));
                tables.push_back(std::move(table));
                sequence.pages = tables.back();
                sequences.push_back(sequence);
            }
            sequences.back().row_count = ++sequences.back().commit_rows;
            tokens.push_back(TokenId(static_cast<int>(
                (rows[i].position * 131 + rows[i].sequence * 17) % config_.vocabulary)));
            hidden_rows.push_back(rows[i].hidden);
        }
        ops::RowBatch batch;
        batch.numeric_class = numeric_class;
        batch.sequences = sequences;
        batch.tokens = tokens;
        batch.logit_rows = wanted;
        const ops::Activations hidden =
            own ? layer_->hidden()
                : ops::Activations{memory_->data(), DType::f32, most_rows, config_.hidden};
        const auto logits =
            must(layer_->forward(batch, hidden, hidden_rows, caches_->views().latent.back()));
        return {logits.begin(), logits.end()};
    }

    // A prompt in chunks, then single rows, each followed by a row of the layer's own.
    std::vector<float> life(std::size_t prompt, std::size_t length, std::size_t chunk) {
        std::vector<float> all;
        const auto append = [&](const std::vector<float>& more) {
            all.insert(all.end(), more.begin(), more.end());
        };
        const auto row_at = [](std::size_t position) {
            return Row{0, position, static_cast<std::uint32_t>(position * 7 % most_rows)};
        };
        for (std::size_t done = 0; done < prompt; done += chunk) {
            std::vector<Row> rows;
            for (std::size_t p = done; p < std::min(done + chunk, prompt); ++p)
                rows.push_back(row_at(p));
            append(step(rows, ops::NumericClass::prefill));
        }
        for (std::size_t p = prompt; p < length; ++p) {
            append(step({row_at(p)}, ops::NumericClass::decode));
            append(step({{0, p + 1, 0}}, ops::NumericClass::decode, true));
        }
        return all;
    }

    std::size_t vocabulary() const { return config_.vocabulary; }

  private:
    model::ModelConfig config_ = config_with_mtp();
    std::unique_ptr<ops::Backend> backend_;
    DType kv_dtype_;
    std::unique_ptr<model::Network> trunk_;
    std::unique_ptr<model::MtpLayer> layer_;
    std::unique_ptr<cache::CacheStore> caches_;
    std::unique_ptr<ops::BackendBuffer> memory_;
};

std::unique_ptr<ops::Backend> on_cuda(bool graphs = true) {
    ops::CudaBackendOptions options;
    options.graphs = graphs;
    return must(ops::make_cuda_backend(options));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

}  // namespace

KERNEL_TEST(mtp_layer_against_the_reference) {
    const struct {
        const char* name;
        FormattedWeights::Choice choice;
        DType kv_dtype = DType::bf16;
    } cases[] = {{"bf16", all_bf16},
                 {"bf16 with fp8 caches", all_bf16, DType::f8_e4m3},
                 {"fp8 with w4a16 experts", mixed(WeightFormat::w4a16)},
                 {"nvfp4 experts", experts_in(WeightFormat::nvfp4)}};
    for (const auto& one : cases) {
        FormattedWeights weights(15, one.choice);
        MtpMachine cuda(on_cuda(), weights, one.kv_dtype);
        MtpMachine reference(ops::reference::make_reference_backend(ops::Arithmetic::standard),
                             weights, one.kv_dtype);
        const auto ours = cuda.life(100, 120, 64), expected = reference.life(100, 120, 64);
        const std::size_t n = cuda.vocabulary(), rows = 140;
        CHECK_THAT(ours.size() == rows * n && expected.size() == rows * n, "%s: %zu logits",
                   one.name, ours.size());
        std::vector<double> differences;
        for (std::size_t row = 0; row < rows; ++row) {
            double squares = 0, worst = 0;
            for (std::size_t i = row * n; i < (row + 1) * n; ++i) {
                squares += static_cast<double>(expected[i]) * expected[i];
                const double d = std::fabs(static_cast<double>(ours[i]) - expected[i]);
                if (!(d <= worst)) worst = d;
            }
            differences.push_back(worst / std::sqrt(squares / static_cast<double>(n)));
        }
        std::sort(differences.begin(), differences.end());
        std::printf("    %s: median of max|d|/RMS %.4f, nine tenths below %.4f\n", one.name,
                    differences[rows / 2], differences[rows * 9 / 10]);
        // As in the trunk, a choice between equals may fall the other way in a few rows.
        CHECK_THAT(differences[rows / 2] < 0.05 && differences[rows * 8 / 10] < 0.1,
                   "%s: median %.4f, eight tenths below %.4f", one.name, differences[rows / 2],
                   differences[rows * 8 / 10]);
    }
}

KERNEL_TEST(mtp_layer_chunks_and_graphs_change_no_bit) {
    FormattedWeights weights(16, mixed(WeightFormat::w4a16));
    for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
        MtpMachine machine(on_cuda(), weights, dtype), launching(on_cuda(false), weights, dtype);
        const auto expected = machine.life(200, 230, 512);
        CHECK_THAT(same_bits(launching.life(200, 230, 512), expected),
                   "launched and recorded steps differ");
        for (const std::size_t chunk : {64, 128}) {
            machine.new_caches();
            CHECK_THAT(same_bits(machine.life(200, 230, chunk), expected),
                       "chunks of %zu change bits", chunk);
        }
        CHECK_THAT(same_bits(machine.life(200, 230, 512), expected), "a repeat differs");
    }
}

KERNEL_TEST(mtp_layer_rows_alone_and_together) {
    FormattedWeights weights(17, experts_in(WeightFormat::w4a16));
    MtpMachine machine(on_cuda(), weights);
    constexpr std::size_t steps = 3;
    // Logits [step][sequence] of sequences [first, first + count).
    const auto run = [&](std::uint32_t first, std::uint32_t count) {
        machine.new_caches();
        std::vector<float> all;
        for (std::size_t position = 0; position < steps; ++position) {
            std::vector<Row> rows;
            for (std::uint32_t i = first; i < first + count; ++i)
                rows.push_back(
                    {i, position, static_cast<std::uint32_t>(i * 5 + position) % most_rows});
            const auto more = machine.step(rows, ops::NumericClass::decode);
            all.insert(all.end(), more.begin(), more.end());
        }
        return all;
    };
    const std::vector<float> whole = run(0, most_rows);
    const std::size_t n = machine.vocabulary();
    for (const auto& [first, count] : {std::pair<std::uint32_t, std::uint32_t>{0, 1},
                                       {40, 3},
                                       {100, 7},
                                       {17, 8},
                                       {300, 9},
                                       {64, 64},
                                       {250, 255}}) {
        const std::vector<float> some = run(first, count);
        std::size_t different = 0;
        for (std::size_t step = 0; step < steps; ++step)
            different +=
                std::memcmp(some.data() + step * count * n,
                            whole.data() + (step * most_rows + first) * n, count * n * 4) != 0;
        CHECK_THAT(different == 0, "%u rows from %u differ from 512 together in %zu steps", count,
                   first, different);
    }
}
