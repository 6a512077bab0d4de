#include "ops/cuda/mhc_turn.h"
#include "ops/cuda/prefill_turn.h"
#include "ops/reference/reference_primitives.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;

namespace {

double distance(const std::vector<float>& got, const std::vector<float>& expected) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
        error += (static_cast<double>(got[i]) - expected[i]) *
                 (static_cast<double>(got[i]) - expected[i]);
        norm += static_cast<double>(expected[i]) * expected[i];
    }
    return std::sqrt(error / norm);
}

std::vector<float> widened(const std::vector<__nv_bfloat16>& values) {
    std::vector<float> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        result[i] = __bfloat162float(values[i]);
    return result;
}

// One turn's inputs.
struct Turn {
    std::size_t rows, hidden;
    std::vector<float> streams, output, post, comb, base, scale, norm;
    StoredMatrix fn;
    Turn(Random& random, std::size_t rows, std::size_t hidden)
        : rows(rows),
          hidden(hidden),
          streams(normals(random, rows * 4 * hidden, 2.0f)),
          output(normals(random, rows * hidden)),
          post(rows * 4),
          comb(rows * 16),
          base(normals(random, 24)),
          scale(normals(random, 3)),
          norm(normals(random, hidden)),
          fn(ops::WeightFormat::bf16, 24, 4 * hidden, random) {
        for (float& v : post)
            v = random.uniform(0.0f, 2.0f);
        for (float& v : comb)
            v = random.uniform();  // not symmetric: a transposed update would show
    }
};

struct TurnResult {
    std::vector<float> streams, post, comb, normed, summed, normed_wide, tap;
};

TurnResult run(const Turn& turn, bool prompt, bool update, bool last, std::size_t first,
               std::size_t rows) {
    const auto cut = [&](const std::vector<float>& values, std::size_t width) {
        return std::vector<float>(values.begin() + first * width,
                                  values.begin() + (first + rows) * width);
    };
    const std::size_t hidden = turn.hidden;
    OnDevice<float> streams(cut(turn.streams, 4 * hidden)), post(cut(turn.post, 4)),
        comb(cut(turn.comb, 16)), normed_wide(rows * hidden), tap(rows * hidden);
    const OnDevice<float> output(cut(turn.output, hidden)), base(turn.base), scale(turn.scale),
        norm(turn.norm);
    const OnDevice<std::uint8_t> fn(turn.fn.data());
    OnDevice<__nv_bfloat16> parts(rows * ops::cuda::row_parts * hidden);
    parts.poison();
    normed_wide.poison();
    tap.poison();
    ops::cuda::HyperConnectionTurn op;
    op.rows = static_cast<int>(rows);
    op.hidden = static_cast<int>(hidden);
    op.streams = streams.data();
    if (update) op.output = output.data();
    op.post = post.data();
    op.comb = comb.data();
    if (last) {
        op.final_norm = norm.data();
    } else {
        op.next = {reinterpret_cast<const __nv_bfloat16*>(fn.data()), base.data(), scale.data(),
                   norm.data()};
    }
    op.normed = parts.data();
    op.normed_wide = normed_wide.data();
    op.tap = tap.data();
    OnDevice<float> partial(rows * ops::cuda::prompt_turn_floats(op.hidden));
    partial.poison();
    CHECK_OK(prompt ? ops::cuda::prompt_turn(op, partial.data(), {}) : ops::cuda::mhc_turn(op, {}));
    // The first parts, and the sums of all.
    const std::vector<float> all = widened(parts.download());
    std::vector<float> normed, summed;
    for (std::size_t row = 0; row < rows; ++row) {
        for (std::size_t i = 0; i < hidden; ++i) {
            const float* const first_part = all.data() + row * ops::cuda::row_parts * hidden + i;
            normed.push_back(first_part[0]);
            summed.push_back(first_part[0] + (first_part[hidden] + first_part[2 * hidden]));
        }
    }
    return {streams.download(),     post.download(), comb.download(), normed, summed,
            normed_wide.download(), tap.download()};
}

TurnResult reference(const Turn& turn, bool update, bool last) {
    const std::size_t rows = turn.rows, hidden = turn.hidden;
    TurnResult result{turn.streams, turn.post, turn.comb, {}, {}, {}, {}};
    result.normed_wide.resize(rows * hidden);
    result.tap.resize(rows * hidden);
    std::vector<float> pre(rows * 4);
    ops::reference::ReferencePrimitives primitives;
    const Rows<float> state(result.streams.data(), rows, 4 * hidden);
    if (update) {
        ops::MhcUpdate op;
        op.output = {turn.output.data(), rows, hidden};
        op.post = {turn.post.data(), rows, 4};
        op.comb = {turn.comb.data(), rows, 16};
        op.state = state;
        primitives.mhc_update(op);
    }
    ops::MhcCollapse tap;
    tap.state = state;
    tap.output = {result.tap.data(), rows, hidden};
    primitives.mhc_collapse(tap);
    ops::MhcCollapse collapse;
    collapse.state = state;
    collapse.norm = turn.norm.data();
    collapse.output = {result.normed_wide.data(), rows, hidden};
    if (!last) {
        ops::MhcGateComputation gates;
        gates.fn = turn.fn.view();
        gates.base = turn.base.data();
        gates.scale = turn.scale.data();
        gates.state = state;
        gates.pre = {pre.data(), rows, 4};
        gates.post = {result.post.data(), rows, 4};
        gates.comb = {result.comb.data(), rows, 16};
        primitives.mhc_gates(gates);
        collapse.pre = {pre.data(), rows, 4};
    }
    primitives.mhc_collapse(collapse);
    result.normed = result.normed_wide;
    return result;
}

void turn_against_the_reference(bool prompt, std::size_t rows, std::size_t alone_row) {
    Random random(31);
    for (std::size_t hidden : {64u, 384u, 4096u}) {
        const Turn turn(random, rows, hidden);
        for (bool update : {false, true}) {
            for (bool last : {false, true}) {
                const TurnResult got = run(turn, prompt, update, last, 0, turn.rows);
                const TurnResult expected = reference(turn, update, last);
                const auto check = [&](const char* what, const std::vector<float>& a,
                                       const std::vector<float>& b, double limit) {
                    const double error = distance(a, b);
                    CHECK_THAT(error < limit, "hidden %zu, update %d, last %d, %s: error %.3g",
                               hidden, update, last, what, error);
                };
                check("streams", got.streams, expected.streams, 1e-6);
                check("tap", got.tap, expected.tap, 1e-6);
                check("post", got.post, expected.post, 1e-5);
                check("comb", got.comb, expected.comb, 1e-5);
                check("normed", got.normed, expected.normed, 3e-3);
                CHECK_THAT(distance(got.summed, got.normed_wide) < 1e-7,
                           "hidden %zu: the parts do not add up", hidden);
                check("normed, unrounded", got.normed_wide, expected.normed_wide, 1e-5);
                // Alone: the same bits.
                const TurnResult alone = run(turn, prompt, update, last, alone_row, 1);
                CHECK_THAT(
                    std::memcmp(alone.normed_wide.data(),
                                got.normed_wide.data() + alone_row * hidden, hidden * 4) == 0 &&
                        std::memcmp(alone.comb.data(), got.comb.data() + alone_row * 16, 64) == 0 &&
                        std::memcmp(alone.streams.data(),
                                    got.streams.data() + alone_row * 4 * hidden, hidden * 16) == 0,
                    "hidden %zu: a row alone has other bits", hidden);
            }
        }
    }
}

}  // namespace

KERNEL_TEST(mhc_turn_against_the_reference) {
    turn_against_the_reference(false, 9, 4);
}

KERNEL_TEST(prefill_turn_against_the_reference) {
    turn_against_the_reference(true, 1, 0);
    turn_against_the_reference(true, 45, 29);
}

// A prompt's rows in any cut: the same bits.
KERNEL_TEST(prefill_turn_of_any_rows) {
    Random random(33);
    const Turn turn(random, 1000, 512);
    const TurnResult whole = run(turn, true, true, false, 0, turn.rows);
    for (const auto& [first, rows] :
         {std::pair<std::size_t, std::size_t>{0, 64}, {64, 65}, {7, 333}, {1, 999}}) {
        const TurnResult some = run(turn, true, true, false, first, rows);
        CHECK_THAT(
            std::memcmp(some.normed_wide.data(), whole.normed_wide.data() + first * 512,
                        rows * 512 * 4) == 0 &&
                std::memcmp(some.comb.data(), whole.comb.data() + first * 16, rows * 64) == 0 &&
                std::memcmp(some.post.data(), whole.post.data() + first * 4, rows * 16) == 0,
            "%zu rows from %zu have other bits", rows, first);
    }
}

// Many rows go through two kernels instead of one.
KERNEL_TEST(mhc_turn_of_many_rows_has_the_bits_of_few) {
    Random random(32);
    for (std::size_t hidden : {64u, 192u, 1216u, 4096u}) {
        for (std::size_t rows : {17u, 70u, 255u}) {
            const Turn turn(random, rows, hidden);
            for (bool update : {false, true}) {
                const TurnResult all = run(turn, false, update, false, 0, rows);
                for (std::size_t first = 0; first < rows; first += 1 + rows / 9) {
                    const std::size_t count = std::min<std::size_t>(rows - first, 1 + first % 9);
                    const TurnResult few = run(turn, false, update, false, first, count);
                    const auto same = [&](const char* what, const std::vector<float>& a,
                                          const std::vector<float>& b, std::size_t width) {
                        CHECK_THAT(std::memcmp(a.data(), b.data() + first * width,
                                               count * width * sizeof(float)) == 0,
                                   "hidden %zu, %zu rows, update %d, from row %zu: other %s",
                                   hidden, rows, update, first, what);
                    };
                    same("streams", few.streams, all.streams, 4 * hidden);
                    same("tap", few.tap, all.tap, hidden);
                    same("post", few.post, all.post, 4);
                    same("comb", few.comb, all.comb, 16);
                    same("normed", few.normed, all.normed, hidden);
                    same("sum of the parts", few.summed, all.summed, hidden);
                    same("normed, unrounded", few.normed_wide, all.normed_wide, hidden);
                }
            }
        }
    }
}
