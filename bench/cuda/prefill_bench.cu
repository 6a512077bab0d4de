// prefill_bench [FILTER]: times the kernels of the prefill class at the full model's shapes, beside
// cuBLAS in the same process where its library is found.  Shares are of this run's rate of bf16
// products of 8192 x 8192 x 8192 by cuBLAS.
#include <cstring>
#include <memory>
#include <string>

#include "cuda/cublas_peer.h"
#include "cuda/measure.h"
#include "ops/cuda/latent_attention.h"
#include "ops/cuda/mhc_turn.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_kda.h"
#include "ops/cuda/prefill_rows.h"
#include "ops/cuda/prefill_select.h"
#include "ops/cuda/prefill_turn.h"

using namespace percheron;
using namespace percheron::bench;
using check::OnDevice;
using ops::WeightFormat;
using ops::cuda::PrefillRows;

namespace {

int multiprocessors = 0;
double ceiling = 0;  // TFLOP/s

void must(const Status& status) {
    if (status.ok()) return;
    std::printf("%s\n", status.error().message().c_str());
    std::exit(1);
}

// Random bf16 rows, made on the host once and repeated.
class RandomRows {
  public:
    explicit RandomRows(std::size_t count) : memory_(count) {
        check::Random random(3);
        const auto some = check::as_bf16(check::normals(random, 1 << 22));
        for (std::size_t at = 0; at < count; at += some.size())
            require(cudaMemcpy(memory_.data() + at, some.data(),
                               std::min(some.size(), count - at) * 2, cudaMemcpyHostToDevice),
                    "rows");
    }
    __nv_bfloat16* data() const { return memory_.data(); }

  private:
    OnDevice<__nv_bfloat16> memory_;
};

// Packed weights: any bytes, but bf16 ones of one size, since what the bits are decides how much
// power a product takes.
class Weights {
  public:
    Weights(WeightFormat format, std::size_t bytes) {
        if (format == WeightFormat::bf16)
            rows_ = std::make_unique<RandomRows>(bytes / 2);
        else
            bytes_ = std::make_unique<RandomMemory>(bytes);
    }
    const std::uint8_t* data() const {
        return rows_ ? reinterpret_cast<const std::uint8_t*>(rows_->data()) : bytes_->data();
    }

  private:
    std::unique_ptr<RandomRows> rows_;
    std::unique_ptr<RandomMemory> bytes_;
};

double rate(double operations, double us) {
    return operations / us * 1e-6;
}

void measure_ceiling(const CublasPeer& cublas) {
    constexpr int size = 8192;
    const RandomRows x(std::size_t{size} * size), w(std::size_t{size} * size);
    OnDevice<__nv_bfloat16> y(std::size_t{size} * size);
    const double us = microseconds(10, [&](cudaStream_t stream, int) {
        cublas.product(stream, x.data(), w.data(), y.data(), size, size, size, 1);
    });
    ceiling = rate(2.0 * size * size * size, us);
    std::printf("cuBLAS bf16 8192x8192x8192: %.1f us, %.1f TFLOP/s\n", us, ceiling);
}

void report(const std::string& name, double operations, double us, double peer_us) {
    std::printf("%-46s %9.1f us %7.1f TFLOP/s %5.1f %%", name.c_str(), us, rate(operations, us),
                ceiling > 0 ? 100 * rate(operations, us) / ceiling : 0.0);
    if (peer_us > 0)
        std::printf("   cuBLAS bf16 %9.1f us %7.1f TFLOP/s, here %5.1f %% of it", peer_us,
                    rate(operations, peer_us), 100 * peer_us / us);
    std::printf("\n");
    std::fflush(stdout);
}

struct DenseCase {
    const char* name;
    int n, k;
    bool swiglu;
    PrefillRows y_rows = PrefillRows::f32;
};

constexpr DenseCase dense[] = {
    {"kda inputs 24896x4096", 24896, 4096, false},
    {"kda output 4096x8192", 4096, 8192, false},
    {"sparse inputs 2336x4096", 2336, 4096, false},
    {"q_b 16384x1536, bf16 rows", 16384, 1536, false, PrefillRows::ordered_bf16},
    {"sparse output 4096x16384", 4096, 16384, false},
    {"f_b 8192x128", 8192, 128, false},
    {"shared gate, up 2048x4096", 2048, 4096, true, PrefillRows::ordered_bf16},
    {"shared down 4096x2048", 4096, 2048, false},
    {"dense gate, up 12288x4096", 12288, 4096, true, PrefillRows::ordered_bf16},
    {"dense down 4096x12288", 4096, 12288, false},
};

void bench_dense(const DenseCase& one, WeightFormat format, int rows, const CublasPeer& cublas) {
    const int matrices = one.swiglu ? 2 : 1;
    const std::size_t bytes = ops::cuda::packed_bytes(format, one.n, one.k);
    const Weights weights(format, bytes * matrices);
    const RandomRows x(static_cast<std::size_t>(rows) * one.k);
    OnDevice<float> y(static_cast<std::size_t>(rows) * one.n * matrices);
    const double us = microseconds(6, [&](cudaStream_t stream, int) {
        ops::cuda::PrefillProduct product;
        product.weight = {format, one.n, one.k, weights.data(), 1.0f};
        if (one.swiglu) product.up = {format, one.n, one.k, weights.data() + bytes, 1.0f};
        product.x = x.data();
        product.x_stride = one.k;
        product.y = y.data();
        product.y_stride = one.n;
        product.y_rows = one.y_rows;
        must(ops::cuda::prefill_gemm({&product, 1}, rows, 10.0f, {stream, multiprocessors, false}));
    });
    double peer = 0;
    if (cublas.there() && format == WeightFormat::bf16) {
        const RandomRows w(static_cast<std::size_t>(one.n) * one.k * matrices);
        peer = microseconds(6, [&](cudaStream_t stream, int) {
            cublas.product(stream, x.data(), w.data(), y.data(), rows, one.n * matrices, one.k, 1);
        });
    }
    report(std::string(name_of(format)) + " " + one.name + ", " + std::to_string(rows) + " rows",
           2.0 * rows * one.n * one.k * matrices, us, peer);
}

// `experts` groups of `rows` each; cuBLAS has as many products in one call.
void bench_experts(WeightFormat format, int n, int k, int experts, int rows,
                   const CublasPeer& cublas, double& peer) {
    const std::size_t bytes = ops::cuda::packed_bytes(format, n, k);
    const int pairs = experts * rows;
    const Weights weights(format, bytes * experts);
    const RandomRows x(static_cast<std::size_t>(pairs) * k);
    OnDevice<float> y(static_cast<std::size_t>(pairs) * n);
    std::vector<const std::uint8_t*> pointers;
    std::vector<std::uint32_t> chosen;
    for (int e = 0; e < experts; ++e) {
        pointers.push_back(weights.data() + e * bytes);
        chosen.insert(chosen.end(), static_cast<std::size_t>(rows), static_cast<std::uint32_t>(e));
    }
    const OnDevice<const std::uint8_t*> pointer_memory(pointers);
    const OnDevice<float> ones(std::vector<float>(static_cast<std::size_t>(experts), 1.0f));
    const OnDevice<std::uint32_t> chosen_memory(chosen);
    OnDevice<std::uint32_t> order(chosen.size());
    OnDevice<ops::cuda::ExpertGroup> groups(static_cast<std::size_t>(
        ops::cuda::most_groups(pairs, experts, ops::cuda::prefill_group_rows)));
    OnDevice<std::int32_t> count(1);
    ops::cuda::PairGrouping grouping;
    grouping.pairs = pairs;
    grouping.experts = experts;
    grouping.group_rows = ops::cuda::prefill_group_rows;
    grouping.chosen = chosen_memory.data();
    grouping.pair_order = order.data();
    grouping.groups = groups.data();
    grouping.group_count = count.data();
    must(ops::cuda::group_pairs(grouping, {nullptr, multiprocessors, false}));
    const double us = microseconds(4, [&](cudaStream_t stream, int) {
        ops::cuda::PrefillExperts product;
        product.format = format;
        product.n = n;
        product.k = k;
        product.weights = pointer_memory.data();
        product.scales = ones.data();
        product.x = x.data();
        product.x_stride = k;
        product.pairs = pairs;
        product.groups = groups.data();
        product.group_count = count.data();
        product.pair_order = order.data();
        product.y = y.data();
        product.y_stride = n;
        must(ops::cuda::prefill_experts(product, 10.0f, {stream, multiprocessors, false}));
    });
    if (cublas.there() && peer == 0) {
        const RandomRows w(static_cast<std::size_t>(n) * k * experts);
        peer = microseconds(4, [&](cudaStream_t stream, int) {
            cublas.product(stream, x.data(), w.data(), y.data(), rows, n, k, experts);
        });
    }
    report(std::string(name_of(format)) + " " + std::to_string(experts) + " experts " +
               std::to_string(n) + "x" + std::to_string(k) + ", " + std::to_string(rows) + " rows",
           2.0 * pairs * n * k, us, peer);
}

// One sequence's chunks of 64 heads, from position 0, as a step has them.
void bench_kda(int rows) {
    constexpr int heads = 64, width = heads * 128, ring = 4;
    const int chunks = (rows + 63) / 64;
    check::Random random(7);
    const auto floats = [&](std::size_t count) {
        return check::normals(random, std::min<std::size_t>(count, 1 << 20));
    };
    const auto fill = [&](OnDevice<float>& memory) {
        const auto some = floats(memory.size());
        for (std::size_t at = 0; at < memory.size(); at += some.size())
            require(
                cudaMemcpy(memory.data() + at, some.data(),
                           std::min(some.size(), memory.size() - at) * 4, cudaMemcpyHostToDevice),
                "inputs");
    };
    const std::size_t all = static_cast<std::size_t>(rows) * width;
    OnDevice<float> projections(3 * all), decay(all), gate(all),
        beta(static_cast<std::size_t>(rows) * heads), conv(12u * width), a_log(heads), bias(width),
        norm(128), state(128u * width), history(3u * ring * width);
    for (auto* memory :
         {&projections, &decay, &gate, &beta, &conv, &a_log, &bias, &norm, &state, &history})
        fill(*memory);
    OnDevice<std::byte> prepared(ops::cuda::kda_prompt_bytes(heads, chunks));
    OnDevice<__nv_bfloat16> output(all);
    const auto count = static_cast<std::uint32_t>(rows);
    const OnDevice<ops::cuda::DeviceSequence> sequence(
        std::vector<ops::cuda::DeviceSequence>{{0, count, 0, 0, count, 0, 0}});
    ops::cuda::KdaPrompt prompt;
    prompt.heads = heads;
    prompt.projections = projections.data();
    prompt.projection_stride = 3 * width;
    prompt.beta = beta.data();
    prompt.beta_stride = heads;
    prompt.decay = decay.data();
    prompt.decay_stride = width;
    prompt.gate = gate.data();
    prompt.gate_stride = width;
    prompt.conv = conv.data();
    prompt.a_log = a_log.data();
    prompt.dt_bias = bias.data();
    prompt.out_norm = norm.data();
    prompt.slots = {state.data(), 0, history.data(), 0, nullptr, 0, ring};
    prompt.sequences = sequence.data();
    prompt.sequence_count = 1;
    prompt.prepared = prepared.data();
    prompt.prepared_chunks = chunks;
    prompt.output = output.data();
    const double us = microseconds(3, [&](cudaStream_t stream, int) {
        must(ops::cuda::kda_prompt(prompt, {&count, 1}, {stream, multiprocessors, false}));
    });
    std::printf("kda, 64 heads, %5d rows: %.1f us\n", rows, us);
}

// One sequence whose last `rows` rows see up to `context` tokens: index scores and choice, then
// attention, beside the kernels of generated rows, 64 at a time as those come.
void bench_attention(int context, int rows) {
    constexpr int heads = 64, latent = 512, index_heads = 32, dim = 128, topk = 2048;
    constexpr int stride = topk + 4;
    const int pages = (context + 63) / 64, pools = context / 4;
    const RandomRows latents(static_cast<std::size_t>(pages) * 64 * latent),
        pooled(static_cast<std::size_t>(pages) * 16 * dim),
        absorbed(static_cast<std::size_t>(rows) * heads * latent),
        query(static_cast<std::size_t>(rows) * index_heads * dim);
    check::Random random(9);
    const OnDevice<float> weights(
        check::normals(random, static_cast<std::size_t>(rows) * index_heads));
    std::vector<std::uint32_t> table(static_cast<std::size_t>(pages));
    for (int p = 0; p < pages; ++p)
        table[p] = static_cast<std::uint32_t>((p * 37LL) % pages);
    const OnDevice<std::uint32_t> page_memory(table),
        of_row(std::vector<std::uint32_t>(static_cast<std::size_t>(rows)));
    const auto count = static_cast<std::uint32_t>(rows);
    const auto first = static_cast<std::uint32_t>(context - rows);
    const OnDevice<ops::cuda::DeviceSequence> sequence(
        std::vector<ops::cuda::DeviceSequence>{{0, count, first, first, count, 0, 0}});
    OnDevice<std::uint32_t> positions(static_cast<std::size_t>(rows) * stride), counts(count);
    OnDevice<float> scores(static_cast<std::size_t>(rows) * pools),
        partial(ops::cuda::attention_partial_floats(heads, topk + 3, 64));
    OnDevice<__nv_bfloat16> read(static_cast<std::size_t>(rows) * heads * latent);
    ops::LatentPages cached;
    cached.latents = latents.data();
    cached.latent_dtype = cached.pooled_dtype = DType::bf16;
    cached.latent_page_bytes = 64 * latent * 2;
    cached.pooled = pooled.data();
    cached.pooled_page_bytes = 16 * dim * 2;
    const auto batch = [&](int from, int some) {
        return ops::cuda::DeviceBatch{some,
                                      sequence.data(),
                                      1,
                                      of_row.data() + from,
                                      page_memory.data(),
                                      static_cast<std::uint32_t>(from)};
    };
    const auto selection = [&](int from, int some) {
        ops::cuda::TokenSelection op;
        op.heads = index_heads;
        op.topk = topk;
        op.query = query.data() + static_cast<std::size_t>(from) * index_heads * dim;
        op.query_stride = index_heads * dim;
        op.head_weight = weights.data() + from * index_heads;
        op.head_weight_stride = index_heads;
        op.pages = cached;
        op.batch = batch(from, some);
        op.most_pools = pools;
        op.scores = scores.data();
        op.positions = positions.data() + static_cast<std::size_t>(from) * stride;
        op.positions_stride = stride;
        op.counts = counts.data() + from;
        return op;
    };
    const auto report_rows = [&](const char* name, double us, double operations) {
        std::printf("%-34s context %6d, %4d rows: %9.1f us, %6.3f a row, %6.1f TFLOP/s\n", name,
                    context, rows, us, us / rows, rate(operations * rows, us));
        std::fflush(stdout);
    };
    const double score_operations = 2.0 * pools * index_heads * dim;
    const double attention_operations = 4.0 * topk * heads * latent;
    const double chosen = microseconds(2, [&](cudaStream_t stream, int) {
        must(ops::cuda::take_best_pools(selection(0, rows), {stream, multiprocessors, false}));
    });
    report_rows("choice alone", chosen, 0);
    const double both = microseconds(2, [&](cudaStream_t stream, int) {
        must(ops::cuda::select_prompt_tokens(selection(0, rows), {stream, multiprocessors, false}));
    });
    report_rows("scores, without the choice", both - chosen, score_operations);
    report_rows("scores and choice of prompts", both, score_operations);
    report_rows(
        "of generated rows",
        microseconds(
            1,
            [&](cudaStream_t stream, int) {
                for (int from = 0; from < rows; from += 64)
                    must(ops::cuda::select_tokens(selection(from, std::min(64, rows - from)),
                                                  {stream, multiprocessors, false}));
            },
            3),
        score_operations);
    report_rows("attention of prompts",
                microseconds(2,
                             [&](cudaStream_t stream, int) {
                                 must(ops::cuda::prompt_attention(
                                     {heads, 1.0f / 16.0f, absorbed.data(), cached, batch(0, rows),
                                      positions.data(), stride, counts.data(), read.data()},
                                     {stream, multiprocessors, false}));
                             }),
                attention_operations);
    report_rows(
        "of generated rows",
        microseconds(
            1,
            [&](cudaStream_t stream, int) {
                for (int from = 0; from < rows; from += 64) {
                    const auto at = static_cast<std::size_t>(from);
                    ops::cuda::SelectedAttention op;
                    op.heads = heads;
                    op.scale = 1.0f / 16.0f;
                    op.absorbed = absorbed.data() + at * heads * latent;
                    op.pages = cached;
                    op.batch = batch(from, std::min(64, rows - from));
                    op.positions = positions.data() + at * stride;
                    op.positions_stride = stride;
                    op.counts = counts.data() + at;
                    op.most_tokens = topk + 3;
                    op.partial = partial.data();
                    op.read = read.data() + at * heads * latent;
                    must(ops::cuda::selected_attention(op, {stream, multiprocessors, false}));
                }
            },
            3),
        attention_operations);
}

// With an expert layer's output, as most turns have it.
void bench_turn(int rows) {
    constexpr int hidden = 4096, chosen = 8;
    const auto all = static_cast<std::size_t>(rows);
    check::Random random(5);
    const auto some = check::normals(random, 1 << 20);
    OnDevice<float> streams(all * 4 * hidden), output(all * hidden), pairs(all * chosen * hidden),
        weights(all * chosen), post(all * 4), comb(all * 16), wide(all * hidden),
        partial(all * ops::cuda::prompt_turn_floats(hidden));
    for (auto* memory : {&streams, &output, &pairs, &weights, &post, &comb})
        for (std::size_t at = 0; at < memory->size(); at += some.size())
            require(
                cudaMemcpy(memory->data() + at, some.data(),
                           std::min(some.size(), memory->size() - at) * 4, cudaMemcpyHostToDevice),
                "inputs");
    const RandomRows fn(std::size_t{24} * 4 * hidden);
    const OnDevice<float> base(check::normals(random, 24)), scale(check::normals(random, 3)),
        norm(check::normals(random, hidden));
    OnDevice<__nv_bfloat16> parts(all * ops::cuda::row_parts * hidden), raised(all * hidden);
    ops::cuda::HyperConnectionTurn turn;
    turn.rows = rows;
    turn.hidden = hidden;
    turn.streams = streams.data();
    turn.output = output.data();
    turn.pairs = {chosen, weights.data(), pairs.data()};
    turn.post = post.data();
    turn.comb = comb.data();
    turn.next = {fn.data(), base.data(), scale.data(), norm.data()};
    turn.normed = parts.data();
    turn.raised = raised.data();
    turn.normed_wide = wide.data();
    // Streams, an output and eight experts' come in, streams, a row in parts, raised and wide go
    // out.
    const double bytes = all * hidden * (4.0 * 4 * 3 + 4 + 4 * chosen + 2 * 3 + 2 + 4);
    const auto print = [&](const char* name, double us) {
        std::printf("turn %-20s %5d rows: %9.1f us, %6.3f a row, %6.0f GB/s\n", name, rows, us,
                    us / rows, bytes / us * 1e-3);
        std::fflush(stdout);
    };
    print("of prompts", microseconds(4, [&](cudaStream_t stream, int) {
              must(ops::cuda::prompt_turn(turn, partial.data(), {stream, multiprocessors, false}));
          }));
    print("of generated rows", microseconds(4, [&](cudaStream_t stream, int) {
              must(ops::cuda::mhc_turn(turn, {stream, multiprocessors, false}));
          }));
}

}  // namespace

int main(int argc, char** argv) {
    const auto wanted = [&](const char* name) {
        return argc < 2 || std::strstr(name, argv[1]) != nullptr;
    };
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0), "device");
    multiprocessors = properties.multiProcessorCount;
    std::printf("%s, %d multiprocessors\n", properties.name, multiprocessors);
    const CublasPeer cublas;
    if (cublas.there() && (wanted("dense") || wanted("experts")))
        measure_ceiling(cublas);
    else if (!cublas.there())
        std::printf("cuBLAS is not found here: no peer, no shares\n");
    if (wanted("kda")) {
        for (const int rows : {1024, 2048, 8192})
            bench_kda(rows);
    }
    if (wanted("attention")) {
        for (const int context : {8192, 262144})
            bench_attention(context, 256);
        bench_attention(8192, 2048);
    }
    if (wanted("turn")) {
        bench_turn(512);
        bench_turn(2048);
    }
    if (wanted("dense")) {
        for (const DenseCase& one : dense)
            bench_dense(one, WeightFormat::bf16, 8192, cublas);
        for (const WeightFormat format :
             {WeightFormat::fp8_block, WeightFormat::w4a16, WeightFormat::nvfp4}) {
            for (const int i : {0, 1, 6})
                bench_dense(dense[i], format, 8192, cublas);
        }
        bench_dense(dense[0], WeightFormat::bf16, 2048, cublas);
        bench_dense(dense[1], WeightFormat::bf16, 2048, cublas);
    }
    if (wanted("experts")) {
        for (const auto& [experts, rows] : {std::pair<int, int>{288, 64}, {96, 256}, {24, 2048}}) {
            for (const auto& [n, k] : {std::pair<int, int>{2048, 4096}, {4096, 2048}}) {
                double peer = 0;
                for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::w4a16,
                                                  WeightFormat::nvfp4, WeightFormat::fp8_block})
                    bench_experts(format, n, k, experts, rows, cublas, peer);
            }
        }
    }
    return 0;
}
