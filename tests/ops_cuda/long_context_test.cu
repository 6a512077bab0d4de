// Choice of tokens and attention where contexts are long: at the lengths at which units of pages,
// pools and tokens have been mistaken for each other elsewhere.  One small layer, whose rows are
// computed from the whole context in double precision.
#include <algorithm>
#include <cmath>
#include <numeric>

#include "ops/cuda/latent_attention.h"
#include "ops/cuda/prefill_attention.h"
#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_select.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;

namespace {

constexpr std::size_t dim = 128, pool = 4, topk = 2048, latent = 512, page_tokens = 64;
constexpr std::size_t heads = 3, index_heads = 2, positions_width = topk + pool;

// Many numbers of few bits, quickly: exact in bf16.
std::vector<__nv_bfloat16> coarse(std::uint64_t seed, std::size_t count) {
    __nv_bfloat16 values[256];
    for (int i = 0; i < 256; ++i)
        values[i] = __float2bfloat16_rn(static_cast<float>(i - 128) / 64.0f);
    std::vector<__nv_bfloat16> result(count);
    std::uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    for (std::size_t i = 0; i < count; i += 8) {
        state ^= state << 13, state ^= state >> 7, state ^= state << 17;
        for (std::size_t j = i; j < std::min(count, i + 8); ++j)
            result[j] = values[(state >> (8 * (j - i))) & 255u];
    }
    return result;
}

// One sequence of `length` tokens on shuffled pages; its last rows are asked for.
struct LongContext {
    std::size_t length, rows, pages;
    std::vector<std::uint32_t> table;
    std::vector<__nv_bfloat16> pooled, latents, query, absorbed;
    std::vector<float> weights;

    LongContext(std::size_t length, std::size_t rows)
        : length(length),
          rows(rows),
          pages((length + page_tokens - 1) / page_tokens),
          table(pages),
          pooled(coarse(1, pages * 16 * dim)),
          latents(coarse(2, pages * page_tokens * latent)),
          query(coarse(3, rows * index_heads * dim)),
          absorbed(coarse(4, rows * heads * latent)) {
        Random random(length);
        std::iota(table.begin(), table.end(), 0u);
        for (std::size_t i = pages; i > 1; --i)
            std::swap(table[i - 1], table[random.below(i)]);
        weights = normals(random, rows * index_heads);
    }
    std::size_t visible(std::size_t row) const { return length - rows + row + 1; }

    std::vector<double> scores(std::size_t row) const {
        std::vector<double> result(visible(row) / pool);
        for (std::size_t p = 0; p < result.size(); ++p) {
            const __nv_bfloat16* const key = &pooled[(table[p / 16] * 16 + p % 16) * dim];
            for (std::size_t h = 0; h < index_heads; ++h) {
                const __nv_bfloat16* const own = &query[(row * index_heads + h) * dim];
                float dot = 0;  // exact: few bits
                for (std::size_t c = 0; c < dim; ++c)
                    dot += __bfloat162float(own[c]) * __bfloat162float(key[c]);
                result[p] += weights[row * index_heads + h] / std::sqrt(double{index_heads}) *
                             std::max(0.0, dot / std::sqrt(double{dim}));
            }
        }
        return result;
    }

    // What `row` reads of these tokens with one head.
    std::vector<double> read(std::size_t row, std::size_t head,
                             std::span<const std::uint32_t> positions) const {
        const __nv_bfloat16* const own = &absorbed[(row * heads + head) * latent];
        std::vector<double> scored, result(latent);
        double most = -1e30, sum = 0;
        const auto at = [&](std::uint32_t p) {
            return &latents[(table[p / page_tokens] * page_tokens + p % page_tokens) * latent];
        };
        for (const std::uint32_t p : positions) {
            double dot = 0;
            for (std::size_t c = 0; c < latent; ++c)
                dot += static_cast<double>(__bfloat162float(own[c])) *
                       static_cast<double>(__bfloat162float(at(p)[c]));
            scored.push_back(dot / 16);
            most = std::max(most, scored.back());
        }
        for (std::size_t i = 0; i < positions.size(); ++i) {
            const double weight = std::exp(scored[i] - most);
            sum += weight;
            for (std::size_t c = 0; c < latent; ++c)
                result[c] += weight * static_cast<double>(__bfloat162float(at(positions[i])[c]));
        }
        for (double& value : result)
            value /= sum;
        return result;
    }
};

void check_choice(const LongContext& context, std::size_t row,
                  std::span<const std::uint32_t> positions) {
    const std::size_t visible = context.visible(row), candidates = visible / pool;
    CHECK_THAT(positions.size() == topk + visible % pool, "%zu of %zu tokens", positions.size(),
               visible);
    std::vector<bool> chosen(candidates);
    bool in_order = true;
    for (std::size_t k = 0; k < positions.size(); ++k) {
        in_order &= positions[k] < visible && (k == 0 || positions[k] > positions[k - 1]);
        in_order &= k >= topk || positions[k] == positions[k / pool * pool] + k % pool;
        if (k < topk && positions[k] / pool < candidates) chosen[positions[k] / pool] = true;
    }
    CHECK_THAT(in_order, "%zu tokens, row %zu: no ascending pools", context.length, row);
    const std::vector<double> scores = context.scores(row);
    double worst_taken = 1e30, best_left = -1e30, size = 0;
    for (std::size_t p = 0; p < candidates; ++p) {
        if (chosen[p])
            worst_taken = std::min(worst_taken, scores[p]);
        else
            best_left = std::max(best_left, scores[p]);
        size = std::max(size, std::abs(scores[p]));
    }
    CHECK_THAT(worst_taken >= best_left - 1e-5 * size, "%zu tokens, row %zu: took %.7g, left %.7g",
               context.length, row, worst_taken, best_left);
}

void check_length(std::size_t length, bool prompt) {
    const LongContext context(length, 3);
    const std::size_t rows = context.rows;
    const OnDevice<__nv_bfloat16> pooled(context.pooled), latents(context.latents),
        query(context.query), absorbed(context.absorbed);
    const OnDevice<float> weights(context.weights);
    const OnDevice<std::uint32_t> table(context.table), of_row(std::vector<std::uint32_t>(rows, 0));
    const auto first = static_cast<std::uint32_t>(length - rows);
    const auto count = static_cast<std::uint32_t>(rows);
    const OnDevice<ops::cuda::DeviceSequence> sequence(
        std::vector<ops::cuda::DeviceSequence>{{0, count, first, first, count, 0, 0}});
    OnDevice<std::uint32_t> positions(rows * positions_width), counts(rows);
    OnDevice<float> scores(rows * (length / pool)),
        partial(ops::cuda::attention_partial_floats(heads, topk + 3, static_cast<int>(rows)));
    OnDevice<__nv_bfloat16> read(rows * heads * latent);
    scores.poison();
    positions.poison();
    read.poison();
    ops::cuda::TokenSelection op;
    op.heads = index_heads;
    op.topk = topk;
    op.query = query.data();
    op.query_stride = index_heads * dim;
    op.head_weight = weights.data();
    op.head_weight_stride = index_heads;
    op.pages.latents = latents.data();
    op.pages.latent_page_bytes = page_tokens * latent * 2;
    op.pages.pooled = pooled.data();
    op.pages.pooled_dtype = DType::bf16;
    op.pages.pooled_page_bytes = 16 * dim * 2;
    op.batch = {static_cast<int>(rows), sequence.data(), 1, of_row.data(), table.data()};
    op.most_pools = static_cast<int>(length / pool);
    op.scores = scores.data();
    op.positions = positions.data();
    op.positions_stride = positions_width;
    op.counts = counts.data();
    CHECK_OK(prompt ? ops::cuda::select_prompt_tokens(op, {}) : ops::cuda::select_tokens(op, {}));
    if (prompt) {
        CHECK_OK(ops::cuda::prompt_attention(
            {heads, 1.0f / 16.0f, absorbed.data(), op.pages, op.batch, positions.data(),
             positions_width, counts.data(), read.data()},
            {}));
    } else {
        ops::cuda::SelectedAttention attention;
        attention.heads = heads;
        attention.scale = 1.0f / 16.0f;
        attention.absorbed = absorbed.data();
        attention.pages = op.pages;
        attention.batch = op.batch;
        attention.positions = positions.data();
        attention.positions_stride = positions_width;
        attention.counts = counts.data();
        attention.most_tokens = topk + 3;
        attention.partial = partial.data();
        attention.read = read.data();
        CHECK_OK(ops::cuda::selected_attention(attention, {}));
    }
    const auto chosen = positions.download(), how_many = counts.download();
    const auto got = read.download();
    for (std::size_t row = 0; row < rows; ++row) {
        const std::span<const std::uint32_t> own(&chosen[row * positions_width],
                                                 std::min<std::size_t>(how_many[row], topk + 3));
        check_choice(context, row, own);
        for (std::size_t head = 0; head < heads; ++head) {
            const std::vector<double> expected = context.read(row, head, own);
            double error = 0, norm = 0;
            for (std::size_t c = 0; c < latent; ++c) {
                // A prompt's rows are ordered (prefill_rows.h).
                const std::size_t i = c % 32, q = i / 8, p = i / 4 % 2, h = i / 2 % 2;
                const std::size_t place = prompt ? c / 32 * 32 + 16 * p + 8 * h + 2 * q + i % 2 : c;
                const double difference = static_cast<double>(__bfloat162float(
                                              got[(row * heads + head) * latent + place])) -
                                          expected[c];
                error += difference * difference;
                norm += expected[c] * expected[c];
            }
            error = std::sqrt(error / norm);
            CHECK_THAT(error < 5e-3, "%zu tokens, row %zu, head %zu: error %.3g", length, row, head,
                       error);
        }
    }
}

// Rows in plenty are chosen for by fewer blocks each: the same tokens as of a few at a time.
void check_many_rows(std::size_t length) {
    const LongContext context(length, 70);
    const OnDevice<__nv_bfloat16> pooled(context.pooled), query(context.query);
    const OnDevice<float> weights(context.weights);
    const OnDevice<std::uint32_t> table(context.table),
        of_row(std::vector<std::uint32_t>(context.rows, 0));
    const auto first_position = static_cast<std::uint32_t>(length - context.rows);
    const auto all = static_cast<std::uint32_t>(context.rows);
    const OnDevice<ops::cuda::DeviceSequence> sequence(std::vector<ops::cuda::DeviceSequence>{
        {0, all, first_position, first_position, all, 0, 0}});
    OnDevice<float> scores(context.rows * (length / pool));
    // Positions of a run of the rows; what is behind a row's count is as it was.
    const auto choose = [&](std::size_t first, std::size_t rows) {
        OnDevice<std::uint32_t> positions(rows * positions_width), counts(rows);
        positions.poison();
        ops::cuda::TokenSelection op;
        op.heads = index_heads;
        op.topk = topk;
        op.query = query.data() + first * index_heads * dim;
        op.query_stride = index_heads * dim;
        op.head_weight = weights.data() + first * index_heads;
        op.head_weight_stride = index_heads;
        op.pages.pooled = const_cast<__nv_bfloat16*>(pooled.data());
        op.pages.pooled_dtype = DType::bf16;
        op.pages.pooled_page_bytes = 16 * dim * 2;
        op.batch = {static_cast<int>(rows), sequence.data(), 1,
                    of_row.data() + first,  table.data(),    static_cast<std::uint32_t>(first)};
        op.most_pools = static_cast<int>(length / pool);
        op.scores = scores.data();
        op.positions = positions.data();
        op.positions_stride = positions_width;
        op.counts = counts.data();
        CHECK_OK(ops::cuda::select_prompt_tokens(op, {}));
        return positions.download();
    };
    const auto together = choose(0, context.rows);
    auto apart = choose(0, context.rows / 2);
    const auto rest = choose(context.rows / 2, context.rows - context.rows / 2);
    apart.insert(apart.end(), rest.begin(), rest.end());
    CHECK_THAT(together == apart, "%zu tokens: %zu rows choose otherwise than half of them", length,
               context.rows);
    const std::size_t last = context.rows - 1;
    check_choice(context, last,
                 {&together[last * positions_width], topk + context.visible(last) % pool});
}

constexpr std::size_t lengths[] = {131'071, 131'072, 131'328, 262'144, 1'048'576};

}  // namespace

KERNEL_TEST(sparse_attention_at_long_lengths) {
    for (const std::size_t length : lengths)
        check_length(length, false);
}

KERNEL_TEST(prefill_attention_at_long_lengths) {
    if (!ops::cuda::has_prefill_kernels()) return;
    for (const std::size_t length : lengths)
        check_length(length, true);
}

KERNEL_TEST(prefill_select_of_many_rows) {
    if (!ops::cuda::has_prefill_kernels()) return;
    for (const std::size_t length : {60'000, 120'000, 240'002})
        check_many_rows(length);
}
