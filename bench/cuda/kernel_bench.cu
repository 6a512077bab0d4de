// kernel_bench [FILTER [ROWS]]: times the decode kernels at the full model's shapes and prints, for
// each, the bytes that it must move, the time they would take at this run's read ceiling, the
// measured median and the share of the ceiling.
#include <cstring>
#include <string>
#include <tuple>

#include "cuda/measure.h"
#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/kda_step.h"
#include "ops/cuda/latent_attention.h"
#include "ops/cuda/logit_digest.h"
#include "ops/cuda/mhc_turn.h"
#include "ops/cuda/router.h"
#include "ops/cuda/select_tokens.h"
#include "ops/stored_rows.h"

using namespace percheron;
using namespace percheron::bench;
using check::OnDevice;
using ops::WeightFormat;

namespace {

double ceiling = 0;  // GB/s
int multiprocessors = 0;
int only_rows = 0;  // 0: all

bool wants(int rows) {
    return only_rows == 0 || rows == only_rows;
}

void report(const std::string& name, int rows, double bytes, double plain, double dependent) {
    const double floor = bytes / ceiling / 1e3;
    std::printf(
        "%-34s rows %3d  %8.1f MB  floor %7.2f us  plain %7.2f us %5.1f %%  "
        "dependent %7.2f us %5.1f %%\n",
        name.c_str(), rows, bytes / 1e6, floor, plain, 100 * floor / plain, dependent,
        100 * floor / dependent);
    std::fflush(stdout);
}

// One product or a set of equal ones that share their input.
struct ProductCase {
    const char* name;
    WeightFormat format;
    int n, k, count;
    bool swiglu;
};

constexpr ProductCase products[] = {
    {"bf16 kda inputs 24896x4096", WeightFormat::bf16, 24896, 4096, 1, false},
    {"bf16 kda output 4096x8192", WeightFormat::bf16, 4096, 8192, 1, false},
    {"bf16 sparse inputs 2336x4096", WeightFormat::bf16, 2336, 4096, 1, false},
    {"bf16 q_b, index q 20480x1536", WeightFormat::bf16, 20480, 1536, 1, false},
    {"bf16 sparse output 4096x16384", WeightFormat::bf16, 4096, 16384, 1, false},
    {"bf16 f_b, g_b 2x8192x128", WeightFormat::bf16, 8192, 128, 2, false},
    {"bf16 shared gate, up 2048x4096", WeightFormat::bf16, 2048, 4096, 1, true},
    {"bf16 shared down 4096x2048", WeightFormat::bf16, 4096, 2048, 1, false},
    {"bf16 head 154880x4096", WeightFormat::bf16, 154880, 4096, 1, false},
    {"bf16 tp2 kda inputs 12448x4096", WeightFormat::bf16, 12448, 4096, 1, false},
    {"bf16 tp2 kda output 4096x4096", WeightFormat::bf16, 4096, 4096, 1, false},
    {"fp8 sparse output 4096x16384", WeightFormat::fp8_block, 4096, 16384, 1, false},
    {"fp8 8 experts gate, up 2048x4096", WeightFormat::fp8_block, 2048, 4096, 8, true},
    {"fp8 8 experts down 4096x2048", WeightFormat::fp8_block, 4096, 2048, 8, false},
    {"w4a16 8 experts gate, up 2048x4096", WeightFormat::w4a16, 2048, 4096, 8, true},
    {"w4a16 8 experts down 4096x2048", WeightFormat::w4a16, 4096, 2048, 8, false},
    {"w4a16 4096x8192", WeightFormat::w4a16, 4096, 8192, 1, false},
    {"nvfp4 8 experts gate, up 2048x4096", WeightFormat::nvfp4, 2048, 4096, 8, true},
    {"nvfp4 8 experts down 4096x2048", WeightFormat::nvfp4, 4096, 2048, 8, false},
};

void bench_product(const ProductCase& one) {
    const std::size_t bytes_each =
        ops::cuda::packed_bytes(one.format, one.n, one.k) * (one.swiglu ? 2 : 1);
    const std::size_t bytes = bytes_each * one.count;
    // At least 400 MB go by before the same weights come again.
    const int copies = static_cast<int>((400'000'000 + bytes - 1) / bytes);
    const RandomMemory weights(bytes * copies);
    for (int rows : {1, 4, 8, 16, 64}) {
        if (!wants(rows)) continue;
        check::Random random(5);
        const OnDevice<__nv_bfloat16> x(
            check::as_bf16(check::normals(random, static_cast<std::size_t>(rows) * one.k)));
        OnDevice<float> y(static_cast<std::size_t>(rows) * one.n * one.count);
        const auto time = [&](bool dependent) {
            const int calls = std::max(copies, 20);
            return microseconds(calls, [&](cudaStream_t stream, int call) {
                std::vector<ops::cuda::FewRowProduct> set;
                for (int i = 0; i < one.count; ++i) {
                    const std::uint8_t* at =
                        weights.data() + (call % copies) * bytes + i * bytes_each;
                    ops::cuda::FewRowProduct product;
                    product.weight = {one.format, one.n, one.k, at, 1.0f};
                    if (one.swiglu)
                        product.up = {one.format, one.n, one.k, at + bytes_each / 2, 1.0f};
                    product.x = x.data();
                    product.x_stride = one.k;
                    product.y = y.data() + static_cast<std::size_t>(i) * rows * one.n;
                    product.y_stride = one.n;
                    product.y_is_bf16 = one.swiglu;
                    set.push_back(product);
                }
                const auto status =
                    ops::cuda::few_row_gemm(set, rows, 10.0f, {stream, multiprocessors, dependent});
                if (!status.ok()) {
                    std::printf("%s\n", status.error().message().c_str());
                    std::exit(1);
                }
            });
        };
        report(one.name, rows, static_cast<double>(bytes), time(false), time(true));
    }
}

void bench_kda(int sequences, int rows_each, int commit) {
    constexpr int heads = 64, dim = 128, channels = heads * dim;
    constexpr std::uint32_t ring = 16;
    const int copies = std::max(1, 160 / sequences);
    const std::size_t state_size = static_cast<std::size_t>(heads) * dim * dim;
    check::Random random(7);
    OnDevice<float> state(check::normals(random, 1 << 20)),
        all_states(state_size * sequences * copies);
    for (std::size_t at = 0; at < all_states.size(); at += 1 << 20)
        require(cudaMemcpy(all_states.data() + at, state.data(), sizeof(float) << 20,
                           cudaMemcpyDeviceToDevice),
                "state");
    const int rows = sequences * rows_each;
    const std::size_t kept_width = ops::kda_kept_row(heads, dim);
    const RandomMemory conv(sizeof(float) * sequences * copies * ring * 3 * channels);
    const RandomMemory kept(sizeof(float) * sequences * copies * ring * kept_width);
    const OnDevice<float> projections(check::normals(random, 3u * channels * rows)),
        beta(check::normals(random, heads * rows)), decay(check::normals(random, channels * rows)),
        gate(check::normals(random, channels * rows)),
        weight(check::normals(random, 12 * channels)), a_log(check::normals(random, heads)),
        bias(check::normals(random, channels)), norm(check::normals(random, dim));
    OnDevice<__nv_bfloat16> output(static_cast<std::size_t>(channels) * rows);
    std::vector<ops::cuda::DeviceSequence> host;
    for (int copy = 0; copy < copies; ++copy) {
        for (int s = 0; s < sequences; ++s)
            host.push_back({static_cast<std::uint32_t>(s * rows_each),
                            static_cast<std::uint32_t>(rows_each), 1000,
                            static_cast<std::uint32_t>(commit > 0 ? 1000 : 1000 - 3),
                            static_cast<std::uint32_t>(commit),
                            static_cast<std::uint32_t>(copy * sequences + s), 0});
    }
    const OnDevice<ops::cuda::DeviceSequence> batch(host);
    const auto time = [&](bool dependent) {
        return microseconds(std::max(copies, 20), [&](cudaStream_t stream, int call) {
            ops::cuda::KdaStep step;
            step.heads = heads;
            step.projections = projections.data();
            step.projection_stride = 3 * channels;
            step.beta = beta.data();
            step.beta_stride = heads;
            step.decay = decay.data();
            step.decay_stride = channels;
            step.gate = gate.data();
            step.gate_stride = channels;
            step.conv = weight.data();
            step.a_log = a_log.data();
            step.dt_bias = bias.data();
            step.out_norm = norm.data();
            step.slots = {all_states.data(),
                          state_size,
                          reinterpret_cast<float*>(conv.data()),
                          ring * 3 * channels,
                          reinterpret_cast<float*>(kept.data()),
                          ring * kept_width,
                          ring};
            step.sequences = batch.data() + (call % copies) * sequences;
            step.sequence_count = sequences;
            step.output = output.data();
            const auto status = ops::cuda::kda_step(step, {stream, multiprocessors, dependent});
            if (!status.ok()) std::exit(1);
        });
    };
    const double bytes = 8.0 * static_cast<double>(state_size) * sequences;
    report("kda step, " + std::to_string(sequences) + " sequences" + (commit ? "" : ", verify"),
           rows, bytes, time(false), time(true));
}

void must(const Status& status) {
    if (status.ok()) return;
    std::printf("%s\n", status.error().message().c_str());
    std::exit(1);
}

// `time(dependent)` twice, and the report.
template <class Time>
void both(const std::string& name, int rows, double bytes, const Time& time) {
    report(name, rows, bytes, time(false), time(true));
}

// Rows of as many sequences at position context - 1, over a pool of pages several times the cache.
struct SparseBench {
    static constexpr int heads = 64, latent = 512, topk = 2048, width = topk + 4;
    int rows, context, copies;
    std::vector<ops::cuda::DeviceSequence> host_sequences;
    std::vector<std::uint32_t> host_rows, host_pages, host_positions, host_counts;
    std::size_t pages_each;
    RandomMemory latents, pooled;
    ops::LatentPages view;

    SparseBench(int rows, int context, DType dtype)
        : rows(rows),
          context(context),
          copies(std::max(1, 200'000 / context / rows)),
          pages_each((context + 63) / 64),
          latents(pages_each * rows * copies * ops::stored_rows_bytes(dtype, 64, latent)),
          pooled(pages_each * rows * copies * ops::stored_rows_bytes(dtype, 16, 128)) {
        for (int i = 0; i < rows * copies; ++i) {
            host_sequences.push_back({static_cast<std::uint32_t>(i % rows), 1,
                                      static_cast<std::uint32_t>(context - 1),
                                      static_cast<std::uint32_t>(context - 1), 1, 0,
                                      static_cast<std::uint32_t>(host_pages.size())});
            host_rows.push_back(static_cast<std::uint32_t>(i % rows));
            for (std::size_t p = 0; p < pages_each; ++p)
                host_pages.push_back(static_cast<std::uint32_t>(i * pages_each + p));
            const int count = std::min(context, topk + 3);
            for (int k = 0; k < width; ++k)
                host_positions.push_back(static_cast<std::uint32_t>(
                    static_cast<std::int64_t>(std::min(k, count - 1)) * context / count));
            host_counts.push_back(static_cast<std::uint32_t>(count));
        }
        view.latents = latents.data();
        view.latent_dtype = view.pooled_dtype = dtype;
        view.latent_page_bytes = ops::stored_rows_bytes(dtype, 64, latent);
        view.pooled = pooled.data();
        view.pooled_page_bytes = ops::stored_rows_bytes(dtype, 16, 128);
        if (dtype == DType::bf16) return;
        // Scales that are numbers, behind the rows of each page.
        const auto set_scales = [this](void* share, std::size_t bytes, std::size_t page_rows) {
            check::require(cudaMemset2D(static_cast<char*>(share) + bytes - page_rows, bytes, 120,
                                        page_rows, pages_each * this->rows * copies),
                           "scales");
        };
        set_scales(view.latents, view.latent_page_bytes, 64);
        set_scales(view.pooled, view.pooled_page_bytes, 16);
    }
};

void bench_sparse(int rows, int context, DType dtype) {
    const SparseBench set(rows, context, dtype);
    const OnDevice<ops::cuda::DeviceSequence> sequences(set.host_sequences);
    const OnDevice<std::uint32_t> row_sequences(set.host_rows), pages(set.host_pages),
        positions(set.host_positions), counts(set.host_counts);
    check::Random random(9);
    constexpr int heads = SparseBench::heads, latent = SparseBench::latent;
    const OnDevice<__nv_bfloat16> absorbed(
        check::as_bf16(check::normals(random, static_cast<std::size_t>(rows) * heads * latent)));
    OnDevice<__nv_bfloat16> read(static_cast<std::size_t>(rows) * heads * latent);
    OnDevice<float> partial(
        ops::cuda::attention_partial_floats(heads, SparseBench::topk + 3, rows));
    const auto batch_of = [&](int call) {
        const int copy = call % set.copies;
        return ops::cuda::DeviceBatch{rows, sequences.data() + copy * rows, rows,
                                      row_sequences.data(), pages.data()};
    };
    const int count = std::min(context, SparseBench::topk + 3);
    const std::string at =
        ", context " + std::to_string(context) + (dtype == DType::bf16 ? "" : ", fp8");
    both("selected attention" + at, rows, set.view.latent_page_bytes / 64.0 * count * rows,
         [&](bool dependent) {
             return microseconds(std::max(20, set.copies), [&](cudaStream_t stream, int call) {
                 ops::cuda::SelectedAttention op;
                 op.heads = heads;
                 op.scale = 1.0f / 16;
                 op.absorbed = absorbed.data();
                 op.pages = set.view;
                 op.batch = batch_of(call);
                 op.positions = positions.data();
                 op.positions_stride = SparseBench::width;
                 op.counts = counts.data();
                 op.most_tokens = count;
                 op.partial = partial.data();
                 op.read = read.data();
                 must(ops::cuda::selected_attention(op, {stream, multiprocessors, dependent}));
             });
         });
    const int pools = context / 4;
    const OnDevice<__nv_bfloat16> query(check::as_bf16(check::normals(random, rows * 32u * 128)));
    const OnDevice<float> weights(check::normals(random, rows * 32u));
    OnDevice<float> scores(static_cast<std::size_t>(rows) * pools);
    OnDevice<std::uint32_t> chosen(static_cast<std::size_t>(rows) * SparseBench::width),
        chosen_counts(rows);
    both("token selection" + at, rows, set.view.pooled_page_bytes / 16.0 * pools * rows,
         [&](bool dependent) {
             return microseconds(std::max(20, set.copies), [&](cudaStream_t stream, int call) {
                 ops::cuda::TokenSelection op;
                 op.heads = 32;
                 op.topk = SparseBench::topk;
                 op.query = query.data();
                 op.query_stride = 32 * 128;
                 op.head_weight = weights.data();
                 op.head_weight_stride = 32;
                 op.pages = set.view;
                 op.batch = batch_of(call);
                 op.most_pools = pools;
                 op.scores = scores.data();
                 op.positions = chosen.data();
                 op.positions_stride = SparseBench::width;
                 op.counts = chosen_counts.data();
                 must(ops::cuda::select_tokens(op, {stream, multiprocessors, dependent}));
             });
         });
}

void bench_turn(int rows) {
    constexpr int hidden = 4096, copies = 500;
    const std::size_t fn_bytes = 24 * 4 * hidden * 2;
    const RandomMemory fn(fn_bytes * copies);
    check::Random random(10);
    OnDevice<float> streams(check::normals(random, rows * 4u * hidden)),
        post(check::normals(random, rows * 4)), comb(check::normals(random, rows * 16)),
        wide(static_cast<std::size_t>(rows) * hidden);
    const OnDevice<float> output(check::normals(random, static_cast<std::size_t>(rows) * hidden)),
        base(check::normals(random, 24)), scale(check::normals(random, 3)),
        norm(check::normals(random, hidden));
    OnDevice<__nv_bfloat16> normed(static_cast<std::size_t>(rows) * ops::cuda::row_parts * hidden);
    both("mhc turn", rows, static_cast<double>(fn_bytes) + rows * hidden * 40.0,
         [&](bool dependent) {
             return microseconds(copies, [&](cudaStream_t stream, int call) {
                 ops::cuda::HyperConnectionTurn turn;
                 turn.rows = rows;
                 turn.hidden = hidden;
                 turn.streams = streams.data();
                 turn.output = output.data();
                 turn.post = post.data();
                 turn.comb = comb.data();
                 turn.next = {reinterpret_cast<const __nv_bfloat16*>(fn.data() + fn_bytes * call),
                              base.data(), scale.data(), norm.data()};
                 turn.normed = normed.data();
                 turn.normed_wide = wide.data();
                 must(ops::cuda::mhc_turn(turn, {stream, multiprocessors, dependent}));
             });
         });
}

// Router, experts and their sum at the full model's shapes.
void bench_experts(WeightFormat format, int rows) {
    constexpr int hidden = 4096, inner = 2048, experts = 288, chosen = 8, sets = 4;
    const std::size_t gate_bytes = ops::cuda::packed_bytes(format, inner, hidden);
    const std::size_t down_bytes = ops::cuda::packed_bytes(format, hidden, inner);
    const RandomMemory weights((2 * gate_bytes + down_bytes) * experts);
    const RandomMemory router_weights(static_cast<std::size_t>(sets) * experts * hidden * 2);
    std::vector<const std::uint8_t*> pointers[3];
    for (int e = 0; e < experts; ++e) {
        const std::uint8_t* const at = weights.data() + e * (2 * gate_bytes + down_bytes);
        pointers[0].push_back(at);
        pointers[1].push_back(at + gate_bytes);
        pointers[2].push_back(at + 2 * gate_bytes);
    }
    const OnDevice<const std::uint8_t*> gates(pointers[0]), ups(pointers[1]), downs(pointers[2]);
    const OnDevice<float> ones(std::vector<float>(experts, 1.0f)),
        bias(std::vector<float>(experts, 0.0f));
    check::Random random(11);
    constexpr int inputs = 8;
    constexpr int stride = ops::cuda::row_parts * hidden;
    const OnDevice<__nv_bfloat16> x(check::as_bf16(
        check::normals(random, static_cast<std::size_t>(inputs) * rows * stride, 0.1f)));
    const std::size_t pairs = static_cast<std::size_t>(rows) * chosen;
    OnDevice<std::uint32_t> chosen_experts(pairs), order(pairs);
    OnDevice<float> chosen_weights(pairs),
        logits(static_cast<std::size_t>(rows) * ops::cuda::row_parts * experts),
        pair_output(pairs * hidden), y(static_cast<std::size_t>(rows) * hidden),
        shared(static_cast<std::size_t>(rows) * hidden);
    OnDevice<ops::cuda::ExpertGroup> groups(pairs);
    OnDevice<std::int32_t> group_count(1);
    OnDevice<__nv_bfloat16> inside(pairs * inner);
    const ops::cuda::ExpertChoice choice{chosen_experts.data(),  chosen_weights.data(),
                                         order.data(),           groups.data(),
                                         group_count.data(),     nullptr,
                                         static_cast<int>(pairs)};
    const auto part = [&](int which) {
        return [&, which](bool dependent) {
            return microseconds(24, [&](cudaStream_t stream, int call) {
                const ops::cuda::LaunchContext context{stream, multiprocessors, dependent};
                ops::cuda::Routing routing;
                routing.rows = rows;
                routing.hidden = hidden;
                routing.experts = experts;
                routing.chosen = chosen;
                routing.x = x.data() + static_cast<std::size_t>(call % inputs) * rows * stride;
                routing.weight.n = experts;
                routing.weight.k = hidden;
                routing.weight.data = router_weights.data() +
                                      static_cast<std::size_t>(call % sets) * experts * hidden * 2;
                routing.bias = bias.data();
                routing.scale = 2.5f;
                routing.logits = logits.data();
                routing.choice = choice;
                must(ops::cuda::route(routing, context));
                if (which == 0) return;
                ops::cuda::ExpertProduct product;
                product.format = format;
                product.n = inner;
                product.k = hidden;
                product.weights = gates.data();
                product.ups = ups.data();
                product.scales = ones.data();
                product.up_scales = ones.data();
                product.x = routing.x;
                product.x_stride = stride;
                product.pairs_per_row = chosen;
                product.y = inside.data();
                product.y_stride = inner;
                must(ops::cuda::expert_gemm(product, choice, 10.0f, context));
                product.n = hidden;
                product.k = inner;
                product.weights = downs.data();
                product.ups = nullptr;
                product.x = inside.data();
                product.x_stride = inner;
                product.pairs_per_row = 1;
                product.y = pair_output.data();
                product.y_stride = hidden;
                must(ops::cuda::expert_gemm(product, choice, 10.0f, context));
                must(ops::cuda::sum_experts({rows,
                                             hidden,
                                             {chosen, chosen_weights.data(), pair_output.data()},
                                             shared.data(),
                                             y.data()},
                                            context));
            });
        };
    };
    both("routed layer: router", rows, experts * hidden * 2.0, part(0));
    // The touched experts of the last replayed call stand for all.
    std::vector<bool> touched(experts);
    int distinct = 0;
    for (std::uint32_t e : chosen_experts.download()) {
        if (e < experts && !touched[e]) {
            touched[e] = true;
            ++distinct;
        }
    }
    both("routed layer, " + std::string(name_of(format)) + ", " + std::to_string(distinct) +
             " touched",
         rows, static_cast<double>(2 * gate_bytes + down_bytes) * distinct, part(1));
}

// Digests of rows of the released vocabulary, as tokens are chosen: the likeliest; drawn from a
// nucleus; drawn from all.
void bench_digest(int rows) {
    constexpr std::size_t vocabulary = 154880;
    using ops::DigestRequest;
    const int copies = std::max(2, 640 / rows);
    check::Random random(9);
    OnDevice<float> logits(vocabulary * rows * copies);
    const std::vector<float> row = check::normals(random, vocabulary, 3.0f);
    for (std::size_t at = 0; at < logits.size(); at += vocabulary)
        require(cudaMemcpy(logits.data() + at, row.data(), vocabulary * sizeof(float),
                           cudaMemcpyHostToDevice),
                "logits");
    const OnDevice<std::uint32_t> excluded(std::vector<std::uint32_t>(vocabulary / 32));
    OnDevice<ops::LogitDigest> digests(rows);
    const std::tuple<const char*, std::uint32_t, float> kinds[] = {
        {"the likeliest", 0, 0.0f},
        {"nucleus", DigestRequest::top | DigestRequest::total, 1.0f},
        {"drawn from all", DigestRequest::noisy, 1.0f},
    };
    for (const auto& [name, wants, temperature] : kinds) {
        DigestRequest request;
        request.temperature = temperature;
        request.wants = wants;
        const OnDevice<DigestRequest> requests(std::vector<DigestRequest>(rows, request));
        both(std::string("logit digest, ") + name, rows,
             static_cast<double>(vocabulary) * rows * sizeof(float), [&](bool dependent) {
                 return microseconds(std::max(copies, 20), [&](cudaStream_t stream, int call) {
                     ops::cuda::LogitDigestion op;
                     op.logits = logits.data() + vocabulary * rows * (call % copies);
                     op.rows = rows;
                     op.vocabulary = vocabulary;
                     op.requests = requests.data();
                     op.excluded = excluded.data();
                     op.digests = digests.data();
                     must(ops::cuda::digest_logits(op, {stream, multiprocessors, dependent}));
                 });
             });
    }
}

}  // namespace

int main(int argc, char** argv) {
    const auto wanted = [&](const char* name) {
        return argc < 2 || std::strstr(name, argv[1]) != nullptr;
    };
    if (argc > 2) only_rows = std::atoi(argv[2]);
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0), "device");
    multiprocessors = properties.multiProcessorCount;
    ceiling = read_ceiling();
    std::printf("%s, %d multiprocessors, read ceiling %.0f GB/s, copy %.0f GB/s (read + written)\n",
                properties.name, multiprocessors, ceiling, copy_rate());
    for (const ProductCase& one : products)
        if (wanted(one.name)) bench_product(one);
    if (wanted("kda step")) {
        for (int sequences : {1, 2, 4, 8, 64})
            bench_kda(sequences, 1, 1);
        bench_kda(1, 8, 0);
        bench_kda(8, 8, 0);
    }
    if (wanted("sparse")) {
        for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
            for (int context : {2048, 8192, 131072, 524288})
                bench_sparse(1, context, dtype);
            bench_sparse(8, 8192, dtype);
            bench_sparse(64, 8192, dtype);
        }
    }
    if (wanted("logit digest")) {
        for (int rows : {1, 8, 64}) {
            if (wants(rows)) bench_digest(rows);
        }
    }
    if (wanted("mhc turn")) {
        for (int rows : {1, 8, 64}) {
            if (wants(rows)) bench_turn(rows);
        }
    }
    if (wanted("routed layer")) {
        for (int rows : {1, 4, 8, 64}) {
            if (wants(rows)) bench_experts(WeightFormat::w4a16, rows);
        }
        if (wants(1)) {
            bench_experts(WeightFormat::fp8_block, 1);
            bench_experts(WeightFormat::nvfp4, 1);
        }
    }
    return 0;
}
