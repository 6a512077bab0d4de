#include <algorithm>
#include <memory>
#include <numeric>
#include <set>

#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/router.h"
#include "ops/reference/reference_primitives.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;
using ops::WeightFormat;

namespace {

// Memory for a router's choices.
struct ChoiceMemory {
    OnDevice<std::uint32_t> experts, order;
    OnDevice<float> weights;
    OnDevice<ops::cuda::ExpertGroup> groups;
    OnDevice<std::int32_t> count;
    explicit ChoiceMemory(std::size_t pairs)
        : experts(pairs), order(pairs), weights(pairs), groups(pairs), count(1) {
        experts.poison();
        order.poison();
        weights.poison();
        groups.poison();
        count.poison();
    }
    ops::cuda::ExpertChoice view() const {
        return {experts.data(),
                weights.data(),
                order.data(),
                groups.data(),
                count.data(),
                nullptr,
                static_cast<int>(experts.size())};
    }
};

struct RouterCase {
    std::size_t rows, hidden, experts, chosen;
};

// Rows as the turn leaves them: [row][part][columns].
std::vector<__nv_bfloat16> in_parts(const std::vector<float>& x, std::size_t columns) {
    constexpr std::size_t parts = ops::cuda::row_parts;
    std::vector<__nv_bfloat16> result(x.size() * parts);
    for (std::size_t i = 0; i < x.size(); ++i) {
        float left = x[i];
        for (std::size_t part = 0; part < parts; ++part) {
            const __nv_bfloat16 value = __float2bfloat16_rn(left);
            result[(i / columns * parts + part) * columns + i % columns] = value;
            left -= __bfloat162float(value);
        }
    }
    return result;
}

void check_router(const RouterCase& c, Random& random) {
    const StoredMatrix weight(WeightFormat::bf16, c.experts, c.hidden, random);
    const auto x = normals(random, c.rows * c.hidden, 3.0f);
    const auto bias = normals(random, c.experts, 0.1f);
    const std::size_t pairs = c.rows * c.chosen;
    const OnDevice<float> bias_memory(bias);
    const OnDevice<__nv_bfloat16> x_memory(in_parts(x, c.hidden));
    const PackedOnDevice packed(weight);
    OnDevice<float> logits(c.rows * ops::cuda::row_parts * c.experts);
    const ChoiceMemory choice(pairs);
    ops::cuda::Routing routing;
    routing.rows = static_cast<int>(c.rows);
    routing.hidden = static_cast<int>(c.hidden);
    routing.experts = static_cast<int>(c.experts);
    routing.chosen = static_cast<int>(c.chosen);
    routing.x = x_memory.data();
    routing.weight = packed.view();
    routing.bias = bias_memory.data();
    routing.scale = 2.5f;
    routing.logits = logits.data();
    routing.choice = choice.view();
    CHECK_OK(ops::cuda::route(routing, {}));

    std::vector<std::uint32_t> expected_experts(pairs);
    std::vector<float> expected_weights(pairs);
    ops::Router reference;
    reference.weight = weight.view();
    reference.bias = bias.data();
    reference.scale = 2.5f;
    reference.input = {x.data(), c.rows, c.hidden};
    reference.experts = {expected_experts.data(), c.rows, c.chosen};
    reference.weights = {expected_weights.data(), c.rows, c.chosen};
    ops::reference::ReferencePrimitives().router(reference);
    const auto experts = choice.experts.download();
    const auto weights = choice.weights.download();
    // Neighbouring choices may swap where their scores agree to rounding; sets and weights by
    // expert must agree but for that.
    std::size_t different = 0;
    double worst = 0;
    for (std::size_t row = 0; row < c.rows; ++row) {
        for (std::size_t j = 0; j < c.chosen; ++j) {
            const std::size_t pair = row * c.chosen + j;
            const auto first = expected_experts.begin() + row * c.chosen;
            const auto found = std::find(first, first + c.chosen, experts[pair]);
            if (found == first + c.chosen) {
                ++different;
                continue;
            }
            const float expected = expected_weights[found - expected_experts.begin()];
            worst = std::max<double>(worst, std::abs(weights[pair] - expected));
        }
    }
    CHECK_THAT(different * 200 <= pairs, "%zu rows: %zu of %zu choices differ", c.rows, different,
               pairs);
    CHECK_THAT(worst < 1e-5, "%zu rows: weights off by %.3g", c.rows, worst);

    // The groups hold every pair once, ascending by expert and pair.
    const auto order = choice.order.download();
    const auto groups = choice.groups.download();
    const int count = choice.count.download()[0];
    std::vector<std::uint32_t> sorted(pairs);
    std::iota(sorted.begin(), sorted.end(), 0u);
    std::stable_sort(sorted.begin(), sorted.end(),
                     [&](auto a, auto b) { return experts[a] < experts[b]; });
    CHECK_THAT(order == sorted, "%zu rows: pairs are not sorted by expert", c.rows);
    std::size_t covered = 0;
    bool sound = count >= 0 && static_cast<std::size_t>(count) <= pairs;
    for (int g = 0; sound && g < count; ++g) {
        sound &= groups[g].first == static_cast<int>(covered) && groups[g].count >= 1 &&
                 groups[g].count <= ops::cuda::expert_group_rows;
        for (int i = 0; sound && i < groups[g].count; ++i)
            sound &= static_cast<int>(experts[order[covered + i]]) == groups[g].expert;
        covered += sound ? groups[g].count : 0;
    }
    CHECK_THAT(sound && covered == pairs, "%zu rows: groups do not cover the pairs", c.rows);
}

std::vector<double> product(const StoredMatrix& matrix, const std::vector<float>& x) {
    std::vector<float> weights(matrix.view().k);
    std::vector<double> y(matrix.view().n);
    for (std::size_t n = 0; n < y.size(); ++n) {
        ops::dequantise_row(matrix.view(), n, weights.data());
        for (std::size_t k = 0; k < weights.size(); ++k)
            y[n] += static_cast<double>(weights[k]) * x[k];
    }
    return y;
}

struct ExpertsSize {
    std::size_t experts, chosen, hidden, inner, rows;
};

// The whole of an expert layer but its shared expert, against double arithmetic, and its rows alone
// against its rows together.
void check_experts(WeightFormat format, const ExpertsSize& size, Random& random) {
    const std::size_t experts = size.experts, chosen = size.chosen, hidden = size.hidden;
    const std::size_t inner = size.inner, rows = size.rows;
    const std::size_t pairs = rows * chosen;
    std::vector<std::unique_ptr<StoredMatrix>> gate, up, down;
    std::vector<std::unique_ptr<PackedOnDevice>> packed;
    std::vector<const std::uint8_t*> pointers[3];
    std::vector<float> scales[3];
    for (std::size_t e = 0; e < experts; ++e) {
        gate.push_back(std::make_unique<StoredMatrix>(format, inner, hidden, random));
        up.push_back(std::make_unique<StoredMatrix>(format, inner, hidden, random));
        down.push_back(std::make_unique<StoredMatrix>(format, hidden, inner, random));
        const StoredMatrix* const all[3] = {gate.back().get(), up.back().get(), down.back().get()};
        for (int i = 0; i < 3; ++i) {
            packed.push_back(std::make_unique<PackedOnDevice>(*all[i]));
            pointers[i].push_back(packed.back()->view().data);
            // Every expert its own global scale: one that is used for all would show.
            scales[i].push_back(packed.back()->view().global_scale *
                                (1.0f + 0.25f * static_cast<float>(e + i)));
        }
    }
    const OnDevice<const std::uint8_t*> gates(pointers[0]), ups(pointers[1]), downs(pointers[2]);
    const OnDevice<float> gate_scales(scales[0]), up_scales(scales[1]), down_scales(scales[2]);

    const auto x_bf16 = as_bf16(normals(random, rows * hidden, 4.0f));
    std::vector<float> x_wide(x_bf16.size());
    for (std::size_t i = 0; i < x_wide.size(); ++i)
        x_wide[i] = __bfloat162float(x_bf16[i]);
    const OnDevice<__nv_bfloat16> x(in_parts(x_wide, hidden));
    const std::size_t stride = ops::cuda::row_parts * hidden;
    // What the experts read.
    const bool raised = format == WeightFormat::w4a16;
    std::vector<float> x_own = x_wide;
    for (float& value : x_own)
        value *= raised ? ops::cuda::raised_by : 1.0f;
    const OnDevice<__nv_bfloat16> x_of_experts(as_bf16(x_own));
    const StoredMatrix router(WeightFormat::bf16, experts, hidden, random);
    const PackedOnDevice packed_router(router);
    // The first expert is everybody's: a group of more than eight pairs is cut.
    std::vector<float> bias(experts);
    bias[0] = 10.0f;
    const OnDevice<float> bias_memory(bias);
    const auto shared = normals(random, rows * hidden);
    const OnDevice<float> shared_memory(shared);

    struct Output {
        std::vector<std::uint32_t> experts;
        std::vector<float> weights, y;
        std::int32_t touched;
    };
    const auto run = [&](std::size_t first, std::size_t count,
                         const ops::cuda::LaunchContext& context = {}) {
        OnDevice<float> logits(count * ops::cuda::row_parts * experts),
            pair_output(count * chosen * hidden), y(count * hidden);
        OnDevice<__nv_bfloat16> inside(count * chosen * inner);
        const ChoiceMemory choice(count * chosen);
        OnDevice<std::int32_t> touched(1);
        touched.poison();
        pair_output.poison();
        inside.poison();
        y.poison();
        ops::cuda::Routing routing;
        routing.rows = static_cast<int>(count);
        routing.hidden = static_cast<int>(hidden);
        routing.experts = static_cast<int>(experts);
        routing.chosen = static_cast<int>(chosen);
        routing.x = x.data() + first * stride;
        routing.weight = packed_router.view();
        routing.bias = bias_memory.data();
        routing.scale = 2.5f;
        routing.logits = logits.data();
        routing.choice = choice.view();
        routing.choice.touched = touched.data();
        CHECK_OK(ops::cuda::route(routing, context));
        ops::cuda::ExpertProduct product;
        product.format = format;
        product.n = static_cast<int>(inner);
        product.k = static_cast<int>(hidden);
        product.weights = gates.data();
        product.ups = ups.data();
        product.scales = gate_scales.data();
        product.up_scales = up_scales.data();
        product.x = x_of_experts.data() + first * hidden;
        product.x_stride = static_cast<int>(hidden);
        product.pairs_per_row = static_cast<int>(chosen);
        product.y = inside.data();
        product.y_stride = static_cast<int>(inner);
        product.y_is_raised = raised;
        CHECK_OK(ops::cuda::expert_gemm(product, choice.view(), 10.0f, context));
        product.n = static_cast<int>(hidden);
        product.k = static_cast<int>(inner);
        product.weights = downs.data();
        product.ups = nullptr;
        product.scales = down_scales.data();
        product.up_scales = down_scales.data();
        product.x = inside.data();
        product.x_stride = static_cast<int>(inner);
        product.pairs_per_row = 1;
        product.y = pair_output.data();
        product.y_stride = static_cast<int>(hidden);
        product.choice_is_older = true;
        CHECK_OK(ops::cuda::expert_gemm(product, choice.view(), 10.0f, context));
        const ops::cuda::ExpertSum sum{
            static_cast<int>(count),
            static_cast<int>(hidden),
            {static_cast<int>(chosen), choice.weights.data(), pair_output.data()},
            shared_memory.data() + first * hidden,
            y.data()};
        CHECK_OK(ops::cuda::sum_experts(sum, context));
        return Output{choice.experts.download(), choice.weights.download(), y.download(),
                      touched.download()[0]};
    };
    const Output whole = run(0, rows);
    for (std::size_t row : {std::size_t{0}, std::size_t{7}, rows - 1}) {
        std::vector<double> expected(shared.begin() + row * hidden,
                                     shared.begin() + (row + 1) * hidden);
        const std::vector<float> own(x_wide.begin() + row * hidden,
                                     x_wide.begin() + (row + 1) * hidden);
        for (std::size_t j = 0; j < chosen; ++j) {
            const std::uint32_t e = whole.experts[row * chosen + j];
            const auto factor = [&](int i) { return 1.0 + 0.25 * (e + i); };
            const auto g = product(*gate[e], own), u = product(*up[e], own);
            std::vector<float> inside(inner);
            for (std::size_t i = 0; i < inner; ++i) {
                const double a = std::min(g[i] * factor(0), 10.0);
                const double b = std::clamp(u[i] * factor(1), -10.0, 10.0);
                inside[i] = rounded_to_bf16(static_cast<float>(a / (1 + std::exp(-a)) * b));
            }
            const auto d = product(*down[e], inside);
            for (std::size_t i = 0; i < hidden; ++i)
                expected[i] += whole.weights[row * chosen + j] * d[i] * factor(2);
        }
        double error = 0, norm = 0;
        for (std::size_t i = 0; i < hidden; ++i) {
            const double difference = whole.y[row * hidden + i] - expected[i];
            error += difference * difference;
            norm += expected[i] * expected[i];
        }
        error = std::sqrt(error / norm);
        CHECK_THAT(error < 1e-3, "%s row %zu: error %.3g", std::string(name_of(format)).c_str(),
                   row, error);
    }
    CHECK_THAT(std::count(whole.experts.begin(), whole.experts.end(), 0u) ==
                   static_cast<std::ptrdiff_t>(rows),
               "the first expert was to be chosen by all");
    for (const auto& [first, count] :
         {std::pair<std::size_t, std::size_t>{0, 1}, {5, 3}, {8, 8}, {11, 9}, {30, 10}}) {
        const Output some = run(first, count);
        CHECK_THAT(
            std::memcmp(some.y.data(), whole.y.data() + first * hidden, count * hidden * 4) == 0,
            "%s: rows %zu.. change their bits without neighbours",
            std::string(name_of(format)).c_str(), first);
        // Few rows are chosen and grouped by a kernel of their own.
        const auto from = whole.experts.begin() + first * chosen;
        CHECK_THAT(std::equal(some.experts.begin(), some.experts.end(), from),
                   "rows %zu..: other experts", first);
        CHECK_THAT(std::memcmp(some.weights.data(), whole.weights.data() + first * chosen,
                               count * chosen * 4) == 0,
                   "rows %zu..: other weights", first);
        const std::set<std::uint32_t> distinct(from, from + count * chosen);
        CHECK_THAT(some.touched == static_cast<std::int32_t>(distinct.size()),
                   "rows %zu..: %d experts touched, not %zu", first, some.touched, distinct.size());
    }
    // On one multiprocessor a block has more units than it lists at a time.
    const Output alone = run(0, rows, {nullptr, 1});
    CHECK_THAT(std::memcmp(alone.y.data(), whole.y.data(), rows * hidden * 4) == 0,
               "%s: fewer blocks change the bits", std::string(name_of(format)).c_str());
    CHECK_THAT(pairs == whole.weights.size(), "wrong number of pairs");
}

}  // namespace

KERNEL_TEST(router_against_the_reference) {
    Random random(41);
    for (const RouterCase& c :
         {RouterCase{1, 4096, 288, 8}, RouterCase{3, 384, 16, 4}, RouterCase{8, 256, 12, 9},
          RouterCase{8, 256, 300, 16}, RouterCase{64, 512, 288, 8}, RouterCase{512, 256, 288, 8},
          RouterCase{7, 4096, 500, 16}, RouterCase{40, 128, 33, 1}})
        check_router(c, random);
}

KERNEL_TEST(experts_of_every_format) {
    Random random(42);
    for (WeightFormat format :
         {WeightFormat::bf16, WeightFormat::fp8_block, WeightFormat::w4a16, WeightFormat::nvfp4})
        check_experts(format, {12, 4, 256, 384, 200}, random);
}

// Inputs as wide as the released ones, which several slices of 4-bit weights have.  Rows of groups
// of few pairs come with the weights, those of many are read by themselves: the same bits.
KERNEL_TEST(experts_of_wide_inputs) {
    Random random(43);
    for (WeightFormat format : {WeightFormat::w4a16, WeightFormat::nvfp4})
        check_experts(format, {5, 2, 4096, 2048, 41}, random);
}
