#include <algorithm>
#include <chrono>
#include <numeric>

#include "cuda/drafter_steps.h"
#include "cuda/full_network.cuh"
#include "model/dflash2.h"
#include "ops/cuda/cuda_backend.h"

using namespace percheron;
using namespace percheron::bench;

namespace {

constexpr std::size_t most_rows = 2048;
constexpr std::uint32_t block = 8;

// The published kinds (docs/CHECKPOINTS.md): five layers with windows, or eight that see all.
model::Dflash2Config published(bool full, std::size_t trunk_layers) {
    model::Dflash2Config config;
    config.vocabulary = 154880;
    config.hidden = 4096;
    config.intermediate = 12288;
    config.heads = 32;
    config.kv_heads = 8;
    config.head_dim = 128;
    config.windows.assign(full ? 8 : 5, full ? 0u : 2048u);
    // So many taps of a trunk that has fewer layers here.
    for (std::size_t i = 0; i < std::min<std::size_t>(full ? 9 : 5, trunk_layers); ++i)
        config.target_layers.push_back(i);
    config.block = block;
    config.conv_taps = 2;
    config.conv_width = 16;
    config.selector_rank = 256;
    config.selector_top = 16;
    config.context_limit = 1 << 20;
    if (full) config.mask.assign(config.hidden, 0.1f);
    return config;
}

// Of a pass over one block: every layer's matrices, the head, the selector's projection; and what
// it reads of a context.
double bytes_of(const model::Dflash2Config& config, std::size_t context) {
    const auto hidden = static_cast<double>(config.hidden);
    const auto wide = static_cast<double>(config.heads * config.head_dim);
    const auto narrow = static_cast<double>(config.kv_heads * config.head_dim);
    const auto inner = static_cast<double>(config.intermediate);
    const auto gates =
        static_cast<double>(2 * config.conv_taps * (config.hidden / config.conv_width));
    double values = 0, seen = 0;
    for (const std::uint32_t window : config.windows) {
        values += hidden * (2 * wide + 2 * narrow + 3 * inner + 2 * gates);
        const std::size_t kept = window == 0 ? context : std::min<std::size_t>(context, window);
        seen += 2 * narrow * static_cast<double>(kept);
    }
    values += hidden * static_cast<double>(config.vocabulary + config.selector_rank);
    return 2 * (values + seen);
}

template <class Body>
double median_us(int repeats, Body&& body) {
    std::vector<double> times;
    for (int i = 0; i < repeats + 2; ++i) {
        const auto start = std::chrono::steady_clock::now();
        body();
        const double us =
            std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
                .count();
        if (i >= 2) times.push_back(us);
    }
    std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
    return times[times.size() / 2];
}

void bench_drafter(bool full, double ceiling) {
    constexpr std::size_t trunk_layers = 4;
    const model::Dflash2Config config = published(full, trunk_layers);
    auto backend = must(ops::make_cuda_backend({}));
    DeviceWeights weights(WeightFormat::w4a16);
    model::NetworkOptions options;
    options.max_rows = most_rows;
    options.max_logit_rows = 64;
    const auto trunk =
        must(model::Network::load(full_config(trunk_layers, 1), weights, *backend, options));
    model::Dflash2Options room;
    room.context_rows = most_rows;
    const auto drafter = must(model::Dflash2::load(config, *trunk, weights, *backend, room));
    for (std::size_t tap = 0; tap < config.target_layers.size(); ++tap)
        backend->clear(trunk->tap(tap).data, most_rows * config.hidden * sizeof(float));

    constexpr std::uint32_t longest = 131072;
    constexpr std::uint32_t pages = longest / ops::page_tokens + 64;
    const Bytes layer = 2 * ops::page_tokens * config.kv_heads * config.head_dim * 2;
    auto memory = must(backend->allocate(pages * config.layers() * layer, "pages"));
    fill(memory->data(), pages * config.layers() * layer / 2, 1.0f, 5);
    std::vector<ops::ContextPages> views;
    for (std::size_t i = 0; i < config.layers(); ++i) {
        views.push_back({static_cast<std::byte*>(memory->data()) + i * layer, DType::bf16,
                         config.layers() * layer, config.kv_heads, config.head_dim});
    }
    std::vector<PageId> table;
    for (std::uint32_t page = 0; page < pages; ++page)
        table.push_back(PageId((page * 37u) % pages));

    const char* const name = full ? "8 layers that see all" : "5 layers with windows of 2048";
    for (const std::uint32_t context : {2048u, 8192u, 131072u}) {
        for (const std::uint32_t sequences : {1u, 8u}) {
            std::vector<ops::DraftRows> blocks;
            std::vector<TokenId> newest(sequences, TokenId(5));
            for (std::uint32_t i = 0; i < sequences; ++i)
                blocks.push_back({i * block, block, context, {0, context, table}});
            const double us = median_us(20, [&] { must(drafter->name(blocks, newest, views)); });
            const double bytes =
                bytes_of(config, 0) + sequences * (bytes_of(config, context) - bytes_of(config, 0));
            const double floor = bytes / ceiling / 1e3;
            std::printf(
                "  %s, %u sequences at %6u: %8.1f MB  floor %7.1f us  pass %7.1f us  %5.1f %%\n",
                name, sequences, context, bytes / 1e6, floor, us, 100 * floor / us);
            std::fflush(stdout);
        }
    }
    for (const std::uint32_t rows : {1u, 8u, 2048u}) {
        std::vector<std::uint32_t> tap_rows(rows);
        std::iota(tap_rows.begin(), tap_rows.end(), 0u);
        const ops::DraftRows run{0, rows, 4096, {0, 4096 + rows, table}};
        const double us = median_us(20, [&] {
            const Status added =
                drafter->add_context(ops::NumericClass::decode, {&run, 1}, tap_rows, views);
            if (!added.ok()) std::printf("%s\n", added.error().message().c_str());
        });
        std::printf("  %s, %u rows of context (%zu taps): %.1f us\n", name, rows,
                    config.target_layers.size(), us);
    }
}

}  // namespace

void percheron::bench::bench_drafters(double ceiling) {
    for (const bool full : {false, true})
        bench_drafter(full, ceiling);
}
