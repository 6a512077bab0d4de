// The router of a mixture of experts (ops/router.h), and the grouping of its choices for the
// experts' products.
//
// logits = W x with unrounded fp32 x, by the same product as every other matrix's, a part of x at a
// time; s = sigmoid(logits); the `chosen` experts of the largest s +
// bias are taken, ties to the lower index; weight = scale * s_e / (sum of the taken s + 1e-20), or
// scale * s_e without normalisation.
//
// A pair is a row's j-th choice, pair = row * chosen + j.  Groups list the pairs expert by expert
// in ascending order, at most expert_group_rows pairs of one expert a group.
#pragma once

#include <cstdint>

#include <cuda_bf16.h>

#include "core/status.h"
#include "ops/cuda/launch.h"
#include "ops/cuda/packed_matrix.h"
#include "ops/cuda/row_parts.h"

namespace percheron::ops::cuda {

inline constexpr int expert_group_rows = 8;

struct ExpertGroup {
    std::int32_t expert, first, count;  // pairs [first, first + count) of the order
};

struct ExpertChoice {
    std::uint32_t* experts = nullptr;     // [pairs]
    float* weights = nullptr;             // [pairs]
    std::uint32_t* pair_order = nullptr;  // [pairs]
    ExpertGroup* groups = nullptr;        // [pairs]
    std::int32_t* group_count = nullptr;
    std::int32_t* touched = nullptr;  // how many experts were chosen at all; or nullptr
    int pairs = 0;                    // how many there are room for
};

struct Routing {
    int rows = 0, hidden = 0, experts = 0, chosen = 0;
    const __nv_bfloat16* x = nullptr;  // [rows][row_parts][hidden]
    PackedMatrix weight;               // [experts, hidden]
    const float* bias = nullptr;       // [experts]
    float scale = 1.0f;
    bool normalise = true;
    float* logits = nullptr;  // [rows][row_parts][experts], scratch
    ExpertChoice choice;      // out
};

// The choices alone, from logits that are there already, of any number of rows: experts and
// weights.
Status choose_experts(const Routing& routing, const LaunchContext& context);

// At most 512 rows, 2 to 512 experts and 16 choices; hidden a multiple of 128.
Status route(const Routing& routing, const LaunchContext& context);

}  // namespace percheron::ops::cuda
