// The units of the experts' products: which expert's tiles a block computes next.
#pragma once

#include "ops/cuda/few_row_launch.h"

namespace percheron::ops::cuda {

// Of a unit among those of all groups: its group, and its number there.  Exact for fewer units in
// all than 2^32 / units of a group.
struct GroupUnit {
    int group, unit;
};
__device__ inline GroupUnit group_unit(const FewRowLaunch& launch, int unit) {
    const int group =
        launch.units == 1
            ? unit
            : static_cast<int>(__umulhi(static_cast<std::uint32_t>(unit), launch.units_reciprocal));
    return {group, unit - group * launch.units};
}

// What a block knows of a unit of the experts' products, so that between two units no read of
// global memory is waited for.  A ring: entries behind the first ones come in while units are
// computed.
constexpr int listed_units = 64, listed_ahead = listed_units / 2;
struct ListedUnit {
    const std::uint8_t* weight[2];
    float scale[2];
    int count;  // of the group's pairs
    std::uint16_t pair[expert_group_rows];
    std::uint16_t x_row[expert_group_rows];  // places past the count repeat the last one
};
constexpr int listing_threads = 4;  // of an entry

template <bool swiglu>
__device__ inline void list_unit(const FewRowLaunch& launch, int unit, int part,
                                 ListedUnit& entry) {
    const ExpertGroup pairs = launch.groups[group_unit(launch, unit).group];
    if (part < 2) {
        entry.weight[part] = launch.expert_weights[swiglu ? part : 0][pairs.expert];
        entry.scale[part] = launch.expert_scales[part][pairs.expert];
    }
    if (part == 2) entry.count = pairs.count;
#pragma unroll
    for (int i = part; i < expert_group_rows; i += listing_threads) {
        const auto pair =
            static_cast<int>(launch.pair_order[pairs.first + min(i, pairs.count - 1)]);
        entry.pair[i] = static_cast<std::uint16_t>(pair);
        entry.x_row[i] = static_cast<std::uint16_t>(pair / launch.pairs_per_row);
    }
}

}  // namespace percheron::ops::cuda
