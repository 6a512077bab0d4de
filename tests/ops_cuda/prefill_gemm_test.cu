// The products of the prefill class: against double arithmetic, and a row's bits alone and among
// others.
#include <algorithm>
#include <memory>
#include <numeric>

#include "ops/cuda/prefill_gemm.h"
#include "ops/cuda/prefill_rows.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;
using ops::WeightFormat;
using ops::cuda::PrefillRows;

namespace {

constexpr WeightFormat formats[] = {WeightFormat::bf16, WeightFormat::fp8_block,
                                    WeightFormat::w4a16, WeightFormat::nvfp4};
constexpr std::size_t most_rows = 8192;
constexpr std::size_t row_counts[] = {1, 64, 65, 1000, 2048};
constexpr float limit = 10.0f;

struct Shape {
    std::size_t n, k;
};

// Place of a column in ordered rows.
std::size_t place_of(std::size_t column) {
    const std::size_t c = column % 32;
    return column - c + c / 4 % 2 * 16 + c / 2 % 2 * 8 + c / 8 * 2 + c % 2;
}

std::vector<double> product(const StoredMatrix& matrix, const __nv_bfloat16* x,
                            double* terms = nullptr) {
    const auto& view = matrix.view();
    std::vector<float> weights(view.k);
    std::vector<double> y(view.n);
    for (std::size_t n = 0; n < view.n; ++n) {
        ops::dequantise_row(view, n, weights.data());
        for (std::size_t k = 0; k < view.k; ++k) {
            const double term =
                static_cast<double>(weights[k]) * static_cast<double>(__bfloat162float(x[k]));
            y[n] += term;
            if (terms != nullptr) *terms += term * term;
        }
    }
    return y;
}

// Against the size that the values have without cancellation.
double relative_error(std::span<const float> got, std::span<const double> expected,
                      double terms = 0) {
    double error = 0, norm = terms;
    for (std::size_t i = 0; i < got.size(); ++i) {
        const double difference = got[i] - expected[i];
        error += difference * difference;
        norm += expected[i] * expected[i];
    }
    return std::sqrt(error / (norm + 1e-300));  // a NaN stays one and fails every comparison
}

template <class T>
bool same_bits(const T* a, const T* b, std::size_t count) {
    return std::memcmp(a, b, count * sizeof(T)) == 0;
}

// Random rows in natural order on the host, ordered on the device.
struct Rows {
    std::size_t rows, columns;
    std::vector<__nv_bfloat16> host;
    OnDevice<__nv_bfloat16> ordered;

    Rows(Random& random, std::size_t rows, std::size_t columns, float size = 1.0f)
        : rows(rows),
          columns(columns),
          host(as_bf16(normals(random, rows * columns, size))),
          ordered(rows * columns) {
        const OnDevice<__nv_bfloat16> natural(host);
        ordered.poison();
        ops::cuda::OrderedRows op;
        op.rows = static_cast<int>(rows);
        op.columns = op.x_stride = static_cast<int>(columns);
        op.x = natural.data();
        op.out = ordered.data();
        CHECK_OK(ops::cuda::order_rows(op, {}));
        require(cudaDeviceSynchronize(), "ordering");
    }
    const __nv_bfloat16* row(std::size_t r) const { return host.data() + r * columns; }
};

ops::cuda::PrefillProduct plain(const PackedOnDevice& weight, const __nv_bfloat16* x,
                                std::size_t x_stride, void* y, std::size_t y_stride,
                                PrefillRows y_rows = PrefillRows::f32) {
    ops::cuda::PrefillProduct one;
    one.weight = weight.view();
    one.x = x;
    one.x_stride = static_cast<int>(x_stride);
    one.y = y;
    one.y_stride = static_cast<int>(y_stride);
    one.y_rows = y_rows;
    return one;
}

void check_shape(WeightFormat format, Shape shape, const Rows& x, Random& random) {
    const StoredMatrix stored(format, shape.n, shape.k, random);
    const PackedOnDevice packed(stored);
    const std::size_t stride = shape.n + 3;
    OnDevice<float> y(most_rows * stride);
    const auto run = [&](std::size_t first, std::size_t rows) {
        y.poison();
        const auto one =
            plain(packed, x.ordered.data() + first * x.columns, x.columns, y.data(), stride);
        CHECK_OK(ops::cuda::prefill_gemm({&one, 1}, static_cast<int>(rows), limit, {}));
        return y.download();
    };
    const std::string name(name_of(format));
    const auto whole = run(0, most_rows);
    for (const std::size_t row : {0, 1, 7, 130, 255, 256, 4095, 8191}) {
        double terms = 0;
        const auto expected = product(stored, x.row(row), &terms);
        const double error =
            relative_error({whole.data() + row * stride, shape.n}, expected, terms);
        CHECK_THAT(error < 2e-6, "%s %zux%zu row %zu: error %.3g", name.c_str(), shape.n, shape.k,
                   row, error);
        CHECK_THAT(std::isnan(whole[row * stride + shape.n]), "row %zu wrote past its end", row);
    }
    for (const std::size_t rows : row_counts) {
        const std::size_t first = random.below(most_rows - rows + 1);
        const auto some = run(first, rows);
        std::size_t different = 0;
        for (std::size_t row = 0; row < rows; ++row)
            different += !same_bits(some.data() + row * stride,
                                    whole.data() + (first + row) * stride, shape.n);
        CHECK_THAT(different == 0, "%s %zux%zu: %zu of %zu rows changed their bits", name.c_str(),
                   shape.n, shape.k, different, rows);
        CHECK_THAT(std::isnan(some[rows * stride]), "%zu rows wrote a row too many", rows);
    }
}

}  // namespace

KERNEL_TEST(prefill_rows_are_ordered_and_gathered) {
    Random random(51);
    for (const Shape shape : {Shape{1, 32}, Shape{7, 96}, Shape{300, 4096}, Shape{1000, 128}}) {
        const std::size_t rows = shape.n, columns = shape.k, stride = 3 * columns, pairs = 3;
        const auto host = as_bf16(normals(random, rows * stride));
        const OnDevice<__nv_bfloat16> x(host);
        std::vector<std::uint32_t> order(rows * pairs);
        std::iota(order.begin(), order.end(), 0u);
        for (std::size_t i = order.size(); i > 1; --i)
            std::swap(order[i - 1], order[random.below(i)]);
        const OnDevice<std::uint32_t> order_memory(order);
        for (const bool gathered : {false, true}) {
            const std::size_t count = gathered ? rows * pairs : rows;
            OnDevice<__nv_bfloat16> out(count * columns);
            out.poison();
            ops::cuda::OrderedRows op;
            op.rows = static_cast<int>(count);
            op.columns = static_cast<int>(columns);
            op.x = x.data();
            op.x_stride = static_cast<int>(stride);
            op.pair_order = gathered ? order_memory.data() : nullptr;
            op.pairs_per_row = static_cast<int>(pairs);
            op.out = out.data();
            CHECK_OK(ops::cuda::order_rows(op, {}));
            const auto got = out.download();
            std::size_t different = 0;
            for (std::size_t r = 0; r < count; ++r) {
                const std::size_t from = gathered ? order[r] / pairs : r;
                for (std::size_t c = 0; c < columns; ++c)
                    different +=
                        !same_bits(&got[r * columns + place_of(c)], &host[from * stride + c], 1);
            }
            CHECK_THAT(different == 0, "%zux%zu: %zu values are elsewhere", rows, columns,
                       different);
        }
    }
}

KERNEL_TEST(prefill_pairs_are_grouped) {
    Random random(52);
    for (const auto& [pairs, experts] : {std::pair<std::size_t, std::size_t>{1, 2},
                                         {5, 288},
                                         {1000, 3},
                                         {8192 * 8, 288},
                                         {4097, 512},
                                         {256, 1}}) {
        std::vector<std::uint32_t> chosen(pairs);
        for (std::uint32_t& one : chosen)
            one = static_cast<std::uint32_t>(random.below(random.below(experts) + 1));
        const int most = ops::cuda::most_groups(static_cast<int>(pairs), static_cast<int>(experts),
                                                ops::cuda::prefill_group_rows);
        const OnDevice<std::uint32_t> chosen_memory(chosen);
        OnDevice<std::uint32_t> order_memory(pairs);
        OnDevice<ops::cuda::ExpertGroup> groups_memory(static_cast<std::size_t>(most));
        OnDevice<std::int32_t> count_memory(1), touched_memory(1);
        order_memory.poison();
        groups_memory.poison();
        ops::cuda::PairGrouping op;
        op.pairs = static_cast<int>(pairs);
        op.experts = static_cast<int>(experts);
        op.group_rows = ops::cuda::prefill_group_rows;
        op.chosen = chosen_memory.data();
        op.pair_order = order_memory.data();
        op.groups = groups_memory.data();
        op.group_count = count_memory.data();
        op.touched = touched_memory.data();
        CHECK_OK(ops::cuda::group_pairs(op, {}));
        std::vector<std::uint32_t> sorted(pairs);
        std::iota(sorted.begin(), sorted.end(), 0u);
        std::stable_sort(sorted.begin(), sorted.end(),
                         [&](auto a, auto b) { return chosen[a] < chosen[b]; });
        const auto order = order_memory.download();
        CHECK_THAT(order == sorted, "%zu pairs of %zu experts: not sorted", pairs, experts);
        const auto groups = groups_memory.download();
        const int count = count_memory.download()[0];
        CHECK_THAT(count >= 1 && count <= most, "%d groups, room for %d", count, most);
        std::size_t covered = 0, distinct = 0;
        bool sound = true;
        for (int g = 0; sound && g < std::min(count, most); ++g) {
            sound = groups[g].first == static_cast<int>(covered) && groups[g].count >= 1 &&
                    groups[g].count <= ops::cuda::prefill_group_rows;
            for (int i = 0; sound && i < groups[g].count; ++i)
                sound = static_cast<int>(chosen[sorted[covered + i]]) == groups[g].expert;
            const bool first_of_expert = g == 0 || groups[g].expert != groups[g - 1].expert;
            distinct += first_of_expert;
            // Only an expert's last group is not full.
            if (!first_of_expert) sound &= groups[g - 1].count == ops::cuda::prefill_group_rows;
            covered += sound ? groups[g].count : 0;
        }
        CHECK_THAT(sound && covered == pairs, "%zu pairs: groups do not cover them", pairs);
        CHECK_THAT(touched_memory.download()[0] == static_cast<int>(distinct),
                   "%zu pairs: %d experts touched, not %zu", pairs, touched_memory.download()[0],
                   distinct);
    }
}

KERNEL_TEST(prefill_gemm_of_every_format_and_row_count) {
    Random random(53);
    for (const std::size_t k : {128, 384, 2304}) {
        const Rows x(random, most_rows, k);
        for (const WeightFormat format : formats) {
            for (const std::size_t n : k == 128   ? std::vector<std::size_t>{1, 16, 130, 700}
                                       : k == 384 ? std::vector<std::size_t>{100, 257}
                                                  : std::vector<std::size_t>{300})
                check_shape(format, {n, k}, x, random);
        }
    }
    const Rows odd(random, most_rows, 224);
    check_shape(WeightFormat::bf16, {65, 224}, odd, random);
    check_shape(WeightFormat::fp8_block, {150, 224}, odd, random);
    check_shape(WeightFormat::nvfp4, {50, 224}, odd, random);
}

// Several matrices in one launch, as f32, bf16 and ordered bf16, each among the others' columns.
KERNEL_TEST(prefill_gemm_of_several_matrices_and_kinds_of_rows) {
    Random random(54);
    constexpr std::size_t rows = 333, k = 512, stride = 1024;
    const Rows x(random, rows, k);
    for (const WeightFormat format : formats) {
        const StoredMatrix wide(format, 300, k, random), narrow(format, 64, k, random),
            ordered(format, 160, k, random);
        const PackedOnDevice packed_wide(wide), packed_narrow(narrow), packed_ordered(ordered);
        OnDevice<float> y(rows * stride);
        OnDevice<__nv_bfloat16> y16(rows * stride);
        y.poison();
        y16.poison();
        const ops::cuda::PrefillProduct products[] = {
            plain(packed_wide, x.ordered.data(), k, y.data() + 8, stride),
            plain(packed_narrow, x.ordered.data(), k, y16.data(), stride, PrefillRows::bf16),
            plain(packed_ordered, x.ordered.data(), k, y16.data() + 64, stride,
                  PrefillRows::ordered_bf16)};
        CHECK_OK(ops::cuda::prefill_gemm(products, rows, limit, {}));
        const auto got = y.download();
        const auto got16 = y16.download();
        for (const std::size_t row : {0, 63, 64, 200, 332}) {
            const float* const own = got.data() + row * stride;
            const __nv_bfloat16* const own16 = got16.data() + row * stride;
            double terms = 0;
            const auto expected = product(wide, x.row(row), &terms);
            CHECK_THAT(relative_error({own + 8, 300}, expected, terms) < 2e-6, "row %zu", row);
            CHECK_THAT(std::isnan(own[7]) && std::isnan(own[308]), "row %zu: written beside", row);
            std::vector<float> values(64);
            for (std::size_t i = 0; i < 64; ++i)
                values[i] = __bfloat162float(own16[i]);
            CHECK_THAT(relative_error(values, product(narrow, x.row(row))) < 3e-3, "row %zu", row);
            values.resize(160);
            for (std::size_t i = 0; i < 160; ++i)
                values[i] = __bfloat162float(own16[64 + place_of(i)]);
            CHECK_THAT(relative_error(values, product(ordered, x.row(row))) < 3e-3, "row %zu", row);
            CHECK_THAT(std::isnan(__bfloat162float(own16[224])), "row %zu: written behind", row);
        }
    }
}

// A product a head: outputs of a head read their own inputs.
KERNEL_TEST(prefill_gemm_of_heads) {
    Random random(55);
    constexpr std::size_t rows = 130, heads = 3, outputs = 256, k = 128, step = 160;
    const Rows x(random, rows, heads * step);
    for (const WeightFormat format : {WeightFormat::bf16, WeightFormat::fp8_block}) {
        const StoredMatrix stored(format, heads * outputs, k, random);
        const PackedOnDevice packed(stored);
        OnDevice<float> y(rows * heads * outputs);
        y.poison();
        auto one = plain(packed, x.ordered.data(), x.columns, y.data(), heads * outputs);
        one.outputs_per_input = outputs;
        one.input_step = step;
        CHECK_OK(ops::cuda::prefill_gemm({&one, 1}, rows, limit, {}));
        const auto got = y.download();
        for (const std::size_t row : {0, 64, 129}) {
            for (std::size_t head = 0; head < heads; ++head) {
                const auto all = product(stored, x.row(row) + head * step);
                const std::span<const double> expected(all.data() + head * outputs, outputs);
                const double error = relative_error(
                    {got.data() + row * heads * outputs + head * outputs, outputs}, expected);
                CHECK_THAT(error < 2e-6, "row %zu head %zu: error %.3g", row, head, error);
            }
        }
    }
}

KERNEL_TEST(prefill_gemm_of_gate_and_up) {
    Random random(56);
    for (const Shape shape : {Shape{128, 384}, Shape{96, 1024}}) {
        // Large inputs: both clamps must bite.
        const Rows x(random, most_rows, shape.k, 8.0f);
        for (const WeightFormat format : formats) {
            const StoredMatrix gate(format, shape.n, shape.k, random);
            const StoredMatrix up(format, shape.n, shape.k, random);
            const PackedOnDevice packed_gate(gate), packed_up(up);
            OnDevice<__nv_bfloat16> y(most_rows * shape.n);
            const auto run = [&](std::size_t first, std::size_t rows, PrefillRows kind) {
                y.poison();
                auto one = plain(packed_gate, x.ordered.data() + first * shape.k, shape.k, y.data(),
                                 shape.n, kind);
                one.up = packed_up.view();
                CHECK_OK(ops::cuda::prefill_gemm({&one, 1}, static_cast<int>(rows), limit, {}));
                return y.download();
            };
            const std::string name(name_of(format));
            const auto whole = run(0, most_rows, PrefillRows::bf16);
            const auto ordered = run(0, most_rows, PrefillRows::ordered_bf16);
            std::size_t elsewhere = 0;
            for (std::size_t row = 0; row < most_rows; ++row) {
                for (std::size_t c = 0; c < shape.n; ++c)
                    elsewhere += !same_bits(&ordered[row * shape.n + place_of(c)],
                                            &whole[row * shape.n + c], 1);
            }
            CHECK_THAT(elsewhere == 0, "%s: %zu ordered values differ", name.c_str(), elsewhere);
            int clamped = 0;
            for (const std::size_t row : {0, 63, 64, 127, 128, 8191}) {
                const auto g = product(gate, x.row(row));
                const auto u = product(up, x.row(row));
                std::vector<double> expected(shape.n);
                std::vector<float> got(shape.n);
                for (std::size_t i = 0; i < shape.n; ++i) {
                    clamped += g[i] > limit || std::abs(u[i]) > limit;
                    const double a = std::min<double>(g[i], limit);
                    expected[i] = a / (1 + std::exp(-a)) * std::clamp<double>(u[i], -limit, limit);
                    got[i] = __bfloat162float(whole[row * shape.n + i]);
                }
                const double error = relative_error(got, expected);
                CHECK_THAT(error < 3e-3, "%s row %zu: error %.3g", name.c_str(), row, error);
            }
            CHECK_THAT(clamped > 0, "no value met a clamp");
            for (const std::size_t rows : row_counts) {
                const std::size_t first = random.below(most_rows - rows + 1);
                const auto some = run(first, rows, PrefillRows::bf16);
                CHECK_THAT(same_bits(some.data(), whole.data() + first * shape.n, rows * shape.n),
                           "%s at %zu rows: bits changed", name.c_str(), rows);
                if (rows < most_rows)
                    CHECK_THAT(std::isnan(__bfloat162float(some[rows * shape.n])),
                               "%zu rows wrote a row too many", rows);
            }
        }
    }
}

// Gates, ups and downs of experts, for pairs that meet in groups of any size.
KERNEL_TEST(prefill_experts_of_every_format) {
    Random random(57);
    constexpr std::size_t experts = 7, chosen = 2, hidden = 256, inner = 160;
    const Rows x(random, most_rows, hidden, 4.0f);
    // The first expert is everybody's, the others are chosen seldom or often.
    std::vector<std::uint32_t> chosen_experts(most_rows * chosen);
    for (std::size_t row = 0; row < most_rows; ++row) {
        chosen_experts[row * chosen] = 0;
        const std::size_t other = 1 + random.below(random.below(experts - 1) + 1);
        chosen_experts[row * chosen + 1] = static_cast<std::uint32_t>(other);
    }
    for (const WeightFormat format : formats) {
        std::vector<std::unique_ptr<StoredMatrix>> stored[3];
        std::vector<std::unique_ptr<PackedOnDevice>> packed;
        std::vector<const std::uint8_t*> pointers[3];
        std::vector<float> scales[3];
        for (std::size_t e = 0; e < experts; ++e) {
            for (int i = 0; i < 3; ++i) {
                const std::size_t n = i < 2 ? inner : hidden, k = i < 2 ? hidden : inner;
                // w4a16 has whole blocks of 128 inputs.
                const bool fits = format != WeightFormat::w4a16 || k % 128 == 0;
                stored[i].push_back(std::make_unique<StoredMatrix>(
                    fits ? format : WeightFormat::bf16, n, k, random));
                packed.push_back(std::make_unique<PackedOnDevice>(*stored[i].back()));
                pointers[i].push_back(packed.back()->view().data);
                // Every expert its own global scale: one that is used for all would show.
                const bool scaled = format == WeightFormat::nvfp4;
                scales[i].push_back(packed.back()->view().global_scale *
                                    (scaled ? 1.0f + 0.25f * static_cast<float>(e + i) : 1.0f));
            }
        }
        const OnDevice<const std::uint8_t*> gates(pointers[0]), ups(pointers[1]),
            downs(pointers[2]);
        const OnDevice<float> gate_scales(scales[0]), up_scales(scales[1]), down_scales(scales[2]);
        const auto run = [&](std::size_t first, std::size_t rows) {
            const std::size_t pairs = rows * chosen;
            const auto begin = chosen_experts.begin() + first * chosen;
            const OnDevice<std::uint32_t> own(std::vector<std::uint32_t>(begin, begin + pairs));
            const int most = ops::cuda::most_groups(static_cast<int>(pairs), experts,
                                                    ops::cuda::prefill_group_rows);
            OnDevice<std::uint32_t> order(pairs);
            OnDevice<ops::cuda::ExpertGroup> groups(static_cast<std::size_t>(most));
            OnDevice<std::int32_t> count(1);
            OnDevice<__nv_bfloat16> gathered(pairs * hidden), inside(pairs * inner);
            OnDevice<float> y(pairs * hidden);
            const OnDevice<__nv_bfloat16> natural(x.host);
            gathered.poison();
            inside.poison();
            y.poison();
            ops::cuda::PairGrouping grouping;
            grouping.pairs = static_cast<int>(pairs);
            grouping.experts = experts;
            grouping.group_rows = ops::cuda::prefill_group_rows;
            grouping.chosen = own.data();
            grouping.pair_order = order.data();
            grouping.groups = groups.data();
            grouping.group_count = count.data();
            CHECK_OK(ops::cuda::group_pairs(grouping, {}));
            ops::cuda::OrderedRows gather;
            gather.rows = static_cast<int>(pairs);
            gather.columns = gather.x_stride = hidden;
            gather.x = natural.data() + first * hidden;
            gather.pair_order = order.data();
            gather.pairs_per_row = chosen;
            gather.out = gathered.data();
            CHECK_OK(ops::cuda::order_rows(gather, {}));
            ops::cuda::PrefillExperts product;
            product.format = format;
            product.n = inner;
            product.k = hidden;
            product.weights = gates.data();
            product.ups = ups.data();
            product.scales = gate_scales.data();
            product.up_scales = up_scales.data();
            product.x = gathered.data();
            product.x_stride = hidden;
            product.pairs = static_cast<int>(pairs);
            product.groups = groups.data();
            product.group_count = count.data();
            product.pair_order = order.data();
            product.y = inside.data();
            product.y_stride = inner;
            CHECK_OK(ops::cuda::prefill_experts(product, limit, {}));
            product.format = stored[2][0]->view().format;
            product.n = hidden;
            product.k = inner;
            product.weights = downs.data();
            product.ups = nullptr;
            product.scales = down_scales.data();
            product.up_scales = nullptr;
            product.x = inside.data();
            product.x_stride = inner;
            product.y = y.data();
            product.y_stride = hidden;
            CHECK_OK(ops::cuda::prefill_experts(product, limit, {}));
            return y.download();
        };
        const std::string name(name_of(format));
        const auto whole = run(0, most_rows);
        for (const std::size_t row : {0, 1, 100, 4000, 8191}) {
            for (std::size_t j = 0; j < chosen; ++j) {
                const std::size_t pair = row * chosen + j;
                const std::uint32_t e = chosen_experts[pair];
                const auto factor = [&](int i) {
                    return format == WeightFormat::nvfp4 ? 1.0 + 0.25 * (e + i) : 1.0;
                };
                const auto g = product(*stored[0][e], x.row(row));
                const auto u = product(*stored[1][e], x.row(row));
                std::vector<float> inside(inner);
                for (std::size_t i = 0; i < inner; ++i) {
                    const double a = std::min<double>(g[i] * factor(0), limit);
                    const double b = std::clamp<double>(u[i] * factor(1), -limit, limit);
                    inside[i] = static_cast<float>(a / (1 + std::exp(-a)) * b);
                }
                auto expected = product(*stored[2][e], as_bf16(inside).data());
                for (double& value : expected)
                    value *= factor(2);
                const double error =
                    relative_error({whole.data() + pair * hidden, hidden}, expected);
                CHECK_THAT(error < 1e-3, "%s row %zu: error %.3g", name.c_str(), row, error);
            }
        }
        for (const std::size_t rows : row_counts) {
            const std::size_t first = random.below(most_rows - rows + 1);
            const auto some = run(first, rows);
            CHECK_THAT(same_bits(some.data(), whole.data() + first * chosen * hidden,
                                 rows * chosen * hidden),
                       "%s at %zu rows: bits changed", name.c_str(), rows);
        }
    }
}
