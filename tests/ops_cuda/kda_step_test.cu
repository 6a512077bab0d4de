#include "ops/cuda/few_row_gemm.h"
#include "ops/cuda/kda_step.h"
#include "ops/reference/reference_primitives.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;

namespace {

constexpr std::size_t heads = 3, dim = 128, channels = heads * dim;
constexpr std::size_t kept_width = ops::kda_kept_row(heads, dim);
constexpr std::uint32_t ring = 24;
constexpr std::size_t slots = 6;

// The weights of the mixer and the mutable memory of all slots.
struct Weights {
    std::vector<float> conv, a_log, dt_bias, out_norm;
    explicit Weights(Random& random)
        : conv(normals(random, 3 * channels * 4, 0.5f)),
          a_log(normals(random, heads, 0.5f)),
          dt_bias(normals(random, channels)),
          out_norm(normals(random, dim)) {}
};

struct SlotMemory {
    std::vector<float> state, conv, kept;
    explicit SlotMemory(Random& random)
        : state(normals(random, slots * heads * dim * dim, 0.3f)),
          conv(normals(random, slots * ring * 3 * channels)),
          kept(normals(random, slots * ring * kept_width, 0.2f)) {
        // Kept decays are log decays: negative.
        for (std::size_t row = 0; row < slots * ring; ++row) {
            for (std::size_t c = 2 * channels; c < 3 * channels; ++c)
                kept[row * kept_width + c] = -5.0f * random.uniform();
        }
    }
    ops::KdaSlots view(float* state_data, float* conv_data, float* kept_data) const {
        return {state_data, heads * dim * dim, conv_data, ring * 3 * channels,
                kept_data,  ring * kept_width, ring};
    }
};

// The matrices whose products are decay and gate.
struct GateMatrices {
    StoredMatrix decay, gate;
    PackedOnDevice packed_decay, packed_gate;
    explicit GateMatrices(Random& random)
        : decay(ops::WeightFormat::bf16, channels, dim, random),
          gate(ops::WeightFormat::bf16, channels, dim, random),
          packed_decay(decay),
          packed_gate(gate) {}
};

// One step's inputs, row-major.
struct Inputs {
    std::vector<float> projections, beta, decay, gate;
    std::vector<__nv_bfloat16> decay_rank, gate_rank;  // with GateMatrices, what the two come from
    Inputs(Random& random, std::size_t rows)
        : projections(normals(random, rows * 3 * channels)),
          beta(normals(random, rows * heads)),
          decay(normals(random, rows * channels, 2.0f)),
          gate(normals(random, rows * channels)) {}
    Inputs(Random& random, std::size_t rows, const GateMatrices& matrices) : Inputs(random, rows) {
        decay_rank = as_bf16(normals(random, rows * dim, 2.0f));
        gate_rank = as_bf16(normals(random, rows * dim));
        decay = expanded(matrices.packed_decay.view(), decay_rank);
        gate = expanded(matrices.packed_gate.view(), gate_rank);
    }

  private:
    static std::vector<float> expanded(const ops::cuda::PackedMatrix& weight,
                                       const std::vector<__nv_bfloat16>& rank) {
        const std::size_t rows = rank.size() / dim;
        const OnDevice<__nv_bfloat16> x(rank);
        OnDevice<float> y(rows * channels);
        y.poison();
        const ops::cuda::FewRowProduct one{weight, {}, x.data(), dim, y.data(), channels, false};
        CHECK_OK(ops::cuda::few_row_gemm({&one, 1}, static_cast<int>(rows), 10.0f, {}));
        return y.download();
    }
};

class DeviceSlots {
  public:
    explicit DeviceSlots(const SlotMemory& host)
        : state_(host.state),
          conv_(host.conv),
          kept_(host.kept),
          view_(host.view(state_.data(), conv_.data(), kept_.data())) {}
    const ops::KdaSlots& view() const { return view_; }
    std::vector<float> state() const { return state_.download(); }
    std::vector<float> conv() const { return conv_.download(); }
    std::vector<float> kept() const { return kept_.download(); }

  private:
    OnDevice<float> state_, conv_, kept_;
    ops::KdaSlots view_;
};

std::vector<__nv_bfloat16> run_on_device(const Weights& weights, const DeviceSlots& memory,
                                         const Inputs& inputs,
                                         const std::vector<ops::cuda::DeviceSequence>& sequences,
                                         std::size_t rows, const GateMatrices* in_place = nullptr) {
    const OnDevice<__nv_bfloat16> decay_rank(inputs.decay_rank), gate_rank(inputs.gate_rank);
    const OnDevice<float> projections(inputs.projections), beta(inputs.beta), decay(inputs.decay),
        gate(inputs.gate), conv(weights.conv), a_log(weights.a_log), dt_bias(weights.dt_bias),
        out_norm(weights.out_norm);
    const OnDevice<ops::cuda::DeviceSequence> on_device(sequences);
    OnDevice<__nv_bfloat16> output(rows * channels);
    output.poison();
    ops::cuda::KdaStep step;
    step.heads = heads;
    step.projections = projections.data();
    step.projection_stride = 3 * channels;
    step.beta = beta.data();
    step.beta_stride = heads;
    if (in_place != nullptr) {
        step.decay_rank = decay_rank.data();
        step.gate_rank = gate_rank.data();
        step.decay_weight = in_place->packed_decay.view();
        step.gate_weight = in_place->packed_gate.view();
    } else {
        step.decay = decay.data();
        step.decay_stride = channels;
        step.gate = gate.data();
        step.gate_stride = channels;
    }
    step.conv = conv.data();
    step.a_log = a_log.data();
    step.dt_bias = dt_bias.data();
    step.out_norm = out_norm.data();
    step.slots = memory.view();
    step.sequences = on_device.data();
    step.sequence_count = static_cast<int>(sequences.size());
    step.output = output.data();
    CHECK_OK(ops::cuda::kda_step(step, {}));
    return output.download();
}

std::vector<float> run_reference(const Weights& weights, SlotMemory& memory, const Inputs& inputs,
                                 const std::vector<ops::cuda::DeviceSequence>& sequences,
                                 std::size_t rows) {
    const ops::KdaSlots view =
        memory.view(memory.state.data(), memory.conv.data(), memory.kept.data());
    std::vector<ops::SequenceRows> rows_of(sequences.size());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        const auto& s = sequences[i];
        rows_of[i].first_row = s.first_row;
        rows_of[i].row_count = s.row_count;
        rows_of[i].first_position = s.first_position;
        rows_of[i].state_position = s.state_position;
        rows_of[i].commit_rows = s.commit_rows;
        rows_of[i].slot = static_cast<RequestSlot>(s.slot);
    }
    const std::vector<TokenId> tokens(rows);
    ops::RowBatch batch;
    batch.sequences = rows_of;
    batch.tokens = tokens;

    Inputs work = inputs;
    std::vector<float> convolved(rows * 3 * channels), output(rows * channels);
    const Rows<float> all(convolved.data(), rows, 3 * channels);
    const auto query = all.column_slice(0, channels), key = all.column_slice(channels, channels),
               value = all.column_slice(2 * channels, channels);
    const Rows<float> decay(work.decay.data(), rows, channels);
    const Rows<float> beta(work.beta.data(), rows, heads);
    const Rows<float> out(output.data(), rows, channels);
    ops::reference::ReferencePrimitives reference;
    reference.short_conv({Rows<const float>(inputs.projections.data(), rows, 3 * channels),
                          weights.conv.data(), 4, view, &batch, all});
    reference.kda_gates(
        {heads, dim, weights.a_log.data(), weights.dt_bias.data(), -5.0f, query, key, decay, beta});
    reference.kda_step({heads, dim, query, key, value, decay, beta, view, &batch, out});
    reference.gated_norm({dim, out, Rows<const float>(inputs.gate.data(), rows, channels),
                          weights.out_norm.data(), 1e-5f, out});
    return output;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
        norm += static_cast<double>(b[i]) * b[i];
    }
    return std::sqrt(error / norm);
}

std::vector<float> widened(const std::vector<__nv_bfloat16>& values) {
    std::vector<float> result(values.size());
    for (std::size_t i = 0; i < values.size(); ++i)
        result[i] = __bfloat162float(values[i]);
    return result;
}

// Rows [from, from + count) of the inputs.
Inputs rows_of(const Inputs& all, std::size_t from, std::size_t count) {
    Inputs part = all;
    const auto cut = [&](std::vector<float>& values, std::size_t width) {
        values = std::vector<float>(values.begin() + from * width,
                                    values.begin() + (from + count) * width);
    };
    cut(part.projections, 3 * channels);
    cut(part.beta, heads);
    cut(part.decay, channels);
    cut(part.gate, channels);
    return part;
}

}  // namespace

KERNEL_TEST(kda_step_against_the_reference) {
    Random random(11);
    const Weights weights(random);
    for (int round = 0; round < 12; ++round) {
        std::vector<ops::cuda::DeviceSequence> sequences;
        std::uint32_t rows = 0;
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            if (round > 0 && random.below(4) == 0) continue;
            ops::cuda::DeviceSequence s;
            s.slot = slot;
            s.first_row = rows;
            s.row_count = 1 + static_cast<std::uint32_t>(random.below(round % 3 == 0 ? 12 : 4));
            const auto folded = static_cast<std::uint32_t>(random.below(9));
            const bool at_start = random.below(4) == 0;
            s.state_position = at_start ? 0 : 1 + static_cast<std::uint32_t>(random.below(500));
            s.first_position = s.state_position + folded;
            s.commit_rows = static_cast<std::uint32_t>(random.below(s.row_count + 1));
            rows += s.row_count;
            sequences.push_back(s);
        }
        if (sequences.empty()) continue;
        SlotMemory memory(random);
        const Inputs inputs(random, rows);
        const DeviceSlots on_device(memory);
        // A slot that starts at 0 may keep its old bytes when nothing is committed into it.
        const auto before = memory.state;
        const auto got = run_on_device(weights, on_device, inputs, sequences, rows);
        const auto expected = run_reference(weights, memory, inputs, sequences, rows);
        for (const auto& s : sequences) {
            if (s.first_position == 0 && s.commit_rows == 0)
                std::copy_n(before.begin() + s.slot * heads * dim * dim, heads * dim * dim,
                            memory.state.begin() + s.slot * heads * dim * dim);
        }
        const double output_error = distance(widened(got), expected);
        CHECK_THAT(output_error < 3e-3, "round %d: output error %.3g", round, output_error);
        const double state_error = distance(on_device.state(), memory.state);
        CHECK_THAT(state_error < 2e-6, "round %d: state error %.3g", round, state_error);
        const double kept_error = distance(on_device.kept(), memory.kept);
        CHECK_THAT(kept_error < 2e-6, "round %d: kept rows error %.3g", round, kept_error);
        CHECK_THAT(on_device.conv() == memory.conv, "round %d: history differs", round);
    }
}

KERNEL_TEST(kda_step_bits_do_not_depend_on_commits_folds_or_neighbours) {
    Random random(12);
    const Weights weights(random);
    for (int round = 0; round < 6; ++round) {
        const std::uint32_t length = 14, start = 1 + static_cast<std::uint32_t>(random.below(300));
        const std::uint32_t slot = static_cast<std::uint32_t>(random.below(slots));
        const SlotMemory memory(random);
        const Inputs inputs(random, length);

        // One row a step, each committed.
        std::vector<__nv_bfloat16> expected;
        const DeviceSlots plain(memory);
        for (std::uint32_t i = 0; i < length; ++i) {
            const auto row = run_on_device(weights, plain, rows_of(inputs, i, 1),
                                           {{0, 1, start + i, start + i, 1, slot, 0}}, 1);
            expected.insert(expected.end(), row.begin(), row.end());
        }

        // Rounds of several rows: some verified and folded later, some committed at once, beside a
        // neighbour; rejected rows are computed again.
        const DeviceSlots mixed(memory);
        std::vector<__nv_bfloat16> got(expected.size());
        std::uint32_t done = 0, state_position = start;
        while (done < length) {
            const std::uint32_t rows = std::min<std::uint32_t>(
                1 + static_cast<std::uint32_t>(random.below(6)), length - done);
            const bool commits = random.below(3) == 0;
            const std::uint32_t accepted =
                commits ? rows : 1 + static_cast<std::uint32_t>(random.below(rows));
            Inputs step = rows_of(inputs, done, rows);
            const Inputs neighbour(random, 2);
            step.projections.insert(step.projections.begin(), neighbour.projections.begin(),
                                    neighbour.projections.end());
            step.beta.insert(step.beta.begin(), neighbour.beta.begin(), neighbour.beta.end());
            step.decay.insert(step.decay.begin(), neighbour.decay.begin(), neighbour.decay.end());
            step.gate.insert(step.gate.begin(), neighbour.gate.begin(), neighbour.gate.end());
            const auto out = run_on_device(
                weights, mixed, step,
                {{0, 2, 40, 38, 1, static_cast<std::uint32_t>((slot + 1) % slots), 0},
                 {2, rows, start + done, state_position, commits ? rows : 0, slot, 0}},
                rows + 2);
            std::copy_n(out.begin() + 2 * channels, accepted * channels,
                        got.begin() + done * channels);
            if (commits)
                state_position = start + done + rows;
            else
                state_position = start + done;
            done += accepted;
        }
        CHECK_THAT(std::memcmp(got.data(), expected.data(), got.size() * 2) == 0,
                   "round %d: outputs differ", round);
        // A last step that commits its row brings both states to the same position.
        const Inputs last(random, 1);
        run_on_device(weights, plain, last, {{0, 1, start + length, start + length, 1, slot, 0}},
                      1);
        run_on_device(weights, mixed, last, {{0, 1, start + length, state_position, 1, slot, 0}},
                      1);
        const auto a = plain.state(), b = mixed.state();
        const std::size_t from = slot * heads * dim * dim;
        CHECK_THAT(std::memcmp(a.data() + from, b.data() + from, heads * dim * dim * 4) == 0,
                   "round %d: states differ", round);
    }
}

// Steps with folded, verified and committed rows, of which some cross a chunk of eight tokens.
KERNEL_TEST(kda_step_expands_its_gates_to_the_same_bits) {
    Random random(13);
    const Weights weights(random);
    const GateMatrices matrices(random);
    for (int round = 0; round < 12; ++round) {
        std::vector<ops::cuda::DeviceSequence> sequences;
        std::uint32_t rows = 0;
        for (std::uint32_t slot = 0; slot < slots; ++slot) {
            if (round > 0 && random.below(3) == 0) continue;
            const auto count = 1 + static_cast<std::uint32_t>(random.below(round % 2 ? 3 : 14));
            const auto folded = static_cast<std::uint32_t>(random.below(10));
            const auto state = 1 + static_cast<std::uint32_t>(random.below(400));
            sequences.push_back({rows, count, state + folded, state,
                                 static_cast<std::uint32_t>(random.below(count + 1)), slot, 0});
            rows += count;
        }
        if (sequences.empty()) continue;
        const SlotMemory memory(random);
        const Inputs inputs(random, rows, matrices);
        const DeviceSlots plain(memory), in_place(memory);
        const auto expected = run_on_device(weights, plain, inputs, sequences, rows);
        const auto got = run_on_device(weights, in_place, inputs, sequences, rows, &matrices);
        CHECK_THAT(std::memcmp(got.data(), expected.data(), got.size() * 2) == 0,
                   "round %d: outputs differ", round);
        CHECK_THAT(in_place.state() == plain.state(), "round %d: states differ", round);
        CHECK_THAT(in_place.kept() == plain.kept(), "round %d: kept rows differ", round);
        CHECK_THAT(in_place.conv() == plain.conv(), "round %d: history differs", round);
    }
}
