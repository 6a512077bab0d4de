// A random mixture of sequences with their caches, for running the same step on two
// implementations.
#pragma once

#include <cstring>
#include <numeric>

#include "ops/batch.h"
#include "ops/cache_views.h"
#include "ops_cpu/random_data.h"

namespace percheron::ops {

struct RandomBatch {
    std::vector<std::vector<PageId>> pages;
    std::vector<SequenceRows> sequences;
    std::vector<TokenId> tokens;
    std::vector<std::uint32_t> logit_rows;
    RowBatch view;
    std::size_t page_count = 0;

    RandomBatch() = default;
    RandomBatch(const RandomBatch&) = delete;
    RandomBatch& operator=(const RandomBatch&) = delete;

    void finish(NumericClass numeric_class) {
        for (std::size_t i = 0; i < sequences.size(); ++i)
            sequences[i].pages = pages[i];
        view.numeric_class = numeric_class;
        view.sequences = sequences;
        view.tokens = tokens;
        view.logit_rows = logit_rows;
    }
};

inline constexpr std::size_t ring = 16;

// Decode: up to 4 rows a sequence, some kept rows before and some not committed.  Prefill: from a
// multiple of 64, everything committed.
inline std::unique_ptr<RandomBatch> random_batch(Random& random, NumericClass numeric_class,
                                                 std::size_t sequences, std::size_t most_position,
                                                 std::size_t vocabulary = 10,
                                                 std::size_t most_rows = 150) {
    auto batch = std::make_unique<RandomBatch>();
    std::vector<std::uint32_t> slots(sequences);
    std::iota(slots.begin(), slots.end(), 0u);
    for (std::size_t i = sequences; i > 1; --i)
        std::swap(slots[i - 1], slots[random.between(0, i - 1)]);
    std::uint32_t row = 0;
    for (std::size_t i = 0; i < sequences; ++i) {
        SequenceRows s;
        s.first_row = row;
        s.slot = RequestSlot{slots[i]};
        if (numeric_class == NumericClass::prefill) {
            s.first_position = static_cast<Position>(random.between(0, most_position / 64) * 64);
            s.row_count = static_cast<std::uint32_t>(
                random.between(1, random.between(0, 3) == 0 ? most_rows : most_rows / 4));
            s.state_position = s.first_position;
            s.commit_rows = s.row_count;
        } else {
            s.first_position = static_cast<Position>(random.between(0, most_position));
            s.row_count = static_cast<std::uint32_t>(random.between(1, 4));
            s.state_position =
                s.first_position -
                std::min<Position>(s.first_position, static_cast<Position>(random.between(0, 5)));
            s.commit_rows = static_cast<std::uint32_t>(
                random.between(0, 1) == 0 ? s.row_count : random.between(0, s.row_count));
        }
        row += s.row_count;
        const std::size_t count = (s.first_position + s.row_count + 63) / 64;
        batch->pages.emplace_back();
        for (std::size_t p = 0; p < count; ++p)
            batch->pages.back().push_back(PageId{static_cast<std::uint32_t>(batch->page_count++)});
        batch->sequences.push_back(s);
    }
    // Pages of a sequence do not follow one another.
    std::vector<std::uint32_t> order(batch->page_count);
    std::iota(order.begin(), order.end(), 0u);
    for (std::size_t i = order.size(); i > 1; --i)
        std::swap(order[i - 1], order[random.between(0, i - 1)]);
    for (auto& list : batch->pages)
        for (PageId& page : list)
            page = PageId{order[to_int(page)]};
    for (std::uint32_t r = 0; r < row; ++r) {
        batch->tokens.push_back(
            TokenId{static_cast<std::int32_t>(random.between(0, vocabulary - 1))});
        batch->logit_rows.push_back(r);
    }
    batch->finish(numeric_class);
    return batch;
}

// Caches of one KDA layer.
struct KdaMemory {
    std::vector<float> state, conv, kept;
    KdaSlots view;

    KdaMemory(Random& random, std::size_t slots, std::size_t heads, std::size_t dim)
        : state(random.floats(slots * heads * dim * dim)),
          conv(random.floats(slots * ring * 3 * heads * dim)),
          kept(random.floats(slots * ring * kda_kept_row(heads, dim), 0.2f)) {
        // Kept log decays are negative.
        for (std::size_t row = 0; row < slots * ring; ++row)
            for (std::size_t i = 0; i < heads * dim; ++i) {
                float& decay = kept[row * kda_kept_row(heads, dim) + 2 * heads * dim + i];
                decay = -std::abs(decay);
            }
        attach(slots);
    }
    KdaMemory(const KdaMemory& other)
        : state(other.state), conv(other.conv), kept(other.kept), view(other.view) {
        point();
    }
    KdaMemory& operator=(const KdaMemory&) = delete;

  private:
    void attach(std::size_t slots) {
        view.state_stride = state.size() / slots;
        view.conv_stride = conv.size() / slots;
        view.kept_stride = kept.size() / slots;
        view.ring = ring;
        point();
    }
    void point() {
        view.state = state.data();
        view.conv = conv.data();
        view.kept = kept.data();
    }
};

// Caches of one sparse layer.
struct LatentMemory {
    std::vector<std::uint8_t> latents, pooled;
    std::vector<float> tails;
    LatentPages view;

    LatentMemory(Random& random, std::size_t slots, std::size_t pages, std::size_t latent,
                 std::size_t index_dim, std::size_t pool, DType latent_dtype, DType pooled_dtype) {
        const auto fill = [&](std::vector<std::uint8_t>& memory, std::size_t count, DType dtype) {
            memory.resize(count * size_of(dtype));
            for (std::size_t i = 0; i < count; ++i) {
                const float value = random.normal();
                if (dtype == DType::f32) {
                    std::memcpy(&memory[i * 4], &value, 4);
                } else if (dtype == DType::bf16) {
                    const BFloat16 rounded(value);
                    std::memcpy(&memory[i * 2], &rounded, 2);
                } else {
                    memory[i] = Float8E4M3(value).bits;
                }
            }
        };
        fill(latents, pages * 64 * latent, latent_dtype);
        fill(pooled, pages * (64 / pool) * index_dim, pooled_dtype);
        tails = random.floats(slots * ring * 2 * index_dim);
        view.latent_dtype = latent_dtype;
        view.latent_page_bytes = 64 * latent * size_of(latent_dtype);
        view.pooled_dtype = pooled_dtype;
        view.pooled_page_bytes = 64 / pool * index_dim * size_of(pooled_dtype);
        view.tail_stride = ring * 2 * index_dim;
        view.tail_ring = ring;
        point();
    }
    LatentMemory(const LatentMemory& other)
        : latents(other.latents), pooled(other.pooled), tails(other.tails), view(other.view) {
        point();
    }
    LatentMemory& operator=(const LatentMemory&) = delete;

    static std::vector<float> widened(const std::vector<std::uint8_t>& memory, DType dtype) {
        std::vector<float> values(memory.size() / size_of(dtype));
        for (std::size_t i = 0; i < values.size(); ++i) {
            if (dtype == DType::f32) {
                std::memcpy(&values[i], &memory[i * 4], 4);
            } else if (dtype == DType::bf16) {
                BFloat16 value;
                std::memcpy(&value, &memory[i * 2], 2);
                values[i] = static_cast<float>(value);
            } else {
                values[i] = static_cast<float>(Float8E4M3::from_bits(memory[i]));
            }
        }
        return values;
    }

  private:
    void point() {
        view.latents = latents.data();
        view.pooled = pooled.data();
        view.tails = tails.data();
    }
};

}  // namespace percheron::ops
