// The whole table for one vector type.  Included by one file a level.
#pragma once

#include "ops/cpu/prefill_kernels.h"
#include "ops/cpu/product_kernels.h"
#include "ops/cpu/row_kernels.h"
#include "ops/cpu/sequence_kernels.h"
#include "ops/cpu/transposed_kernels.h"

namespace percheron::ops::cpu {
namespace {

template <class V>
constexpr Kernels kernels_of(std::string_view level) {
    Kernels table{};
    table.level = level;
    table.pack_row = pack_row<V>;
    table.product = product<V>;
    table.product_transposed = product_transposed<V>;
    table.product_prefill = product_prefill<V>;
    table.product_transposed_prefill = product_transposed_prefill<V>;
    table.rms_norm = rms_norm<V>;
    table.layer_norm = layer_norm<V>;
    table.swiglu = swiglu<V>;
    table.l2_norm = l2_norm<V>;
    table.log_decay = log_decay<V>;
    table.sigmoid = sigmoid<V>;
    table.gated_norm = gated_norm<V>;
    table.short_conv = short_conv<V>;
    table.exponentials = exponentials<V>;
    table.weighted_sum = weighted_sum<V>;
    table.kda_step = kda_step<V>;
    table.attend = attend<V>;
    table.pool_keys = pool_keys<V>;
    table.index_scores = index_scores<V>;
    table.mhc_update = mhc_update<V>;
    table.sum_of_squares = sum_of_squares<V>;
    table.mhc_gates = mhc_gates<V>;
    table.mhc_mix = mhc_mix<V>;
    return table;
}

}  // namespace
}  // namespace percheron::ops::cpu
