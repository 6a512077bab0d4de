// step_bench [CASE] [LAYERS]: whole decode steps of full-size layers with random weights, through
// the backend as the engine calls it: what a step must read over this run's read ceiling, beside
// the median time of a step from host to host.  With LAYERS, a few rows of so many layers only.
//
// step_bench prompts [LAYERS [FORMAT [LONGEST]]]: whole prompts instead (prompt_steps.h).
//
// step_bench drafter: passes of block drafters (drafter_steps.h).
//
// step_bench overlap [LAYERS]: prompts and decoding at the same time (overlap_steps.h).
#include <chrono>
#include <cstring>
#include <string>

#include "cuda/drafter_steps.h"
#include "cuda/full_network.cuh"
#include "cuda/overlap_steps.h"
#include "cuda/prompt_steps.h"
#include "ops/cuda/cuda_backend.h"

using namespace percheron;
using namespace percheron::bench;

namespace {

struct Case {
    const char* name;
    WeightFormat experts;
    std::size_t layers, shards;
    std::vector<std::pair<int, int>> points;  // rows, context
    // Types of the caches, one after the other over the same weights.
    std::vector<DType> kv_dtypes = {DType::bf16};
};

double ceiling = 0;

// What a step reads of weights, in bytes.
struct WeightBytes {
    double trunk = 0, expert = 0;
};

void bench_points(const Case& one, const model::ModelConfig& config, ops::Backend& backend,
                  model::Network& network, WeightBytes weights, DType kv_dtype);

void bench_case(const Case& one) {
    const auto start = std::chrono::steady_clock::now();
    const model::ModelConfig config = full_config(one.layers, one.shards);
    auto backend = must(ops::make_cuda_backend({}));
    std::unique_ptr<model::Network> network;
    WeightBytes bytes;
    {
        DeviceWeights weights(one.experts);
        model::NetworkOptions options;
        options.max_rows = 64;
        options.max_logit_rows = 64;
        network = must(model::Network::load(config, weights, *backend, options));
        const Status used = network->use_digests({});
        if (!used.ok()) {
            std::printf("%s\n", used.error().message().c_str());
            std::exit(1);
        }
        bytes = {weights.trunk_bytes, weights.expert_bytes};
    }
    std::size_t free_bytes = 0, total_bytes = 0;
    require(cudaMemGetInfo(&free_bytes, &total_bytes), "memory");
    std::printf("%s: %zu layers, loaded in %.1f s, %.1f GiB of %.1f used\n", one.name, one.layers,
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                (total_bytes - free_bytes) / 0x1p30, total_bytes / 0x1p30);
    for (const DType kv_dtype : one.kv_dtypes)
        bench_points(one, config, *backend, *network, bytes, kv_dtype);
}

void bench_points(const Case& one, const model::ModelConfig& config, ops::Backend& backend,
                  model::Network& network, WeightBytes weights, DType kv_dtype) {
    const cache::CacheShape shape = cache::CacheShape::of(config, kv_dtype);
    const auto pages = static_cast<std::uint32_t>((std::size_t{8} << 30) / shape.page_bytes());
    auto caches = must(cache::CacheStore::create(shape, pages, 64, backend));
    for (std::uint32_t slot = 0; slot < 64; ++slot)
        caches->clear_slot(RequestSlot(slot));
    fill_caches(*caches, pages);
    const std::string cached(cache::name_of_kv_dtype(kv_dtype));
    std::printf("  caches in %s: %u pages of %zu bytes a token\n", cached.c_str(), pages,
                static_cast<std::size_t>(shape.bytes_per_token()));

    for (const auto& [rows, context] : one.points) {
        const std::uint32_t pages_each = cache::pages_for(static_cast<std::uint64_t>(context) + 64);
        if (static_cast<std::uint64_t>(pages_each) * rows > pages) {
            std::printf("  %d rows of %d tokens do not fit\n", rows, context);
            continue;
        }
        std::vector<ops::SequenceRows> sequences(rows);
        std::vector<std::vector<PageId>> tables(rows);
        std::vector<TokenId> tokens(rows);
        std::vector<std::uint32_t> logit_rows(rows);
        std::uint32_t page = 0;
        for (int i = 0; i < rows; ++i) {
            for (std::uint32_t p = 0; p < pages_each; ++p)
                tables[i].push_back(PageId(page++));
            sequences[i].first_row = logit_rows[i] = static_cast<std::uint32_t>(i);
            sequences[i].row_count = sequences[i].commit_rows = 1;
            sequences[i].slot = RequestSlot(static_cast<std::uint32_t>(i));
            sequences[i].pages = tables[i];
        }
        // As the engine asks where tokens are the likeliest ones.
        const std::vector<ops::DigestRequest> digests(rows);
        std::vector<double> times;
        constexpr int steps = 43, warm = 3;
        for (int step = 0; step < steps; ++step) {
            for (int i = 0; i < rows; ++i) {
                tokens[i] = TokenId(static_cast<int>((step * 977 + i * 1871) % config.vocabulary));
                sequences[i].first_position = sequences[i].state_position =
                    static_cast<std::uint32_t>(context - steps + step);
            }
            ops::RowBatch batch;
            batch.sequences = sequences;
            batch.tokens = tokens;
            batch.logit_rows = logit_rows;
            batch.digests = digests;
            const auto begin = std::chrono::steady_clock::now();
            must(network.forward(batch, caches->views()));
            const double us =
                std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin)
                    .count();
            if (step >= warm) times.push_back(us);
        }
        std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
        const double median = times[times.size() / 2];
        const auto facts = must(ops::cuda_step_facts(backend));
        double touched = 0;
        for (const std::int32_t layer : facts.touched_experts)
            touched += layer;
        const double per_sequence =
            8.0 * static_cast<double>(shape.kda_layers * shape.state_floats()) +
            static_cast<double>(shape.sparse_layers) *
                (std::min(context, 2051) * (shape.latent_page_bytes() / 64.0) +
                 (context > 2051 ? context * (shape.pooled_page_bytes() / 64.0) : 0.0));
        const double bytes = weights.trunk + touched * weights.expert + rows * per_sequence;
        const double floor = bytes / ceiling / 1e3;
        std::printf(
            "  %-22s %s rows %3d context %7d  %8.1f MB  floor %8.1f us  step %8.1f us  "
            "%5.1f %%  %.1f experts a layer, %zu kernels, %.1f us a layer\n",
            one.name, cached.c_str(), rows, context, bytes / 1e6, floor, median,
            100 * floor / median,
            touched / static_cast<double>(std::max<std::size_t>(1, facts.touched_experts.size())),
            facts.recorded_kernels, median / static_cast<double>(one.layers));
        std::fflush(stdout);
    }
}

void bench_prompts_of(int argc, char** argv) {
    const auto number = [&](int at, std::size_t otherwise) {
        return argc > at ? std::strtoul(argv[at], nullptr, 10) : otherwise;
    };
    WeightFormat experts = WeightFormat::w4a16;
    for (const WeightFormat format :
         {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::nvfp4}) {
        if (argc > 3 && ops::name_of(format) == argv[3]) experts = format;
    }
    bench_prompts(number(2, 8), experts, number(4, 262144));
}

}  // namespace

int main(int argc, char** argv) {
    cudaDeviceProp properties;
    require(cudaGetDeviceProperties(&properties, 0), "device");
    if (argc > 1 && std::strcmp(argv[1], "prompts") == 0) {
        std::printf("%s\n", properties.name);
        bench_prompts_of(argc, argv);
        return 0;
    }
    if (argc > 1 && std::strcmp(argv[1], "overlap") == 0) {
        std::printf("%s\n", properties.name);
        bench_overlap(argc > 2 ? std::strtoul(argv[2], nullptr, 10) : 8);
        return 0;
    }
    ceiling = read_ceiling();
    std::printf("%s, read ceiling %.0f GB/s\n", properties.name, ceiling);
    if (argc > 1 && std::strcmp(argv[1], "drafter") == 0) {
        bench_drafters(ceiling);
        return 0;
    }
    const std::vector<std::pair<int, int>> all = {{1, 2048},  {1, 8192},   {8, 8192},
                                                  {64, 8192}, {1, 131072}, {1, 524288}};
    const std::vector<std::pair<int, int>> few = {{1, 2048}, {8, 8192}};
    const Case cases[] = {
        {"w4a16", WeightFormat::w4a16, 32, 1, all, {DType::bf16, DType::f8_e4m3}},
        {"w4a16 tp2 shard", WeightFormat::w4a16, 32, 2, few},
        {"fp8", WeightFormat::fp8_block, 15, 1, few},
        {"nvfp4", WeightFormat::nvfp4, 24, 1, few},
    };
    for (Case one : cases) {
        if (argc > 1 && std::strcmp(one.name, argv[1]) != 0) continue;
        if (argc > 2) {
            one.layers = std::strtoul(argv[2], nullptr, 10);
            one.points = {{1, 2048}, {8, 8192}, {64, 8192}};
        }
        bench_case(one);
    }
    return 0;
}
