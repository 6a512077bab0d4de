// Every tensor a network of a given shape consists of: what a checkpoint must hold, and what a
// writer of random checkpoints must make.  Matrices are [out, in].
//
// With D hidden, H·c the KDA width, and L = "model.language_model.layers.{i}.":
//   model.language_model.embed_tokens, lm_head [vocabulary, D]; model.language_model.norm [D]
//   every trunk layer   L hc_{attn,ffn}_fn [(2+s)·s, s·D] for s streams, _base [(2+s)·s], _scale
//   [3];
//                       L input_layernorm, post_attention_layernorm [D]
//   KDA layer           L self_attn. q,k,v_proj [H·c, D]; q,k,v_conv1d [H·c, 1, conv];
//                       f_a,g_a_proj [c, D]; f_b,g_b_proj [H·c, c]; b_proj [H, D]; A_log [H];
//                       dt_bias [H·c]; o_norm [c]; o_proj [D, H·c]
//   sparse layer        L self_attn. q_a_proj [rq, D]; q_a_layernorm [rq]; q_b_proj [heads·dq, rq];
//                       kv_a_proj_with_mqa [r, D]; kv_a_layernorm [r]; kv_b_proj [heads·(dq+dv),
//                       r]; o_proj [D, heads·dv]; indexer.wq_b [hi·di, rq]; indexer.wk [di, D];
//                       indexer.k_norm weight and bias [di]; indexer.weights_proj [hi, D];
//                       indexer.index_kpool_compress_gate [di, D], _ape [pool, di] (no ".weight")
//   FFN                 L mlp. {gate,up}_proj [I, D], down_proj [D, I]; with experts: gate [E, D],
//                       gate.e_score_correction_bias [E], experts.{e}. and shared_experts. triples
//   MTP layer           index = layers(): sparse layer with experts and no hc_*, eh_proj [D, 2D],
//                       enorm, hnorm, shared_head.norm [D]
//   vision              model.visual.*, with biases
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "model/config.h"

namespace percheron::checkpoint {

enum class TensorRole : std::uint8_t {
    routed_expert,  // a matrix of one of the routed experts
    matrix,         // any other matrix that may be stored in any weight format
    plain,          // norms, biases, convolutions: BF16 or F32 only
};

// Which part of the network a tensor belongs to, for accounts of a checkpoint.
enum class NetworkPart : std::uint8_t {
    embedding,
    head,
    hyper_connections,
    kda,
    sparse_attention,
    dense_ffn,
    router,
    routed_experts,
    shared_experts,
    norms,
    mtp,  // the whole layer
    vision,
};

std::string_view name_of(NetworkPart part);

struct ExpectedTensor {
    // Full canonical name as an unquantised file spells it: "….q_proj.weight".
    std::string name;
    Shape shape;
    TensorRole role = TensorRole::plain;
    NetworkPart part = NetworkPart::norms;
};

// Whether it is the weight of a module of class Linear, which is what "every linear layer" of a
// config means.  Embedding, router, hyper-connections and the pooling gate are parameters of other
// modules.
bool is_linear(const ExpectedTensor& tensor);

// Embedding, last norm and head.
std::vector<ExpectedTensor> outer_tensors(const model::ModelConfig& config);
// Layer `index` of the trunk; from config.layers() on, of the MTP layers.
std::vector<ExpectedTensor> layer_tensors(const model::ModelConfig& config, std::size_t index);
std::vector<ExpectedTensor> vision_tensors(const model::VisionConfig& vision);

// "….q_proj" of "….q_proj.weight"; a name without ".weight" is its own stem.
std::string stem_of(const std::string& name);

}  // namespace percheron::checkpoint
