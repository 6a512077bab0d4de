// A backend computes the network's stages.  src/model calls stages only; a backend implements a
// stage in one kernel, in several, or by the default composition of primitives (src/ops/reference).
//
// Activations between stages are opaque to the model: row-major matrices in the backend's own
// memory and in its activation dtype.  Shapes below use R rows, D hidden, S streams.
#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "percheron/types.h"

#include "core/dtype.h"
#include "core/machine_memory.h"
#include "core/status.h"
#include "ops/batch.h"
#include "ops/cache_views.h"
#include "ops/expert_store.h"
#include "ops/weight_files.h"
#include "ops/weight_matrix.h"

namespace percheron::ops {

// A matrix in backend memory.
struct Activations {
    void* data = nullptr;
    DType dtype = DType::f32;
    std::size_t rows = 0;
    std::size_t columns = 0;  // rows are contiguous

    template <class T>
    T* row(std::size_t index) const {
        return static_cast<T*>(data) + index * columns;
    }
};

// Parameters of one hyper-connection and the norm of the sublayer behind it.
struct MhcWeights {
    WeightMatrix fn;               // [(2 + S) * S, S * D]
    const float* base = nullptr;   // [(2 + S) * S]
    const float* scale = nullptr;  // [3]
    const float* norm = nullptr;   // [D], the sublayer's RMSNorm
};

// The gates a sublayer's output is written back with: post [R, S], comb [R, S * S] (source-major).
struct MhcGates {
    Activations post;  // f32
    Activations comb;  // f32
};

// From one sublayer's output to the next one's input, in one pass over the streams X [R, S * D]:
//   update (when `output` is given):  X'_j = post_j * y + sum_a comb[a, j] * X_a
//   next   (when `next` is given):    gates of `next` from X', u = sum_i pre_i * X'_i,
//                                     normed = RMS(u; next->norm, eps)
//   final  (when `final_norm` given): normed = RMS(mean_j X'_j; final_norm, eps)
//   tap    (when `tap` is given):     tap = mean_j X'_j
// Gate formula, all fp32, f = vec(X'), r = (mean(f^2) + rms_eps)^-1/2, m = r * (fn f):
//   pre_i = sigmoid(scale0 * m_i + base_i) + eps, post_j = 2 sigmoid(scale1 * m_{S+j} +
//   base_{S+j}), C = softmax over b of (scale2 * m_{2S+Sa+b} + base_{2S+Sa+b}) + eps, C /= column
//   sums + eps, then iterations - 1 times { C /= row sums + eps; C /= column sums + eps }.
// The product fn f is never rounded to bf16, in either arithmetic.
struct MhcTurn {
    Activations streams;                  // in, out
    const Activations* output = nullptr;  // [R, D], read with the gates below before they change
    MhcGates gates;                       // in for the update, out for the next
    const MhcWeights* next = nullptr;
    const float* final_norm = nullptr;
    Activations normed;                // [R, D], out
    const Activations* tap = nullptr;  // [R, D], out
};

struct KdaWeights {
    WeightMatrix q, k, v;             // [H * d, D]
    WeightMatrix f_a, g_a;            // [d, D]
    WeightMatrix f_b, g_b;            // [H * d, d]
    WeightMatrix beta;                // [H, D]
    const float* conv = nullptr;      // [q | k | v channels][taps], last tap = current token
    const float* a_log = nullptr;     // [H]
    const float* dt_bias = nullptr;   // [H * d]
    const float* out_norm = nullptr;  // [d]
    WeightMatrix out;                 // [D, H * d]
};

struct SparseAttentionWeights {
    WeightMatrix q_a;  // [query rank, D]
    const float* q_a_norm = nullptr;
    WeightMatrix q_b;   // [H * query_key_dim, query rank]
    WeightMatrix kv_a;  // [latent, D]
    const float* kv_a_norm = nullptr;
    WeightMatrix kv_b;     // [H * (query_key_dim + value_dim), latent], per head keys first
    WeightMatrix out;      // [D, H * value_dim]
    WeightMatrix index_q;  // [index heads * index dim, query rank]
    WeightMatrix index_k;  // [index dim, D]
    const float* index_k_norm = nullptr;  // LayerNorm weight, eps 1e-6
    const float* index_k_bias = nullptr;
    WeightMatrix index_gate;           // [index dim, D]
    WeightMatrix index_head_weights;   // [index heads, D]
    const float* index_ape = nullptr;  // [pool][index dim]
};

struct FeedForwardWeights {
    WeightMatrix gate, up;  // [I, D]
    WeightMatrix down;      // [D, I]
};

struct ExpertsWeights {
    WeightMatrix router;                 // [E, D]; the product is fp32 in both arithmetics
    const float* router_bias = nullptr;  // [E], for the choice only
    std::span<const FeedForwardWeights> experts;
    FeedForwardWeights shared;
    const void* table = nullptr;    // what place_experts() made of them
    StreamedExperts streamed = {};  // where they come from, if not all lie in memory
};

// Numbers every stage of one network shares.
struct NetworkShape {
    std::size_t vocabulary = 0, hidden = 0, streams = 4;
    std::size_t sinkhorn_iterations = 20;
    float rms_eps = 1e-5f, mhc_eps = 1e-6f;
    std::size_t kda_heads = 0, kda_dim = 0, kda_conv = 4;
    float kda_gate_lower_bound = -5.0f;
    std::size_t attention_heads = 0, query_rank = 0, latent = 0, query_key_dim = 0, value_dim = 0;
    std::size_t index_heads = 0, index_dim = 0, index_pool = 4, index_topk = 0;
    std::size_t experts = 0, experts_per_token = 0;
    bool normalise_router_weights = true;
    float router_scale = 1.0f;
    float swiglu_limit = 10.0f;
    std::size_t dense_intermediate = 0, expert_intermediate = 0, shared_intermediate = 0;
    std::size_t context_limit = 0;  // positions of the longest sequence
};

// What a placed matrix is read by: products only, or row by row (an embedding's rows, the gates of
// the hyper-connections), which a backend keeps as stored.
enum class WeightUse : std::uint8_t { product, rows };

class VisionStages;
class MtpStages;
class DrafterStages;
class LogitDigests;

// Memory of a backend, freed with the object.
class BackendBuffer {
  public:
    virtual ~BackendBuffer() = default;
    virtual void* data() const = 0;
    virtual Bytes size() const = 0;
};

class Backend {
  public:
    virtual ~Backend() = default;

    virtual std::string_view name() const = 0;  // "reference", "cpu", "cuda:0"
    virtual Arithmetic arithmetic() const = 0;
    virtual DType activation_dtype() const = 0;

    // ---- memory.  Everything is allocated before the first step and named, so that the plan's
    // table can be printed from what was really asked for.
    virtual Result<std::unique_ptr<BackendBuffer>> allocate(Bytes bytes,
                                                            std::string_view purpose) = 0;
    // The same in memory that the host reads as it is, for logits.
    virtual Result<std::unique_ptr<BackendBuffer>> allocate_host_readable(
        Bytes bytes, std::string_view purpose) = 0;
    // Sets bytes of this backend's memory to zero, in order with the steps.
    virtual void clear(void* data, Bytes bytes) { std::memset(data, 0, bytes); }
    // Copies bytes within this backend's memory, in order with the steps; no overlap.
    virtual void copy(void* to, const void* from, Bytes bytes) { std::memcpy(to, from, bytes); }
    // The same from this backend's memory into the host's, and back; done when the call returns.
    virtual void copy_to_host(void* host, const void* from, Bytes bytes) {
        std::memcpy(host, from, bytes);
    }
    virtual void copy_from_host(void* to, const void* host, Bytes bytes) {
        std::memcpy(to, host, bytes);
    }
    // The memory that allocate() and place() take from, now.
    virtual Result<MachineMemory> memory() const { return machine_memory(); }
    // Whether that is other memory than the host's.
    virtual bool has_own_memory() const { return false; }
    // Whether the stages can compute such a network, asked before anything is placed.  The error
    // says which number does not suit.
    virtual Status check_shape(const NetworkShape& /*shape*/, std::size_t /*rows*/) const {
        return {};
    }
    // Between these calls a backend with memory of its own reads what `files` holds from there,
    // while place() goes on to the next matrix; what place() returned is whole behind
    // finish_reading(), whose error is the first fault of reading.  Others compute from the mapped
    // files.
    virtual Status read_from(WeightFiles& /*files*/) { return {}; }
    virtual Status finish_reading() { return {}; }
    // Makes a stored matrix usable by the stages (upload, repack) or returns it as it is.  The
    // result lives as long as both the source and the backend.
    virtual Result<WeightMatrix> place(const WeightMatrix& stored, std::string_view name,
                                       WeightUse use) = 0;
    virtual Result<const float*> place(std::span<const float> vector, std::string_view name) = 0;
    // The same for kv_b, whose heads' keys are read transposed and whose values are not.
    virtual Result<WeightMatrix> place_latent_heads(const WeightMatrix& stored,
                                                    const NetworkShape& /*shape*/,
                                                    std::string_view name) {
        return place(stored, name, WeightUse::product);
    }
    // Called once with all placed experts of a layer; the result becomes ExpertsWeights::table.
    virtual Result<const void*> place_experts(std::span<const FeedForwardWeights> /*experts*/,
                                              std::string_view /*layer*/) {
        return static_cast<const void*>(nullptr);
    }
    // What prepare() will reserve for these sizes, known before anything is loaded.
    virtual Bytes working_bytes(const NetworkShape& shape, std::size_t rows,
                                std::size_t logit_rows) const = 0;
    // Reserves the stages' scratch for at most `rows` rows a step.  Called once, after the weights.
    virtual Status prepare(const NetworkShape& shape, std::size_t rows, std::size_t logit_rows) = 0;

    // ---- a step.  Runs `stages` (a fixed sequence of the calls below for this batch); a backend
    // may record them once per bucket of row counts and replay.  Blocks until logits can be read.
    virtual Status run(const RowBatch& batch, const std::function<void()>& stages) = 0;

    // streams[r] = the token's embedding (or its override) copied to every stream.
    virtual void embed(const WeightMatrix& table, const RowBatch& batch, Activations streams) = 0;
    virtual void mhc_turn(const MhcTurn& turn, const RowBatch& batch) = 0;
    // y = KDA(x); x is the normed sublayer input [R, D].  Updates the slots as SequenceRows says.
    virtual void kda_mixer(const KdaWeights& weights, const KdaSlots& slots, const RowBatch& batch,
                           Activations x, Activations y) = 0;
    // y = sparse attention(x).  Writes latents, tails and completed pools of the batch's rows, then
    // attends: a query at position t sees the index_topk / pool best complete pools (last token <=
    // t, ties to the lower index) and the incomplete tail, in position order.
    virtual void sparse_mixer(const SparseAttentionWeights& weights, const LatentPages& pages,
                              const RowBatch& batch, Activations x, Activations y) = 0;
    // y = down(silu(min(gate x, limit)) * clamp(up x, -limit, limit))
    virtual void dense_ffn(const FeedForwardWeights& weights, const RowBatch& batch, Activations x,
                           Activations y) = 0;
    // y = sum over the chosen experts of weight_e * expert_e(x) + shared(x); choice = the largest
    // sigmoid(router x) + bias, ties to the lower index; weights = scale * s_e / (sum s + 1e-20).
    virtual void moe_ffn(const ExpertsWeights& weights, const RowBatch& batch, Activations x,
                         Activations y) = 0;
    // logits[i] = head * hidden[batch.logit_rows[i]], fp32 [logit rows, vocabulary] in
    // host-readable memory after run() returns.
    virtual void head(const WeightMatrix& head, const RowBatch& batch, Activations hidden,
                      Activations logits) = 0;

    // The stages of the vision tower (vision_stages.h); null: this backend has none.
    virtual VisionStages* vision() { return nullptr; }
    const VisionStages* vision() const { return const_cast<Backend*>(this)->vision(); }
    // Those that only the MTP layer has (mtp_stages.h); null: this backend has none.
    virtual MtpStages* mtp() { return nullptr; }
    // Those of a block drafter (drafter_stages.h); null: this backend has none.
    virtual DrafterStages* drafter() { return nullptr; }
    const DrafterStages* drafter() const { return const_cast<Backend*>(this)->drafter(); }

    // Digests of logits (logit_digest.h); null: this backend's logits lie on the host anyway.
    virtual LogitDigests* digests() { return nullptr; }

    // Copies rows to host memory, widened to float, out[rows][columns]; after run() has returned.
    virtual void read(const Activations& rows, float* out) = 0;
};

}  // namespace percheron::ops
