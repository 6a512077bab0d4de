// What a drafter's context really takes of the machine, by the operating system's count.
#include <cstdio>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_shape.h"
#include "core/machine_memory.h"
#include "draft/context_cache.h"
#include "draft/verification.h"
#include "model/config.h"
#include "ops/cpu/cpu_backend.h"
#include "ops/drafter_stages.h"

namespace percheron::draft {
namespace {

class ContextMemoryOf : public testing::TestWithParam<DType> {};

// Keys and values of the full kind's eight layers of eight heads of 128, written by the stage that
// writes them: each token costs what the plan counts for it, within 1 %.
TEST_P(ContextMemoryOf, ATokenTakesWhatIsPlanned) {
    constexpr std::size_t layers = 8, heads = 8, dim = 128, hidden = 32, rows = 256;
    constexpr Position tokens = 8192, warm = rows;
    ops::CpuBackendOptions options;
    options.threads = 1;
    const auto backend = ops::make_cpu_backend(options).value();
    ops::DrafterShape drafter;
    drafter.hidden = hidden;
    drafter.taps = 1;
    drafter.heads = drafter.kv_heads = heads;
    drafter.head_dim = dim;
    drafter.intermediate = 64;
    drafter.context_rows = rows;
    drafter.block_rows = drafter.block = 8;
    ASSERT_TRUE(backend->drafter()->prepare(drafter).ok());

    const std::vector<float> weights(heads * dim * hidden, 0.01f), norm(dim, 1.0f);
    std::vector<float> features(rows * hidden, 0.5f);
    ops::DrafterLayerWeights layer;
    layer.key.format = layer.value.format = ops::WeightFormat::f32;
    layer.key.n = layer.value.n = heads * dim;
    layer.key.k = layer.value.k = hidden;
    layer.key.data = layer.value.data = weights.data();
    layer.key_norm = norm.data();
    const ops::Activations c{features.data(), DType::f32, rows, hidden};

    const ContextShape shape{layers, heads, dim, GetParam(), 0};
    const auto cache = ContextCache::create(shape, tokens / ops::page_tokens, 1, *backend).value();
    const auto write = [&](Position first, Position end) {
        for (; first < end; first += rows) {
            ASSERT_EQ(cache->extend(RequestSlot(0), first, first + rows), first);
            const ops::DraftRows batch{0, rows, first, cache->context(RequestSlot(0))};
            for (const ops::ContextPages& pages : cache->views()) {
                backend->drafter()->store_context(layer, pages, {&batch, 1},
                                                  ops::NumericClass::prefill, c);
            }
        }
    };
    write(0, warm);
    const Bytes before = anonymous_memory().value();
    write(warm, tokens);
    const Bytes after = anonymous_memory().value();
    const double planned =
        static_cast<double>(shape.page_bytes()) / static_cast<double>(ops::page_tokens);
    EXPECT_EQ(planned, layers * 2.0 * heads * dim * static_cast<double>(size_of(GetParam())));
    const double taken = static_cast<double>(after - before) / (tokens - warm);
    std::printf("planned %.0f bytes a token, taken %.1f\n", planned, taken);
    EXPECT_NEAR(taken, planned, 0.01 * planned);
}

// One of two ranks of the released model with the full kind's eight layers, half of the heads each,
// all caches in fp8: tokens that 8 GiB hold, counted in requests of 262,144.
TEST(ContextMemory, TokensInEightGibibytesOfARank) {
    model::ModelConfig config;
    config.mixers.assign(34, model::MixerKind::kda);
    config.mixers.insert(config.mixers.end(), 11, model::MixerKind::sparse_attention);
    config.kda_heads = 32;
    config.kda_dim = 128;
    config.kda_conv = 4;
    config.latent = 512;
    config.index_dim = 128;
    config.index_pool = 4;
    const ContextShape drafter{8, 4, 128, DType::f8_e4m3, 0};
    const auto tokens = [&](std::uint32_t depth) {
        const auto shape =
            cache::CacheShape::of(config, DType::f8_e4m3, uncommitted_rows(depth), false);
        constexpr double request = 262'144;
        const double bytes = static_cast<double>(shape.page_bytes() + drafter.page_bytes()) *
                                 request / static_cast<double>(ops::page_tokens) +
                             static_cast<double>(shape.slot_bytes());
        return 8 * 0x1p30 / bytes * request;
    };
    std::printf("tokens in 8 GiB: %.0f at depth 4, %.0f at depth 7\n", tokens(4), tokens(7));
    EXPECT_GE(tokens(4), 585'000);
    EXPECT_GE(tokens(7), 584'500);
}

INSTANTIATE_TEST_SUITE_P(Types, ContextMemoryOf, testing::Values(DType::bf16, DType::f8_e4m3),
                         [](const auto& info) {
                             return info.param == DType::bf16 ? "bf16" : "fp8";
                         });

}  // namespace
}  // namespace percheron::draft
