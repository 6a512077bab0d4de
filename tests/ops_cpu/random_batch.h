// A random mixture of sequences with their caches, for running the same step on two
// implementations.
#pragma once

#include <cstring>
#include <numeric>

#include "ops/batch.h"
#include "ops/cache_views.h"
#include "ops/stored_rows.h"
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
        const auto fill = [&](std::vector<std::uint8_t>& memory, std::size_t rows,
                              std::size_t width, DType dtype) {
            const Bytes share = stored_rows_bytes(dtype, rows, width);
            memory.resize(pages * share);
            for (std::size_t page = 0; page < pages; ++page)
                for (std::size_t row = 0; row < rows; ++row)
                    store_row(stored_row(&memory[page * share], dtype, rows, width, row), dtype,
                              random.floats(width));
            return share;
        };
        view.latent_dtype = latent_dtype;
        view.latent_page_bytes = fill(latents, 64, latent, latent_dtype);
        view.pooled_dtype = pooled_dtype;
        view.pooled_page_bytes = fill(pooled, 64 / pool, index_dim, pooled_dtype);
        tails = random.floats(slots * ring * 2 * index_dim);
        view.tail_stride = ring * 2 * index_dim;
        view.tail_ring = ring;
        point();
    }
    LatentMemory(const LatentMemory& other)
        : latents(other.latents), pooled(other.pooled), tails(other.tails), view(other.view) {
        point();
    }
    LatentMemory& operator=(const LatentMemory&) = delete;

    // The values of shares of `rows` rows, page by page.
    static std::vector<float> widened(const std::vector<std::uint8_t>& memory, DType dtype,
                                      std::size_t rows, std::size_t width) {
        std::vector<float> values;
        const Bytes share = stored_rows_bytes(dtype, rows, width);
        for (Bytes page = 0; page < memory.size(); page += share)
            for (std::size_t row = 0; row < rows; ++row)
                for (std::size_t i = 0; i < width; ++i)
                    values.push_back(
                        load_stored(stored_row(const_cast<std::uint8_t*>(&memory[page]), dtype,
                                               rows, width, row),
                                    dtype, i));
        return values;
    }
    // The same caches in another type that holds every value.
    LatentMemory in_floats(std::size_t latent, std::size_t index_dim, std::size_t pool) const {
        LatentMemory floats(*this);
        const auto widen = [](std::vector<std::uint8_t>& memory, const std::vector<float>& values) {
            memory.resize(values.size() * sizeof(float));
            std::memcpy(memory.data(), values.data(), memory.size());
        };
        widen(floats.latents, widened(latents, view.latent_dtype, 64, latent));
        widen(floats.pooled, widened(pooled, view.pooled_dtype, 64 / pool, index_dim));
        floats.view.latent_dtype = floats.view.pooled_dtype = DType::f32;
        floats.view.latent_page_bytes = stored_rows_bytes(DType::f32, 64, latent);
        floats.view.pooled_page_bytes = stored_rows_bytes(DType::f32, 64 / pool, index_dim);
        floats.point();
        return floats;
    }

  private:
    void point() {
        view.latents = latents.data();
        view.pooled = pooled.data();
        view.tails = tails.data();
    }
};

}  // namespace percheron::ops
