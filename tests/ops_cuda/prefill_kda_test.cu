// The KDA mixer of prompts: against the reference, and a row's bits in other chunks and company.
#include "ops/cuda/prefill_kda.h"
#include "ops/reference/reference_primitives.h"
#include "ops_cuda/check.h"
#include "ops_cuda/support.h"

using namespace percheron;
using namespace percheron::check;

namespace {

constexpr std::size_t heads = 3, dim = 128, channels = heads * dim;
constexpr std::uint32_t ring = 5;
constexpr std::size_t slots = 6, state_size = heads * dim * dim, history = ring * 3 * channels;

struct Weights {
    std::vector<float> conv, a_log, dt_bias, out_norm;
    explicit Weights(Random& random)
        : conv(normals(random, 3 * channels * 4, 0.5f)),
          a_log(normals(random, heads, 0.5f)),
          dt_bias(normals(random, channels)),
          out_norm(normals(random, dim)) {}
};

struct Slots {
    std::vector<float> state, conv;
    explicit Slots(Random& random)
        : state(normals(random, slots * state_size, 0.3f)),
          conv(normals(random, slots * history)) {}
};

// A step's inputs, row-major.  `shift`: of the decays' logits; far from zero gates are extreme.
struct Inputs {
    std::size_t rows;
    std::vector<float> projections, beta, decay, gate;
    Inputs(Random& random, std::size_t rows, float shift)
        : rows(rows),
          projections(normals(random, rows * 3 * channels)),
          beta(normals(random, rows * heads, 2.0f)),
          decay(normals(random, rows * channels, 2.0f)),
          gate(normals(random, rows * channels)) {
        for (float& value : decay)
            value += shift;
    }
    Inputs part(std::size_t from, std::size_t count) const {
        Inputs some = *this;
        some.rows = count;
        const auto cut = [&](std::vector<float>& values, std::size_t width) {
            values = std::vector<float>(values.begin() + from * width,
                                        values.begin() + (from + count) * width);
        };
        cut(some.projections, 3 * channels);
        cut(some.beta, heads);
        cut(some.decay, channels);
        cut(some.gate, channels);
        return some;
    }
};

std::size_t place_of(std::size_t column) {
    const std::size_t c = column % 32;
    return column - c + c / 4 % 2 * 16 + c / 2 % 2 * 8 + c / 8 * 2 + c % 2;
}

struct Output {
    std::vector<float> mixed, normed;  // natural order
};

Output run(const Weights& weights, Slots& memory, const Inputs& inputs,
           const std::vector<ops::cuda::DeviceSequence>& sequences, int prepared_chunks) {
    OnDevice<float> state(memory.state), history_memory(memory.conv);
    OnDevice<float> projections(inputs.projections), beta(inputs.beta), decay(inputs.decay),
        gate(inputs.gate), conv(weights.conv), a_log(weights.a_log), dt_bias(weights.dt_bias),
        out_norm(weights.out_norm);
    std::vector<std::uint32_t> row_counts;
    for (const auto& sequence : sequences)
        row_counts.push_back(sequence.row_count);
    const OnDevice<ops::cuda::DeviceSequence> on_device(sequences);
    OnDevice<std::byte> prepared(
        ops::cuda::kda_prompt_bytes(static_cast<int>(heads), prepared_chunks));
    OnDevice<__nv_bfloat16> output(inputs.rows * channels);
    OnDevice<float> mixed(inputs.rows * channels);
    mixed.poison();
    prepared.poison();
    output.poison();
    ops::cuda::KdaPrompt prompt;
    prompt.heads = heads;
    prompt.projections = projections.data();
    prompt.projection_stride = 3 * channels;
    prompt.beta = beta.data();
    prompt.beta_stride = heads;
    prompt.decay = decay.data();
    prompt.decay_stride = channels;
    prompt.gate = gate.data();
    prompt.gate_stride = channels;
    prompt.conv = conv.data();
    prompt.a_log = a_log.data();
    prompt.dt_bias = dt_bias.data();
    prompt.out_norm = out_norm.data();
    prompt.slots = {state.data(), state_size, history_memory.data(), history, nullptr, 0, ring};
    prompt.sequences = on_device.data();
    prompt.sequence_count = static_cast<int>(sequences.size());
    prompt.prepared = prepared.data();
    prompt.prepared_chunks = prepared_chunks;
    prompt.mixed = mixed.data();
    prompt.output = output.data();
    CHECK_OK(ops::cuda::kda_prompt(prompt, row_counts, {}));
    const auto ordered = output.download();
    Output result;
    result.mixed = mixed.download();
    result.normed.resize(ordered.size());
    for (std::size_t row = 0; row < inputs.rows; ++row) {
        for (std::size_t c = 0; c < channels; ++c)
            result.normed[row * channels + c] =
                __bfloat162float(ordered[row * channels + place_of(c)]);
    }
    memory.state = state.download();
    memory.conv = history_memory.download();
    return result;
}

Output run_reference(const Weights& weights, Slots& memory, const Inputs& inputs,
                     const std::vector<ops::cuda::DeviceSequence>& sequences) {
    const std::size_t rows = inputs.rows;
    const ops::KdaSlots view = {
        memory.state.data(), state_size, memory.conv.data(), history, nullptr, 0, ring};
    std::vector<ops::SequenceRows> rows_of(sequences.size());
    for (std::size_t i = 0; i < sequences.size(); ++i) {
        const auto& s = sequences[i];
        rows_of[i].first_row = s.first_row;
        rows_of[i].row_count = rows_of[i].commit_rows = s.row_count;
        rows_of[i].first_position = rows_of[i].state_position = s.first_position;
        rows_of[i].slot = static_cast<RequestSlot>(s.slot);
    }
    const std::vector<TokenId> tokens(rows);
    ops::RowBatch batch;
    batch.numeric_class = ops::NumericClass::prefill;
    batch.sequences = rows_of;
    batch.tokens = tokens;
    Inputs work = inputs;
    std::vector<float> convolved(rows * 3 * channels);
    Output result{std::vector<float>(rows * channels), std::vector<float>(rows * channels)};
    const Rows<float> all(convolved.data(), rows, 3 * channels);
    const auto query = all.column_slice(0, channels), key = all.column_slice(channels, channels),
               value = all.column_slice(2 * channels, channels);
    const Rows<float> decay(work.decay.data(), rows, channels);
    const Rows<float> beta(work.beta.data(), rows, heads);
    const Rows<float> mixed(result.mixed.data(), rows, channels),
        normed(result.normed.data(), rows, channels);
    ops::reference::ReferencePrimitives reference;
    reference.short_conv({Rows<const float>(inputs.projections.data(), rows, 3 * channels),
                          weights.conv.data(), 4, view, &batch, all});
    reference.kda_gates(
        {heads, dim, weights.a_log.data(), weights.dt_bias.data(), -5.0f, query, key, decay, beta});
    reference.kda_chunk({heads, dim, query, key, value, decay, beta, view, &batch, mixed});
    reference.gated_norm({dim, mixed, Rows<const float>(inputs.gate.data(), rows, channels),
                          weights.out_norm.data(), 1e-5f, normed});
    return result;
}

double distance(const std::vector<float>& a, const std::vector<float>& b) {
    double error = 0, norm = 0;
    for (std::size_t i = 0; i < a.size(); ++i) {
        error += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
        norm += static_cast<double>(b[i]) * b[i];
    }
    return std::sqrt(error / norm);
}

ops::cuda::DeviceSequence sequence(std::uint32_t first_row, std::uint32_t count,
                                   std::uint32_t position, std::uint32_t slot) {
    ops::cuda::DeviceSequence s;
    s.first_row = first_row;
    s.row_count = s.commit_rows = count;
    s.first_position = s.state_position = position;
    s.slot = slot;
    return s;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
    return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * 4) == 0;
}

}  // namespace

KERNEL_TEST(prefill_kda_against_the_reference) {
    Random random(61);
    const Weights weights(random);
    const std::uint32_t lengths[] = {1, 2, 63, 64, 65, 130, 200, 257};
    // Gates near -5 and near 0 at every step, and all between them.
    for (const float shift : {0.0f, -8.0f, 8.0f, 2.0f}) {
        for (int round = 0; round < 3; ++round) {
            std::vector<ops::cuda::DeviceSequence> sequences;
            std::uint32_t rows = 0;
            for (std::uint32_t slot = 0; slot < slots; ++slot) {
                if (random.below(3) == 0 && !(slot + 1 == slots && sequences.empty())) continue;
                const std::uint32_t position =
                    random.below(3) == 0 ? 0
                                         : 64 * (1 + static_cast<std::uint32_t>(random.below(9)));
                sequences.push_back(
                    sequence(rows, lengths[random.below(std::size(lengths))], position, slot));
                rows += sequences.back().row_count;
            }
            Slots memory(random), expected_memory = memory;
            const Inputs inputs(random, rows, shift);
            const Output got = run(weights, memory, inputs, sequences, 8);
            const Output expected = run_reference(weights, expected_memory, inputs, sequences);
            const double mixed = distance(got.mixed, expected.mixed);
            CHECK_THAT(mixed < 5e-5, "shift %.0f: outputs are %.3g away", shift, mixed);
            const double normed = distance(got.normed, expected.normed);
            CHECK_THAT(normed < 3e-3, "shift %.0f: normed outputs are %.3g away", shift, normed);
            const double state = distance(memory.state, expected_memory.state);
            CHECK_THAT(state < 5e-5, "shift %.0f: states are %.3g away", shift, state);
            CHECK_THAT(memory.conv == expected_memory.conv, "shift %.0f: history differs", shift);
        }
    }
}

KERNEL_TEST(prefill_kda_bits_do_not_depend_on_chunks_or_neighbours) {
    Random random(62);
    const Weights weights(random);
    for (const std::uint32_t length : {64u, 65u, 300u, 1000u}) {
        for (const std::uint32_t start : {0u, 192u}) {
            const Slots before(random);
            const Inputs inputs(random, length, 0.5f);
            Slots whole_memory = before;
            const Output whole =
                run(weights, whole_memory, inputs, {sequence(0, length, start, 2)}, 16);
            for (const std::uint32_t piece : {64u, 128u, 320u}) {
                Slots memory = before;
                std::vector<float> normed, mixed;
                for (std::uint32_t done = 0; done < length; done += piece) {
                    const std::uint32_t count = std::min(piece, length - done);
                    const Output part = run(weights, memory, inputs.part(done, count),
                                            {sequence(0, count, start + done, 2)}, 5);
                    normed.insert(normed.end(), part.normed.begin(), part.normed.end());
                    mixed.insert(mixed.end(), part.mixed.begin(), part.mixed.end());
                }
                CHECK_THAT(same_bits(mixed, whole.mixed) && same_bits(normed, whole.normed),
                           "%u rows in pieces of %u: outputs differ", length, piece);
                CHECK_THAT(same_bits(memory.state, whole_memory.state),
                           "%u rows in pieces of %u: states differ", length, piece);
                CHECK_THAT(memory.conv == whole_memory.conv,
                           "%u rows in pieces of %u: histories differ", length, piece);
            }
            // Beside others, in another place of the step, with room for few chunks at a time.
            const std::uint32_t others = 70;
            Inputs together(random, length + 2 * others, 0.5f);
            const auto insert = [&](std::vector<float>& into, const std::vector<float>& from,
                                    std::size_t width) {
                std::copy(from.begin(), from.end(), into.begin() + others * width);
            };
            insert(together.projections, inputs.projections, 3 * channels);
            insert(together.beta, inputs.beta, heads);
            insert(together.decay, inputs.decay, channels);
            insert(together.gate, inputs.gate, channels);
            Slots memory = before;
            const Output beside =
                run(weights, memory, together,
                    {sequence(0, others, 64, 0), sequence(others, length, start, 2),
                     sequence(others + length, others, 0, 5)},
                    16);
            const std::vector<float> own(beside.mixed.begin() + others * channels,
                                         beside.mixed.begin() + (others + length) * channels);
            CHECK_THAT(same_bits(own, whole.mixed), "%u rows beside others: outputs differ",
                       length);
            CHECK_THAT(std::memcmp(memory.state.data() + 2 * state_size,
                                   whole_memory.state.data() + 2 * state_size, state_size * 4) == 0,
                       "%u rows beside others: states differ", length);
        }
    }
}
