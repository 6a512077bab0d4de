// The table of kernels that one SIMD level provides.  A kernel works on plain pointers, on one
// thread, on the outputs it is told; splitting work over threads is the caller's (cpu_primitives).
//
// One source (the *_kernels.h files) is compiled once a level, over that level's vector
// (vector_*.h), with that level's compiler flags.  Everything in those files lives in an unnamed
// namespace, so that no function compiled for a newer processor can be linked into the rest.
//
// Bits: what a kernel writes for a row or an output depends on the level, on that row and on the
// shapes alone: never on how many rows are passed, where they lie, or how outputs are split.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "core/dtype.h"
#include "ops/weight_matrix.h"

namespace percheron::ops::cpu {

// How the inputs of a product lie in memory: `natural` in order of k; `nibbles` permuted inside
// every group of 128 so that a vector of 32-bit words of eight weights meets the matching inputs.
// Both are padded with zeros to a multiple of 128 elements.
enum class PackedLayout : std::uint8_t { natural, nibbles };

constexpr std::size_t packed_width(std::size_t k) {
    return (k + 127) / 128 * 128;
}

inline PackedLayout layout_for(WeightFormat format) {
    return format == WeightFormat::w4a16 ? PackedLayout::nibbles : PackedLayout::natural;
}

// Rows of inputs, packed: `stride` floats from row to row.
struct PackedRows {
    const float* data = nullptr;
    std::size_t stride = 0;
    std::size_t rows = 0;
};

// Scratch that product() and product_transposed() need for inputs of width k: a panel of
// dequantised outputs, sized to stay in the second cache, and a few scaled inputs.
inline constexpr std::size_t most_rows_in_registers = 16;
constexpr std::size_t panel_rows(std::size_t k) {
    return k <= 4096 ? 48 : 24;
}
constexpr std::size_t panel_floats(std::size_t k) {
    return (panel_rows(k) + most_rows_in_registers + 1) * packed_width(k);
}
// Outputs of a panel of the prefill class; a dequantised row lies beside it.
constexpr std::size_t prefill_panel_outputs(std::size_t k) {
    return k <= 4096 ? 64 : 32;
}

// The same for any width up to k: wide inputs have fewer outputs in a panel.
constexpr std::size_t panel_room(std::size_t k) {
    const std::size_t narrow = panel_floats(k < 4096 ? k : 4096);
    return narrow > panel_floats(k) ? narrow : panel_floats(k);
}

// Memory that the work after a product will read, for the product to bring into the second cache on
// its way: about a line with every vector of weights.  A product computes while it waits for no
// memory; what follows it may do nothing but wait.
class alignas(128) FetchAhead {
  public:
    static constexpr std::size_t line = 64;
    using Range = std::span<const std::byte>;

    FetchAhead() = default;
    explicit FetchAhead(std::span<const Range> ranges) : rest_(ranges) { next(); }

    bool done() const { return left_ == 0; }
    const std::byte* at() const { return at_; }
    // `bytes` from at() have been fetched; at the end of everything at() stays in its last range.
    void advance(std::size_t bytes) {
        if (bytes < left_) {
            at_ += bytes;
            left_ -= bytes;
        } else {
            left_ = 0;
            next();
        }
    }

  private:
    void next() {
        while (left_ == 0 && !rest_.empty()) {
            at_ = rest_.front().data();
            left_ = rest_.front().size();
            rest_ = rest_.subspan(1);
        }
    }

    const std::byte* at_ = nullptr;
    std::size_t left_ = 0;
    std::span<const Range> rest_;
};

struct KdaStepHead;
struct AttendHeads;
struct MhcRow;

struct Kernels {
    std::string_view level;

    // out[0, packed_width(k)) = in[0, k) in `layout`, each element rounded to bf16 if `round`.
    void (*pack_row)(PackedLayout layout, bool round, const float* in, std::size_t k, float* out);

    // out[r * out_stride + (n - first)] = sum_k W[n][k] * x[r][k], n in [first, last).  Fetches
    // from `ahead` on the way unless it is null.
    void (*product)(const WeightMatrix& weight, std::size_t first, std::size_t last,
                    const PackedRows& x, float* out, std::size_t out_stride, float* panel,
                    FetchAhead* ahead);

    // out[r * out_stride + (c - first_column)] = sum_i W[first_row + i][c] * x[r][i], i < count,
    // c in [first_column, last_column): the product with the transposed block.  x is natural.
    void (*product_transposed)(const WeightMatrix& weight, std::size_t first_row, std::size_t count,
                               std::size_t first_column, std::size_t last_column,
                               const PackedRows& x, float* out, std::size_t out_stride,
                               float* panel);

    // The same two for rows of the prefill class, made for many rows: sums in order of k instead of
    // lane by lane.  x is natural in both.
    void (*product_prefill)(const WeightMatrix& weight, std::size_t first, std::size_t last,
                            const PackedRows& x, float* out, std::size_t out_stride, float* panel);
    void (*product_transposed_prefill)(const WeightMatrix& weight, std::size_t first_row,
                                       std::size_t count, std::size_t first_column,
                                       std::size_t last_column, const PackedRows& x, float* out,
                                       std::size_t out_stride, float* panel);

    // Rows, as in the headers of the primitives of the same name.
    void (*rms_norm)(const float* in, const float* weight, float eps, std::size_t n, float* out);
    void (*layer_norm)(const float* in, const float* weight, const float* bias, float eps,
                       std::size_t n, float* out);
    void (*swiglu)(const float* gate, const float* up, float limit, std::size_t n, float* out);
    // out = in / sqrt(sum in^2 + 1e-6) * scale
    void (*l2_norm)(const float* in, float scale, std::size_t n, float* out);
    // out = lower_bound * sigmoid(rate * (in + bias)); then out = sigmoid(in)
    void (*log_decay)(const float* in, const float* bias, float rate, float lower_bound,
                      std::size_t n, float* out);
    void (*sigmoid)(const float* in, std::size_t n, float* out);
    // out = in * rms * weight * sigmoid(gate)
    void (*gated_norm)(const float* in, const float* gate, const float* weight, float eps,
                       std::size_t n, float* out);
    // Channels [0, n): history[j] is the row met by tap j, the last one the current token's.
    void (*short_conv)(const float* const* history, const float* weight, std::size_t taps,
                       std::size_t n, float* out);
    // values = e^(value - largest); returns their sum.  n >= 1.
    float (*exponentials)(float* values, std::size_t n);
    // out = sum_j weights[j] * rows[j] + last
    void (*weighted_sum)(const float* const* rows, const float* weights, std::size_t count,
                         const float* last, std::size_t n, float* out);

    void (*kda_step)(const KdaStepHead& head);
    void (*attend)(const AttendHeads& heads);
    // Channels [first, first + count) of one pooled key (ops/index_pool.h) from `pool` keys and
    // gates.
    void (*pool_keys)(const float* const* keys, const float* const* gates, const float* ape,
                      std::size_t pool, std::size_t dim, std::size_t first, std::size_t count,
                      float* out);
    // scores[p] = sum_h weights[h] * max(0, query[h] . key(p) * scale); key_scales as token_scales
    // of AttendHeads.
    void (*index_scores)(const float* query, const float* weights, std::size_t heads,
                         std::size_t dim, float scale, const void* keys, const float* key_scales,
                         DType key_dtype, std::size_t count, float* scores);

    // X_j = post_j * y + sum_a comb[a][j] X_a, in place.
    void (*mhc_update)(const float* y, const float* post, const float* comb, std::size_t streams,
                       std::size_t n, float* state);
    // sum of squares of n floats.
    float (*sum_of_squares)(const float* in, std::size_t n);
    // The gates of rows (ops/mhc.h), alike but for their pointers and mean squares, from the
    // product fn f.
    void (*mhc_gates)(std::span<const MhcRow> rows);
    // out = sum_i pre_i X_i
    void (*mhc_mix)(const float* state, const float* pre, std::size_t streams, std::size_t n,
                    float* out);
};

// At most most_streams streams.
inline constexpr std::size_t most_streams = 8;
struct MhcRow {
    std::size_t streams = 4;
    std::size_t iterations = 20;
    float rms_eps = 1e-5f;
    float eps = 1e-6f;
    float mean_square = 0;         // of f
    const float* m = nullptr;      // fn f [(2 + S) * S]
    const float* base = nullptr;   // [(2 + S) * S]
    const float* scale = nullptr;  // [3]
    float* pre = nullptr;          // [S]
    float* post = nullptr;         // [S]
    float* comb = nullptr;         // [S * S]
};

// Value columns [0, columns) of one head's state over consecutive tokens of one sequence:
//   S <- diag(e^g) S;  delta = beta (v - S^T k);  S <- S + k delta^T;  o = S^T q
// Token t reads key + t * key_stride (dim values), query likewise (any dim values where no output
// is wanted), decay g likewise, value
// (columns values) and beta[t * beta_stride], and writes output + t * output_stride unless output
// is null (a fold of kept rows).
struct KdaStepHead {
    std::size_t dim = 0;
    std::size_t columns = 0;  // of this slab
    float* state = nullptr;   // [dim] rows of state_stride floats, the slab's first column
    std::size_t state_stride = 0;
    std::size_t tokens = 0;
    const float* query = nullptr;
    const float* key = nullptr;
    const float* decay = nullptr;
    const float* value = nullptr;
    const float* beta = nullptr;
    float* output = nullptr;
    std::size_t query_stride = 0, key_stride = 0, decay_stride = 0, value_stride = 0;
    std::size_t beta_stride = 0, output_stride = 0;
    float* scratch = nullptr;  // kda_scratch_floats(dim) floats
};
constexpr std::size_t kda_scratch_floats(std::size_t dim) {
    return 4 * dim;
}

// Attention of `heads` heads of one query row over `count` selected latents, in splits of
// attention_split.  tokens[i] points at the i-th selected latent, stored as latent_dtype, and
// token_scales[i] is its row's scale (stored_rows.h) where that type has one.
struct AttendHeads {
    std::size_t heads = 0;
    std::size_t latent = 0;
    const float* absorbed = nullptr;  // [heads][packed_width(latent)], rounded if standard
    std::size_t absorbed_stride = 0;
    const void* const* tokens = nullptr;
    const float* token_scales = nullptr;
    DType latent_dtype = DType::bf16;
    std::size_t count = 0;
    float scale = 1.0f;
    float* read = nullptr;  // [heads][latent]
    std::size_t read_stride = 0;
    float* scratch = nullptr;  // attend_scratch_floats() floats
};
inline constexpr std::size_t attend_heads_at_once = 4;
constexpr std::size_t attend_scratch_floats(std::size_t latent) {
    return attend_heads_at_once * (256 + packed_width(latent));
}

// What a thread needs beside panels: kda_step's scratch and a copy of a slab of 64 columns; the
// attention's scratch, a pointer to every selected latent and its scale.
inline constexpr std::size_t kda_slab = 64;
constexpr std::size_t kda_thread_floats(std::size_t dim) {
    return kda_scratch_floats(dim) + dim * kda_slab;
}
constexpr std::size_t attention_thread_floats(std::size_t latent, std::size_t most_selected) {
    return attend_scratch_floats(latent) + most_selected * (sizeof(void*) / sizeof(float) + 1);
}

}  // namespace percheron::ops::cpu
