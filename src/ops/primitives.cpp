#include "ops/primitives.h"

namespace percheron::ops {

void Primitives::linear(std::span<const Linear> ops) {
    if (!Fp4Inputs::needed(ops)) return products(ops);
    plain_.clear();
    for (const Linear& op : ops) {
        if (op.weight.input_scale == 0) plain_.push_back(op);
    }
    products(plain_);
    for (const Linear& op : ops) {
        if (op.weight.input_scale == 0) continue;
        const Linear rounded = fp4_inputs_.rounded(op);
        products({&rounded, 1});
    }
}

}  // namespace percheron::ops
