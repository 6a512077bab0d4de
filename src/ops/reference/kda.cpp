#include <algorithm>
#include <cassert>
#include <cmath>
#include <vector>

#include "ops/reference/reference_primitives.h"
#include "ops/reference/scalar_functions.h"

namespace percheron::ops::reference {
namespace {

// One token of one head.
struct HeadToken {
    const float* key;
    const float* value;
    const float* decay;
    float beta;
};

// Where a token's parts lie in a row of the ring: keys, values, decays of all heads, then betas.
struct KeptRow {
    float* data;
    std::size_t heads, dim;

    float* key(std::size_t head) const { return data + head * dim; }
    float* value(std::size_t head) const { return data + (heads + head) * dim; }
    float* decay(std::size_t head) const { return data + (2 * heads + head) * dim; }
    float& beta(std::size_t head) const { return data[3 * heads * dim + head]; }
    HeadToken token(std::size_t head) const {
        return {key(head), value(head), decay(head), beta(head)};
    }
};

KeptRow kept_row(const KdaRecurrence& op, RequestSlot slot, Position p) {
    return {op.slots.kept + to_int(slot) * op.slots.kept_stride +
                (p % op.slots.ring) * kda_kept_row(op.heads, op.dim),
            op.heads, op.dim};
}

HeadToken step_token(const KdaRecurrence& op, std::size_t row, std::size_t head) {
    const std::size_t first = head * op.dim;
    return {op.key.row(row) + first, op.value.row(row) + first, op.decay.row(row) + first,
            op.beta.row(row)[head]};
}

// S <- diag(e^g) S;  delta = beta (v - S^T k);  S <- S + k delta^T
void advance(float* state, const HeadToken& token, std::size_t dim) {
    std::vector<double> decayed(dim * dim);
    std::vector<double> delta(dim, 0.0);
    for (std::size_t c = 0; c < dim; ++c) {
        const double keep = std::exp(static_cast<double>(token.decay[c]));
        for (std::size_t v = 0; v < dim; ++v) {
            decayed[c * dim + v] = keep * state[c * dim + v];
            delta[v] += decayed[c * dim + v] * token.key[c];
        }
    }
    for (std::size_t v = 0; v < dim; ++v) {
        delta[v] = token.beta * (token.value[v] - delta[v]);
    }
    for (std::size_t c = 0; c < dim; ++c) {
        for (std::size_t v = 0; v < dim; ++v) {
            state[c * dim + v] = static_cast<float>(decayed[c * dim + v] + token.key[c] * delta[v]);
        }
    }
}

// o = S^T q
void read_state(const float* state, const float* query, std::size_t dim, float* out) {
    std::vector<double> sums(dim, 0.0);
    for (std::size_t c = 0; c < dim; ++c) {
        for (std::size_t v = 0; v < dim; ++v) {
            sums[v] += static_cast<double>(query[c]) * state[c * dim + v];
        }
    }
    for (std::size_t v = 0; v < dim; ++v) {
        out[v] = static_cast<float>(sums[v]);
    }
}

float* state_of(const KdaRecurrence& op, const SequenceRows& sequence, std::size_t head) {
    return op.slots.state + to_int(sequence.slot) * op.slots.state_stride + head * op.dim * op.dim;
}

void step_head(const KdaRecurrence& op, const SequenceRows& sequence, std::size_t head) {
    const std::size_t dim = op.dim;
    float* state = state_of(op, sequence, head);
    if (sequence.state_position == 0) std::fill_n(state, dim * dim, 0.0f);
    for (Position p = sequence.state_position; p < sequence.first_position; ++p) {
        advance(state, kept_row(op, sequence.slot, p).token(head), dim);
    }
    std::vector<float> uncommitted;
    for (std::uint32_t i = 0; i < sequence.row_count; ++i) {
        if (i == sequence.commit_rows) {
            uncommitted.assign(state, state + dim * dim);
            state = uncommitted.data();
        }
        const std::size_t row = sequence.first_row + i;
        advance(state, step_token(op, row, head), dim);
        read_state(state, op.query.row(row) + head * dim, dim, op.output.row(row) + head * dim);
    }
}

void keep_rows(const KdaRecurrence& op, const SequenceRows& sequence) {
    for (std::uint32_t i = sequence.commit_rows; i < sequence.row_count; ++i) {
        const KeptRow kept = kept_row(op, sequence.slot, sequence.first_position + i);
        for (std::size_t head = 0; head < op.heads; ++head) {
            const HeadToken token = step_token(op, sequence.first_row + i, head);
            std::copy_n(token.key, op.dim, kept.key(head));
            std::copy_n(token.value, op.dim, kept.value(head));
            std::copy_n(token.decay, op.dim, kept.decay(head));
            kept.beta(head) = token.beta;
        }
    }
}

// One chunk of one head: rows [first_row, first_row + count), state in and out.
void chunk_head(const KdaRecurrence& op, std::size_t first_row, std::size_t count, std::size_t head,
                float* state) {
    const std::size_t dim = op.dim;
    const std::size_t offset = head * dim;
    const auto query = [&](std::size_t i) { return op.query.row(first_row + i) + offset; };
    const auto key = [&](std::size_t i) { return op.key.row(first_row + i) + offset; };
    const auto value = [&](std::size_t i) { return op.value.row(first_row + i) + offset; };
    const auto beta = [&](std::size_t i) -> double { return op.beta.row(first_row + i)[head]; };

    // G_i, the decay from the chunk's start through row i.
    std::vector<double> total(count * dim);
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t c = 0; c < dim; ++c) {
            total[i * dim + c] =
                (i > 0 ? total[(i - 1) * dim + c] : 0.0) + op.decay.row(first_row + i)[offset + c];
        }
    }

    // L, and the same products with the queries, A.
    std::vector<double> lower(count * count, 0.0);
    std::vector<double> attention(count * count, 0.0);
    for (std::size_t i = 0; i < count; ++i) {
        for (std::size_t j = 0; j <= i; ++j) {
            double of_keys = 0;
            double of_query = 0;
            for (std::size_t c = 0; c < dim; ++c) {
                const double decayed =
                    key(j)[c] * std::exp(total[i * dim + c] - total[j * dim + c]);
                of_keys += key(i)[c] * decayed;
                of_query += query(i)[c] * decayed;
            }
            if (j < i) lower[i * count + j] = beta(i) * of_keys;
            attention[i * count + j] = of_query;
        }
    }

    // V' = U - W S solves (I + L) V' = diag(beta) (V - (K * e^G) S).
    std::vector<double> corrected(count * dim);
    for (std::size_t i = 0; i < count; ++i) {
        double* const own = corrected.data() + i * dim;
        std::fill_n(own, dim, 0.0);
        for (std::size_t c = 0; c < dim; ++c) {
            const double decayed = key(i)[c] * std::exp(total[i * dim + c]);
            for (std::size_t v = 0; v < dim; ++v) {
                own[v] += decayed * state[c * dim + v];
            }
        }
        for (std::size_t v = 0; v < dim; ++v) {
            own[v] = beta(i) * (value(i)[v] - own[v]);
        }
        for (std::size_t j = 0; j < i; ++j) {
            const double factor = lower[i * count + j];
            for (std::size_t v = 0; v < dim; ++v) {
                own[v] -= factor * corrected[j * dim + v];
            }
        }
    }

    std::vector<double> sums(dim);
    for (std::size_t i = 0; i < count; ++i) {
        std::fill(sums.begin(), sums.end(), 0.0);
        for (std::size_t c = 0; c < dim; ++c) {
            const double decayed = query(i)[c] * std::exp(total[i * dim + c]);
            for (std::size_t v = 0; v < dim; ++v) {
                sums[v] += decayed * state[c * dim + v];
            }
        }
        for (std::size_t j = 0; j <= i; ++j) {
            const double factor = attention[i * count + j];
            for (std::size_t v = 0; v < dim; ++v) {
                sums[v] += factor * corrected[j * dim + v];
            }
        }
        float* const out = op.output.row(first_row + i) + offset;
        for (std::size_t v = 0; v < dim; ++v) {
            out[v] = static_cast<float>(sums[v]);
        }
    }

    const double* const last = total.data() + (count - 1) * dim;
    for (std::size_t c = 0; c < dim; ++c) {
        const double keep = std::exp(last[c]);
        for (std::size_t v = 0; v < dim; ++v) {
            sums[v] = keep * state[c * dim + v];
        }
        for (std::size_t j = 0; j < count; ++j) {
            const double decayed = key(j)[c] * std::exp(last[c] - total[j * dim + c]);
            for (std::size_t v = 0; v < dim; ++v) {
                sums[v] += decayed * corrected[j * dim + v];
            }
        }
        for (std::size_t v = 0; v < dim; ++v) {
            state[c * dim + v] = static_cast<float>(sums[v]);
        }
    }
}

}  // namespace

void ReferencePrimitives::kda_gates(const KdaGates& op) {
    constexpr double norm_eps = 1e-6;
    const auto unit = [&](float* head, double scale) {
        double squares = 0;
        for (std::size_t c = 0; c < op.dim; ++c) {
            squares += static_cast<double>(head[c]) * head[c];
        }
        scale /= std::sqrt(squares + norm_eps);
        for (std::size_t c = 0; c < op.dim; ++c) {
            head[c] = static_cast<float>(head[c] * scale);
        }
    };
    for (std::size_t row = 0; row < op.query.rows; ++row) {
        for (std::size_t head = 0; head < op.heads; ++head) {
            const std::size_t first = head * op.dim;
            unit(op.query.row(row) + first, 1.0 / std::sqrt(static_cast<double>(op.dim)));
            unit(op.key.row(row) + first, 1.0);
            const double rate = std::exp(static_cast<double>(op.a_log[head]));
            float* const decay = op.decay.row(row) + first;
            for (std::size_t c = 0; c < op.dim; ++c) {
                const double shifted = static_cast<double>(decay[c]) + op.dt_bias[first + c];
                decay[c] = static_cast<float>(op.lower_bound * sigmoid(rate * shifted));
            }
            float& beta = op.beta.row(row)[head];
            beta = static_cast<float>(sigmoid(beta));
        }
    }
}

void ReferencePrimitives::kda_step(const KdaRecurrence& op) {
    for (const SequenceRows& sequence : op.batch->sequences) {
        for (std::size_t head = 0; head < op.heads; ++head) {
            step_head(op, sequence, head);
        }
        keep_rows(op, sequence);
    }
}

void ReferencePrimitives::kda_chunk(const KdaRecurrence& op) {
    for (const SequenceRows& sequence : op.batch->sequences) {
        assert(sequence.first_position % kda_chunk_tokens == 0);
        assert(sequence.state_position == sequence.first_position);
        assert(sequence.commit_rows == sequence.row_count);
        for (std::size_t head = 0; head < op.heads; ++head) {
            float* const state = state_of(op, sequence, head);
            if (sequence.state_position == 0) std::fill_n(state, op.dim * op.dim, 0.0f);
            for (std::size_t done = 0; done < sequence.row_count; done += kda_chunk_tokens) {
                const std::size_t count =
                    std::min<std::size_t>(kda_chunk_tokens, sequence.row_count - done);
                chunk_head(op, sequence.first_row + done, count, head, state);
            }
        }
    }
}

}  // namespace percheron::ops::reference
