#include "cache/cache_store.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <string>

#include <gtest/gtest.h>

#include "cache/fake_backend.h"
#include "cache/pools.h"
#include "ops/stored_rows.h"

namespace percheron::cache {
namespace {

model::ModelConfig random_config(std::mt19937& random) {
    model::ModelConfig config;
    for (std::size_t layer = 1 + random() % 6; layer > 0; --layer) {
        config.mixers.push_back(model::MixerKind::kda);
    }
    for (std::size_t layer = 1 + random() % 3; layer > 0; --layer) {
        config.mixers.push_back(model::MixerKind::sparse_attention);
    }
    std::shuffle(config.mixers.begin(), config.mixers.end(), random);
    config.latent = 8 * (1 + random() % 8);
    config.index_dim = 4 * (1 + random() % 8);
    config.index_pool = 4;
    config.kda_heads = 1 + random() % 3;
    config.kda_dim = 4 * (1 + random() % 5);
    return config;
}

// Writes a mark of its own into every byte of every part, then looks whether any mark was
// overwritten: parts that overlap, or strides that are too short, cannot pass.
TEST(CacheStore, NoTwoPartsShareAByte) {
    std::mt19937 random(3);
    for (int repeat = 0; repeat < 50; ++repeat) {
        const model::ModelConfig config = random_config(random);
        const DType dtype = std::array{DType::bf16, DType::f32, DType::f8_e4m3}[random() % 3];
        const CacheShape shape = CacheShape::of(config, dtype, random() % 20);
        const std::uint32_t pages = 1 + random() % 5;
        const std::uint32_t slots = 1 + random() % 4;
        testing::FakeBackend backend;
        const auto store = CacheStore::create(shape, pages, slots, backend).value();
        std::map<std::byte*, std::pair<Bytes, int>> parts;
        int mark = 0;
        const auto add = [&](void* place, Bytes bytes) {
            std::memset(place, ++mark % 251, bytes);
            parts[static_cast<std::byte*>(place)] = {bytes, mark % 251};
        };
        for (const ops::LatentPages& view : store->views().latent) {
            for (std::uint32_t page = 0; page < pages; ++page) {
                add(static_cast<std::byte*>(view.latents) + page * view.latent_page_bytes,
                    ops::stored_rows_bytes(view.latent_dtype, 64, config.latent));
                add(static_cast<std::byte*>(view.pooled) + page * view.pooled_page_bytes,
                    ops::stored_rows_bytes(view.pooled_dtype, 64 / config.index_pool,
                                           config.index_dim));
            }
            for (std::uint32_t slot = 0; slot < slots; ++slot) {
                add(view.tails + slot * view.tail_stride,
                    sizeof(float) * view.tail_ring * 2 * config.index_dim);
            }
        }
        for (const ops::KdaSlots& view : store->views().kda) {
            for (std::uint32_t slot = 0; slot < slots; ++slot) {
                add(view.state + slot * view.state_stride,
                    sizeof(float) * config.kda_heads * config.kda_dim * config.kda_dim);
                add(view.conv + slot * view.conv_stride,
                    sizeof(float) * view.ring * 3 * config.kda_width());
                add(view.kept + slot * view.kept_stride,
                    sizeof(float) * view.ring *
                        ops::kda_kept_row(config.kda_heads, config.kda_dim));
            }
        }
        const auto count = [&](model::MixerKind kind) {
            return std::count(config.mixers.begin(), config.mixers.end(), kind);
        };
        ASSERT_EQ(store->views().kda.size(), count(model::MixerKind::kda));
        ASSERT_EQ(store->views().latent.size(), count(model::MixerKind::sparse_attention));
        for (const auto& [place, part] : parts) {
            for (Bytes i = 0; i < part.first; ++i) {
                ASSERT_EQ(std::to_integer<int>(place[i]), part.second);
            }
        }
    }
}

// S3: clearing a slot makes it zero and touches no other.
TEST(CacheStore, ClearsOneSlotAndNoOther) {
    std::mt19937 random(4);
    for (int repeat = 0; repeat < 30; ++repeat) {
        const model::ModelConfig config = random_config(random);
        const CacheShape shape = CacheShape::of(config, DType::bf16);
        const std::uint32_t slots = 2 + random() % 4;
        testing::FakeBackend backend;
        const auto store = CacheStore::create(shape, 1, slots, backend).value();
        struct Part {
            float* data;
            std::size_t stride, size;
        };
        std::vector<Part> parts;
        for (const ops::KdaSlots& view : store->views().kda) {
            parts.push_back({view.state, view.state_stride, shape.state_floats()});
            parts.push_back({view.conv, view.conv_stride, shape.conv_floats()});
            parts.push_back({view.kept, view.kept_stride, shape.kept_floats()});
        }
        for (const ops::LatentPages& view : store->views().latent) {
            parts.push_back({view.tails, view.tail_stride, shape.tail_floats()});
        }
        const std::uint32_t cleared = random() % slots;
        for (const Part& part : parts) {
            for (std::uint32_t slot = 0; slot < slots; ++slot) {
                std::fill_n(part.data + slot * part.stride, part.size, 1.0f);
            }
        }
        store->clear_slot(RequestSlot(cleared));
        for (const Part& part : parts) {
            for (std::uint32_t slot = 0; slot < slots; ++slot) {
                const float* data = part.data + slot * part.stride;
                const float expected = slot == cleared ? 0.0f : 1.0f;
                ASSERT_EQ(std::count(data, data + part.size, expected),
                          static_cast<std::ptrdiff_t>(part.size));
            }
        }
    }
}

// C5: what a checkpoint brings back is all that later positions read, in any slot, and nothing of
// whoever had the slot before.
TEST(CacheStore, CheckpointsBringBackStatesAndConvRows) {
    std::mt19937 random(8);
    for (int repeat = 0; repeat < 60; ++repeat) {
        model::ModelConfig config = random_config(random);
        config.hidden = 8 + random() % 40;
        const bool mtp = random() % 2 == 0;
        const CacheShape shape = CacheShape::of(config, DType::bf16, random() % 12, mtp);
        const std::uint32_t slots = 2 + random() % 3, checkpoints = 1 + random() % 4;
        testing::FakeBackend backend;
        const auto store = CacheStore::create(shape, 1, slots, backend, checkpoints).value();
        const auto fill = [&](RequestSlot slot, Position position, float mark) {
            for (const ops::KdaSlots& view : store->views().kda) {
                std::fill_n(view.state + to_int(slot) * view.state_stride,
                            config.kda_heads * config.kda_dim * config.kda_dim, mark);
                for (Position back = 1; back <= 3 && back <= position; ++back) {
                    std::fill_n(view.conv + to_int(slot) * view.conv_stride +
                                    (position - back) % view.ring * 3 * config.kda_width(),
                                3 * config.kda_width(), mark + static_cast<float>(back));
                }
                mark += 10;
            }
        };
        const auto expect = [&](RequestSlot slot, Position position, float mark) {
            const auto all = [](const float* data, std::size_t count, float value) {
                return std::count(data, data + count, value) == static_cast<long>(count);
            };
            for (const ops::KdaSlots& view : store->views().kda) {
                ASSERT_TRUE(all(view.state + to_int(slot) * view.state_stride,
                                config.kda_heads * config.kda_dim * config.kda_dim, mark));
                for (Position back = 1; back <= 3; ++back) {
                    ASSERT_TRUE(all(view.conv + to_int(slot) * view.conv_stride +
                                        (position - back) % view.ring * 3 * config.kda_width(),
                                    3 * config.kda_width(), mark + static_cast<float>(back)));
                }
                mark += 10;
            }
            for (const ops::LatentPages& view : store->views().latent) {
                ASSERT_TRUE(all(view.tails + to_int(slot) * view.tail_stride,
                                view.tail_ring * 2 * config.index_dim, 0.0f));
            }
        };
        std::vector<Position> positions(checkpoints);
        for (std::uint32_t id = 0; id < checkpoints; ++id) {
            positions[id] = 64 * (1 + random() % 50);
            const auto slot = static_cast<RequestSlot>(random() % slots);
            fill(slot, positions[id], static_cast<float>(1000 * (id + 1)));
            store->save(slot, positions[id], CheckpointId(id));
        }
        for (int i = 0; i < 20; ++i) {
            const auto id = static_cast<std::uint32_t>(random() % checkpoints);
            const auto slot = static_cast<RequestSlot>(random() % slots);
            const auto other = static_cast<RequestSlot>((to_int(slot) + 1) % slots);
            fill(other, 64, 5.0f);
            fill(slot, static_cast<Position>(random() % 200), -500.0f);
            store->restore(slot, positions[id], CheckpointId(id));
            expect(slot, positions[id], static_cast<float>(1000 * (id + 1)));
            ASSERT_EQ(
                store->views().kda[0].state[to_int(other) * store->views().kda[0].state_stride],
                5.0f);
        }
    }
}

// The sizes of the full model as its documentation states them: latents 11,264 bytes a token over
// 11 layers in bf16; KDA state 136 MiB a sequence over 34 layers.
TEST(CacheShape, GivesThePublishedSizesOfTheFullModel) {
    model::ModelConfig config;
    for (int layer = 0; layer < 45; ++layer) {
        config.mixers.push_back(layer % 4 == 3 ? model::MixerKind::sparse_attention
                                               : model::MixerKind::kda);
    }
    config.latent = 512;
    config.index_dim = 128;
    config.index_pool = 4;
    config.kda_heads = 64;
    config.kda_dim = 128;
    const CacheShape shape = CacheShape::of(config, DType::bf16);
    EXPECT_EQ(shape.sparse_layers * shape.latent_page_bytes() / 64, 11'264u);
    EXPECT_EQ(shape.sparse_layers * shape.pooled_page_bytes() / 64, 11u * 64u);
    EXPECT_EQ(shape.bytes_per_token(), 11'264u + 11u * 64u);
    EXPECT_EQ(shape.kda_layers * shape.state_floats() * sizeof(float), Bytes{136} << 20);
    // Beside the states three conv rows a layer of 3 x 64 x 128 channels, as they are computed.
    EXPECT_EQ(shape.checkpoint_bytes(), (Bytes{136} << 20) + 34u * 3 * 3 * 64 * 128 * 4);
}

TEST(CacheShape, RingsHoldWhatAVerificationRoundNeeds) {
    for (const std::uint32_t rows : {0u, 1u, 2u, 8u, 16u}) {
        model::ModelConfig config;
        config.index_pool = 4;
        const CacheShape shape = CacheShape::of(config, DType::bf16, rows);
        EXPECT_GE(shape.ring, 3 + rows);
        EXPECT_GE(shape.tail_ring, 4 + rows);
    }
}

TEST(KvDtype, IsHonouredOrRefused) {
    using enum ops::Arithmetic;
    EXPECT_EQ(kv_dtype_of("auto", standard).value(), DType::bf16);
    EXPECT_EQ(kv_dtype_of("bf16", standard).value(), DType::bf16);
    EXPECT_EQ(kv_dtype_of("auto", fp32).value(), DType::f32);
    EXPECT_EQ(kv_dtype_of("f32", fp32).value(), DType::f32);
    EXPECT_EQ(kv_dtype_of("fp8", standard).value(), DType::f8_e4m3);
    EXPECT_EQ(kv_dtype_of("fp8", fp32).error().code(), ErrorCode::unsupported);
    for (const char* const name : {"bf16", "fp8"}) {
        EXPECT_EQ(name_of_kv_dtype(kv_dtype_of(name, standard).value()), name);
    }
    EXPECT_EQ(name_of_kv_dtype(DType::f32), "f32");
    EXPECT_EQ(kv_dtype_of("bf16", fp32).error().code(), ErrorCode::unsupported);
    EXPECT_EQ(kv_dtype_of("f32", standard).error().code(), ErrorCode::unsupported);
    EXPECT_EQ(kv_dtype_of("int3", standard).error().code(), ErrorCode::invalid_argument);
}

TEST(PagePool, HandsOutEachPageOnceAndTakesAllBack) {
    std::mt19937 random(6);
    for (int repeat = 0; repeat < 200; ++repeat) {
        const std::uint32_t total = 1 + random() % 60;
        PagePool pool(total);
        std::vector<std::vector<PageId>> tables(1 + random() % 8);
        for (int i = 0; i < 100; ++i) {
            std::vector<PageId>& table = tables[random() % tables.size()];
            if (random() % 3 == 0) {
                pool.release(table);
                EXPECT_TRUE(table.empty());
            } else {
                const auto wanted = static_cast<std::uint32_t>(table.size() + random() % 10);
                const std::uint32_t free_before = pool.free();
                const std::size_t held = table.size();
                const bool fits = wanted <= held + free_before;
                ASSERT_EQ(pool.grow(table, wanted), fits);
                ASSERT_EQ(table.size(), fits ? wanted : held);
            }
            std::set<PageId> used;
            std::size_t held = 0;
            for (const auto& each : tables) {
                used.insert(each.begin(), each.end());
                held += each.size();
            }
            ASSERT_EQ(used.size(), held);
            ASSERT_EQ(held + pool.free(), total);
            ASSERT_TRUE(used.empty() || to_int(*used.rbegin()) < total);
        }
        for (auto& table : tables) {
            pool.release(table);
        }
        ASSERT_EQ(pool.free(), total);
    }
}

}  // namespace
}  // namespace percheron::cache
