#include <algorithm>
#include <numeric>

#include "ops/cuda/latent_attention.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_select.h"
#include "ops/cuda/select_tokens.h"
#include "ops/reference/reference_primitives.h"
#include "ops/stored_rows.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;

namespace {

constexpr std::size_t dim = 128, pool = 4, topk = 2048, latent = 512;
constexpr std::size_t positions_width = topk + pool;

// Pages of `rows` rows of numbers, as a cache stores them.
std::vector<std::uint8_t> stored(const std::vector<__nv_bfloat16>& numbers, std::size_t rows,
                                 std::size_t width, DType dtype) {
    const std::size_t share = ops::stored_rows_bytes(dtype, rows, width);
    std::vector<std::uint8_t> memory(numbers.size() / (rows * width) * share);
    std::vector<float> values(width);
    for (std::size_t i = 0; i < numbers.size() / width; ++i) {
        for (std::size_t c = 0; c < width; ++c)
            values[c] = __bfloat162float(numbers[i * width + c]);
        ops::store_row(ops::stored_row(&memory[i / rows * share], dtype, rows, width, i % rows),
                       dtype, values);
    }
    return memory;
}

// The numbers that such pages hold; bf16 holds them exactly.
std::vector<__nv_bfloat16> numbers_of(std::vector<std::uint8_t> memory, std::size_t rows,
                                      std::size_t width, DType dtype) {
    const std::size_t share = ops::stored_rows_bytes(dtype, rows, width);
    std::vector<float> values;
    for (std::size_t page = 0; page < memory.size(); page += share)
        for (std::size_t row = 0; row < rows; ++row)
            for (std::size_t c = 0; c < width; ++c)
                values.push_back(ops::load_stored(
                    ops::stored_row(&memory[page], dtype, rows, width, row), dtype, c));
    return as_bf16(values);
}

// Sequences over shuffled pages, and the caches behind them, on both sides.
struct Caches {
    std::vector<std::vector<PageId>> tables;
    std::vector<ops::SequenceRows> sequences;
    std::vector<TokenId> tokens;
    std::vector<__nv_bfloat16> pooled;   // [page][16][128], numbers that `dtype` holds
    std::vector<__nv_bfloat16> latents;  // [page][64][512]
    DType dtype;
    std::size_t pages = 0;

    struct Rows {
        std::uint32_t first_position, row_count;
    };
    Caches(Random& random, const std::vector<Rows>& rows, DType cached) : dtype(cached) {
        for (const Rows& r : rows)
            pages += (r.first_position + r.row_count + 63) / 64;
        std::vector<std::uint32_t> order(pages);
        std::iota(order.begin(), order.end(), 0u);
        for (std::size_t i = pages; i > 1; --i)
            std::swap(order[i - 1], order[random.below(i)]);
        std::size_t used = 0;
        for (const Rows& r : rows) {
            std::vector<PageId> table;
            for (std::size_t i = 0; i < (r.first_position + r.row_count + 63) / 64; ++i)
                table.push_back(static_cast<PageId>(order[used++]));
            tables.push_back(table);
        }
        for (std::size_t i = 0; i < rows.size(); ++i) {
            ops::SequenceRows s;
            s.first_row = static_cast<std::uint32_t>(tokens.size());
            s.row_count = rows[i].row_count;
            s.first_position = rows[i].first_position;
            s.slot = static_cast<RequestSlot>(i);
            s.pages = tables[i];
            sequences.push_back(s);
            tokens.resize(tokens.size() + rows[i].row_count);
        }
        pooled = as_bf16(normals(random, pages * 16 * dim));
        auto values = normals(random, pages * 64 * latent);
        // Rows of many sizes, so that no scale stands in for another.
        for (std::size_t i = 0; i < values.size(); ++i)
            values[i] *= std::exp2(static_cast<float>(i / latent % 4));
        latents = as_bf16(values);
        pooled = numbers_of(stored_pooled(), 16, dim, dtype);
        latents = numbers_of(stored_latents(), 64, latent, dtype);
    }
    std::vector<std::uint8_t> stored_pooled() const { return stored(pooled, 16, dim, dtype); }
    std::vector<std::uint8_t> stored_latents() const { return stored(latents, 64, latent, dtype); }
    std::size_t rows() const { return tokens.size(); }
    ops::LatentPages view(void* latent_memory, void* pooled_memory) const {
        ops::LatentPages view;
        view.latents = latent_memory;
        view.latent_dtype = view.pooled_dtype = dtype;
        view.latent_page_bytes = ops::stored_rows_bytes(dtype, 64, latent);
        view.pooled = pooled_memory;
        view.pooled_page_bytes = ops::stored_rows_bytes(dtype, 16, dim);
        return view;
    }
    ops::RowBatch batch() const {
        ops::RowBatch batch;
        batch.sequences = sequences;
        batch.tokens = tokens;
        return batch;
    }
};

// The same in device memory; `rows` > 0 keeps only the rows [first, first + rows) of the batch,
// which must lie in one sequence.
struct OnDeviceCaches {
    OnDevice<std::uint8_t> latents, pooled;
    std::vector<ops::cuda::DeviceSequence> host_sequences;
    std::vector<std::uint32_t> host_rows, host_pages;
    OnDevice<ops::cuda::DeviceSequence> sequences;
    OnDevice<std::uint32_t> row_sequences, pages;
    ops::LatentPages view;

    explicit OnDeviceCaches(const Caches& caches)
        : latents(caches.stored_latents()),
          pooled(caches.stored_pooled()),
          sequences(caches.sequences.size()),
          row_sequences(caches.rows()),
          pages(caches.pages) {
        for (const auto& s : caches.sequences) {
            host_sequences.push_back({s.first_row, s.row_count, s.first_position, s.first_position,
                                      s.row_count, to_int(s.slot),
                                      static_cast<std::uint32_t>(host_pages.size())});
            for (PageId page : s.pages)
                host_pages.push_back(to_int(page));
            for (std::uint32_t i = 0; i < s.row_count; ++i)
                host_rows.push_back(static_cast<std::uint32_t>(host_sequences.size() - 1));
        }
        sequences.upload(host_sequences);
        row_sequences.upload(host_rows);
        pages.upload(host_pages);
        view = caches.view(latents.data(), pooled.data());
    }
    ops::cuda::DeviceBatch batch() const {
        return {static_cast<int>(host_rows.size()), sequences.data(),
                static_cast<int>(host_sequences.size()), row_sequences.data(), pages.data()};
    }
};

struct Selected {
    std::vector<std::uint32_t> positions, counts;
    std::span<const std::uint32_t> row(std::size_t r) const {
        return {positions.data() + r * positions_width, counts[r]};
    }
};

Selected select_on_device(const Caches& caches, std::size_t heads,
                          const std::vector<__nv_bfloat16>& query,
                          const std::vector<float>& weights, bool prompt) {
    const OnDeviceCaches device(caches);
    const OnDevice<__nv_bfloat16> query_memory(query);
    const OnDevice<float> weight_memory(weights);
    std::size_t most = 0;
    for (const auto& s : caches.sequences)
        most = std::max<std::size_t>(most, (s.first_position + s.row_count) / pool);
    OnDevice<float> scores(caches.rows() * most);
    OnDevice<std::uint32_t> positions(caches.rows() * positions_width), counts(caches.rows());
    scores.poison();
    positions.poison();
    counts.poison();
    ops::cuda::TokenSelection op;
    op.heads = static_cast<int>(heads);
    op.topk = topk;
    op.query = query_memory.data();
    op.query_stride = static_cast<int>(heads * dim);
    op.head_weight = weight_memory.data();
    op.head_weight_stride = static_cast<int>(heads);
    op.pages = device.view;
    op.batch = device.batch();
    op.most_pools = static_cast<int>(most);
    op.scores = scores.data();
    op.positions = positions.data();
    op.positions_stride = positions_width;
    op.counts = counts.data();
    CHECK_OK(prompt ? ops::cuda::select_prompt_tokens(op, {}) : ops::cuda::select_tokens(op, {}));
    return {positions.download(), counts.download()};
}

std::vector<double> reference_scores(const Caches& caches, std::size_t sequence, std::size_t heads,
                                     const __nv_bfloat16* query, const float* weights,
                                     std::size_t candidates) {
    std::vector<double> scores(candidates);
    for (std::size_t p = 0; p < candidates; ++p) {
        const __nv_bfloat16* const key =
            caches.pooled.data() + (to_int(caches.tables[sequence][p / 16]) * 16 + p % 16) * dim;
        for (std::size_t h = 0; h < heads; ++h) {
            double dot = 0;
            for (std::size_t c = 0; c < dim; ++c)
                dot += static_cast<double>(__bfloat162float(query[h * dim + c])) *
                       static_cast<double>(__bfloat162float(key[c]));
            scores[p] += weights[h] / std::sqrt(static_cast<double>(heads)) *
                         std::max(0.0, dot / std::sqrt(static_cast<double>(dim)));
        }
    }
    return scores;
}

void takes_the_best_pools_in_order(bool prompt) {
    Random random(21);
    for (const auto& [heads, dtype] : {std::pair<std::size_t, DType>{4, DType::bf16},
                                       {32, DType::bf16},
                                       {20, DType::bf16},
                                       {32, DType::f8_e4m3},
                                       {20, DType::f8_e4m3}}) {
        Caches caches(random, {{0, 3}, {2040, 14}, {2049, 1}, {5000, 4}, {13, 1}, {20003, 2}},
                      dtype);
        const auto query = as_bf16(normals(random, caches.rows() * heads * dim));
        const auto weights = normals(random, caches.rows() * heads);
        const Selected got = select_on_device(caches, heads, query, weights, prompt);
        // Keys in fp8 are scored as the numbers they stand for.
        caches.dtype = DType::bf16;
        const Selected same = select_on_device(caches, heads, query, weights, prompt);
        for (std::size_t row = 0; row < caches.rows(); ++row)
            CHECK_THAT(std::ranges::equal(got.row(row), same.row(row)),
                       "%s: row %zu chooses otherwise than of the same numbers in bf16",
                       std::string(name_of(dtype)).c_str(), row);
        for (std::size_t s = 0; s < caches.sequences.size(); ++s) {
            const auto& sequence = caches.sequences[s];
            for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
                const std::size_t row = sequence.first_row + i;
                const std::size_t visible = sequence.first_position + i + 1;
                const std::size_t candidates = visible / pool;
                const std::size_t taken = std::min<std::size_t>(candidates, topk / pool);
                const auto positions = got.row(row);
                CHECK_THAT(positions.size() == taken * pool + visible % pool,
                           "row %zu: %zu positions", row, positions.size());
                CHECK_THAT(
                    std::is_sorted(positions.begin(), positions.end()) &&
                        std::adjacent_find(positions.begin(), positions.end()) == positions.end(),
                    "row %zu: positions out of order", row);
                std::vector<bool> chosen(candidates);
                bool whole_pools = true, tail = true;
                for (std::size_t k = 0; k < taken; ++k) {
                    const std::uint32_t first = positions[k * pool];
                    whole_pools &= first % pool == 0 && first / pool < candidates;
                    for (std::size_t j = 1; j < pool; ++j)
                        whole_pools &= positions[k * pool + j] == first + j;
                    if (first / pool < candidates) chosen[first / pool] = true;
                }
                for (std::size_t j = 0; j < visible % pool; ++j)
                    tail &= positions[taken * pool + j] == candidates * pool + j;
                CHECK_THAT(whole_pools, "row %zu: broken pools", row);
                CHECK_THAT(tail, "row %zu: wrong tail", row);
                if (taken == candidates) continue;
                const auto scores =
                    reference_scores(caches, s, heads, query.data() + row * heads * dim,
                                     weights.data() + row * heads, candidates);
                double worst_taken = 1e30, best_left = -1e30, size = 0;
                for (std::size_t p = 0; p < candidates; ++p) {
                    if (chosen[p])
                        worst_taken = std::min(worst_taken, scores[p]);
                    else
                        best_left = std::max(best_left, scores[p]);
                    size = std::max(size, std::abs(scores[p]));
                }
                CHECK_THAT(worst_taken >= best_left - 1e-5 * size,
                           "row %zu: took %.7g and left %.7g", row, worst_taken, best_left);
            }
        }
    }
}

void ties_go_to_the_lower_pool(bool prompt) {
    Random random(22);
    constexpr std::size_t heads = 8;
    for (const auto& [distinct, dtype] :
         {std::pair{1, DType::bf16}, {2, DType::bf16}, {5, DType::bf16}, {5, DType::f8_e4m3}}) {
        Caches caches(random, {{9000, 2}, {4400, 1}}, dtype);
        // Few different keys: whole groups of pools have the same bits as score.
        const auto few = numbers_of(stored(as_bf16(normals(random, distinct * dim)), 1, dim, dtype),
                                    1, dim, dtype);
        for (std::size_t p = 0; p < caches.pages * 16; ++p)
            std::copy_n(few.begin() + random.below(distinct) * dim, dim,
                        caches.pooled.begin() + p * dim);
        const auto query = as_bf16(normals(random, caches.rows() * heads * dim));
        const auto weights = normals(random, caches.rows() * heads);
        const Selected got = select_on_device(caches, heads, query, weights, prompt);
        for (std::size_t s = 0; s < caches.sequences.size(); ++s) {
            const auto& sequence = caches.sequences[s];
            for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
                const std::size_t row = sequence.first_row + i;
                const std::size_t candidates = (sequence.first_position + i + 1) / pool;
                const auto scores =
                    reference_scores(caches, s, heads, query.data() + row * heads * dim,
                                     weights.data() + row * heads, candidates);
                std::vector<std::uint32_t> order(candidates);
                std::iota(order.begin(), order.end(), 0u);
                std::stable_sort(order.begin(), order.end(),
                                 [&](auto a, auto b) { return scores[a] > scores[b]; });
                order.resize(topk / pool);
                std::sort(order.begin(), order.end());
                bool same = true;
                for (std::size_t k = 0; k < order.size(); ++k)
                    same &= got.row(row)[k * pool] == order[k] * pool;
                CHECK_THAT(same, "%d distinct keys, row %zu: not the lowest", distinct, row);
            }
        }
    }
}

// Rows that were ordered (prefill_rows.h).
std::vector<__nv_bfloat16> in_reading_order(const std::vector<__nv_bfloat16>& rows) {
    std::vector<__nv_bfloat16> result(rows.size());
    for (std::size_t i = 0; i < rows.size(); ++i) {
        const std::size_t c = i % 32, q = c / 8, p = c / 4 % 2, h = c / 2 % 2, e = c % 2;
        result[i] = rows[i / 32 * 32 + 16 * p + 8 * h + 2 * q + e];
    }
    return result;
}

void attention_against_the_reference(bool prompt) {
    Random random(23);
    for (DType dtype : {DType::bf16, DType::f8_e4m3}) {
        for (std::size_t heads : {2u, 16u, 36u}) {
            Caches caches(random, {{3, 2}, {255, 2}, {700, 1}, {2400, 3}}, dtype);
            const std::size_t rows = caches.rows();
            // Every row attends to a random ascending subset of what it sees.
            std::vector<std::uint32_t> positions(rows * positions_width), counts(rows);
            for (const auto& s : caches.sequences) {
                for (std::uint32_t i = 0; i < s.row_count; ++i) {
                    const std::size_t row = s.first_row + i;
                    for (std::uint32_t p = 0; p <= s.first_position + i; ++p) {
                        if (counts[row] < topk + 3 && random.below(8) != 0)
                            positions[row * positions_width + counts[row]++] = p;
                    }
                    if (counts[row] == 0) positions[row * positions_width + counts[row]++] = 0;
                }
            }
            const auto absorbed = as_bf16(normals(random, rows * heads * latent, 0.7f));
            std::vector<float> absorbed_float(absorbed.size()), expected(absorbed.size());
            for (std::size_t i = 0; i < absorbed.size(); ++i)
                absorbed_float[i] = __bfloat162float(absorbed[i]);
            const ops::RowBatch batch = caches.batch();
            ops::LatentAttention reference;
            reference.shape = {heads, 256, 256, latent};
            reference.absorbed = {absorbed_float.data(), rows, heads * latent};
            auto latent_memory = caches.stored_latents();
            reference.pages = caches.view(latent_memory.data(), nullptr);
            reference.batch = &batch;
            reference.positions = {positions.data(), rows, positions_width};
            reference.counts = counts;
            reference.read = {expected.data(), rows, heads * latent};
            ops::reference::ReferencePrimitives().latent_attention(reference);

            const OnDeviceCaches device(caches);
            const OnDevice<__nv_bfloat16> absorbed_memory(absorbed);
            const OnDevice<std::uint32_t> position_memory(positions), count_memory(counts);
            OnDevice<__nv_bfloat16> read(rows * heads * latent);
            OnDevice<float> partial(ops::cuda::attention_partial_floats(
                static_cast<int>(heads), topk + 3, static_cast<int>(rows)));
            ops::cuda::SelectedAttention op;
            op.heads = static_cast<int>(heads);
            op.scale = 1.0f / 16.0f;
            op.absorbed = absorbed_memory.data();
            op.pages = device.view;
            op.batch = device.batch();
            op.positions = position_memory.data();
            op.positions_stride = positions_width;
            op.counts = count_memory.data();
            op.most_tokens = topk + 3;
            op.partial = partial.data();
            op.read = read.data();
            const auto run = [&] {
                read.poison();
                partial.poison();
                CHECK_OK(prompt ? ops::cuda::prompt_attention(
                                      {op.heads, op.scale, op.absorbed, op.pages, op.batch,
                                       op.positions, op.positions_stride, op.counts, op.read},
                                      {})
                                : ops::cuda::selected_attention(op, {}));
                return prompt ? in_reading_order(read.download()) : read.download();
            };
            const auto got = run();
            for (std::size_t row = 0; row < rows; ++row) {
                double error = 0, norm = 0;
                for (std::size_t i = row * heads * latent; i < (row + 1) * heads * latent; ++i) {
                    const double difference =
                        static_cast<double>(__bfloat162float(got[i])) - expected[i];
                    error += difference * difference;
                    norm += static_cast<double>(expected[i]) * expected[i];
                }
                error = std::sqrt(error / norm);
                CHECK_THAT(error < 5e-3, "%s, %zu heads, row %zu (%u tokens): error %.3g",
                           std::string(name_of(dtype)).c_str(), heads, row, counts[row], error);
            }

            // Latents in fp8 are read as the numbers they stand for, bit for bit.
            if (dtype == DType::f8_e4m3) {
                Caches widened(caches);
                widened.dtype = DType::bf16;
                const OnDeviceCaches in_bf16(widened);
                op.pages = in_bf16.view;
                const auto same = run();
                CHECK_THAT(std::memcmp(same.data(), got.data(), got.size() * 2) == 0,
                           "%zu heads: fp8 reads other numbers than bf16", heads);
                op.pages = device.view;
            }

            // The last sequence's rows alone: the same bits.
            const auto& last = device.host_sequences.back();
            const OnDevice<ops::cuda::DeviceSequence> one(std::vector<ops::cuda::DeviceSequence>{
                {0, last.row_count, last.first_position, last.state_position, last.commit_rows,
                 last.slot, last.first_page}});
            const OnDevice<std::uint32_t> zeros(std::vector<std::uint32_t>(last.row_count));
            const std::size_t first = last.first_row;
            op.batch = {static_cast<int>(last.row_count), one.data(), 1, zeros.data(),
                        device.pages.data()};
            op.absorbed = absorbed_memory.data() + first * heads * latent;
            op.positions = position_memory.data() + first * positions_width;
            op.counts = count_memory.data() + first;
            const auto alone = run();
            CHECK_THAT(std::memcmp(alone.data(), got.data() + first * heads * latent,
                                   last.row_count * heads * latent * 2) == 0,
                       "%zu heads: bits change without neighbours", heads);
        }
    }
}

// A prompt's rows, some of which see so much that they choose: the same bits in any company.
void prompt_rows_in_any_company() {
    Random random(24);
    constexpr std::size_t heads = 64, index_heads = 32;
    for (const DType dtype : {DType::bf16, DType::f8_e4m3}) {
        Caches caches(random, {{2000, 150}, {6000, 70}, {64, 30}}, dtype);
        const std::size_t rows = caches.rows();
        const auto query = as_bf16(normals(random, rows * index_heads * dim));
        const auto weights = normals(random, rows * index_heads);
        const auto absorbed = as_bf16(normals(random, rows * heads * latent, 0.7f));
        const OnDeviceCaches device(caches);
        const OnDevice<__nv_bfloat16> query_memory(query), absorbed_memory(absorbed);
        const OnDevice<float> weight_memory(weights);
        constexpr std::size_t most = 6070 / pool;
        OnDevice<float> scores(rows * most);
        OnDevice<std::uint32_t> positions(rows * positions_width), counts(rows);
        OnDevice<__nv_bfloat16> read(rows * heads * latent);
        const auto run = [&](std::size_t first, std::size_t count) {
            scores.poison();
            positions.poison();
            read.poison();
            ops::cuda::TokenSelection op;
            op.heads = index_heads;
            op.topk = topk;
            op.query = query_memory.data() + first * index_heads * dim;
            op.query_stride = index_heads * dim;
            op.head_weight = weight_memory.data() + first * index_heads;
            op.head_weight_stride = index_heads;
            op.pages = device.view;
            op.batch = device.batch();
            op.batch.rows = static_cast<int>(count);
            op.batch.first_row = static_cast<std::uint32_t>(first);
            op.batch.sequence_of_row += first;
            op.most_pools = static_cast<int>(most);
            op.scores = scores.data();
            op.positions = positions.data();
            op.positions_stride = positions_width;
            op.counts = counts.data();
            CHECK_OK(ops::cuda::select_prompt_tokens(op, {}));
            CHECK_OK(ops::cuda::prompt_attention(
                {static_cast<int>(heads), 1.0f / 16.0f,
                 absorbed_memory.data() + first * heads * latent, device.view, op.batch,
                 positions.data(), positions_width, counts.data(), read.data()},
                {}));
            return read.download();
        };
        const auto whole = run(0, rows);
        for (const auto& [first, count] : {std::pair<std::size_t, std::size_t>{0, 64},
                                           {64, 65},
                                           {3, 200},
                                           {149, 1},
                                           {150, 100}}) {
            const auto some = run(first, count);
            CHECK_THAT(std::memcmp(some.data(), whole.data() + first * heads * latent,
                                   count * heads * latent * 2) == 0,
                       "%s: %zu rows from %zu have other bits", std::string(name_of(dtype)).c_str(),
                       count, first);
        }
    }
}

}  // namespace

KERNEL_TEST(select_tokens_takes_the_best_pools_in_order) {
    takes_the_best_pools_in_order(false);
}
KERNEL_TEST(select_tokens_ties_go_to_the_lower_pool) {
    ties_go_to_the_lower_pool(false);
}
KERNEL_TEST(latent_attention_against_the_reference) {
    attention_against_the_reference(false);
}
KERNEL_TEST(prefill_select_takes_the_best_pools_in_order) {
    if (ops::cuda::has_prefill_kernels()) takes_the_best_pools_in_order(true);
}
KERNEL_TEST(prefill_select_ties_go_to_the_lower_pool) {
    if (ops::cuda::has_prefill_kernels()) ties_go_to_the_lower_pool(true);
}
KERNEL_TEST(prefill_attention_against_the_reference) {
    if (ops::cuda::has_prefill_kernels()) attention_against_the_reference(true);
}
KERNEL_TEST(prefill_attention_in_any_company) {
    if (ops::cuda::has_prefill_kernels()) prompt_rows_in_any_company();
}

// Many rows' blocks have whole rows, few rows' a split each: a row's bits are the same.
KERNEL_TEST(latent_attention_of_many_rows_has_the_bits_of_few) {
    Random random(24);
    for (DType dtype : {DType::bf16, DType::f8_e4m3}) {
        for (std::size_t heads : {20u, 70u}) {
            const Caches caches(random, {{0, 9}, {250, 9}, {1100, 20}, {2400, 40}}, dtype);
            const OnDeviceCaches device(caches);
            const std::size_t rows = caches.rows();
            std::vector<std::uint32_t> positions(rows * positions_width), counts(rows);
            for (std::size_t row = 0; row < rows; ++row) {
                const auto& s = caches.sequences[device.host_rows[row]];
                // Also as few tokens as one, and whole splits.
                const std::uint32_t seen =
                    s.first_position + static_cast<std::uint32_t>(row) - s.first_row + 1;
                const std::uint32_t most = row % 7 == 0 ? 1 : row % 5 == 0 ? 256 : topk + 3;
                for (std::uint32_t p = 0; p < seen && counts[row] < most; ++p)
                    if (p + most >= seen || random.below(8) != 0)
                        positions[row * positions_width + counts[row]++] = p;
            }
            const OnDevice<__nv_bfloat16> absorbed(
                as_bf16(normals(random, rows * heads * latent, 0.7f)));
            const OnDevice<std::uint32_t> position_memory(positions), count_memory(counts);
            OnDevice<__nv_bfloat16> read(rows * heads * latent);
            OnDevice<float> partial(ops::cuda::attention_partial_floats(
                static_cast<int>(heads), topk + 3, static_cast<int>(rows)));
            const auto run = [&](const ops::cuda::DeviceBatch& batch, std::size_t first) {
                ops::cuda::SelectedAttention op;
                op.heads = static_cast<int>(heads);
                op.scale = 1.0f / 16.0f;
                op.absorbed = absorbed.data() + first * heads * latent;
                op.pages = device.view;
                op.batch = batch;
                op.positions = position_memory.data() + first * positions_width;
                op.positions_stride = positions_width;
                op.counts = count_memory.data() + first;
                op.most_tokens = topk + 3;
                op.partial = partial.data();
                op.read = read.data();
                read.poison();
                partial.poison();
                CHECK_OK(ops::cuda::selected_attention(op, {}));
                return read.download();
            };
            const auto all = run(device.batch(), 0);
            const std::vector<std::uint32_t> none(rows);
            const OnDevice<std::uint32_t> zeros(none);
            for (std::size_t row = 0; row < rows; ++row) {
                const auto alone = run({1, device.sequences.data() + device.host_rows[row], 1,
                                        zeros.data(), device.pages.data()},
                                       row);
                CHECK_THAT(std::memcmp(alone.data(), all.data() + row * heads * latent,
                                       heads * latent * 2) == 0,
                           "%s, %zu heads, row %zu of %u tokens: bits change among many rows",
                           std::string(name_of(dtype)).c_str(), heads, row, counts[row]);
            }
        }
    }
}
