// Names of weights that converters stack into one, or take apart.
//
// EXL3 files hold q_proj, k_proj and v_proj of a KDA layer as one self_attn.qkv_proj and the three
// convolutions as self_attn.conv1d, in equal shares of rows in that order; and the vision tower's
// attn.qkv as attn.q_proj, attn.k_proj and attn.v_proj.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace percheron::checkpoint {

struct FusedShare {
    std::string name;       // of the stack
    std::size_t index = 0;  // which of its shares
    std::size_t shares = 1;
};

// The stack that `name` (a canonical stem, or a tensor's full name) may be a share of.
std::optional<FusedShare> share_of_stack(std::string_view name);

// The shares of a stack that has this name; empty if it is none.
std::vector<std::string> shares_of_stack(std::string_view name);

// The tensors that `name` may be stored as, in the order of their rows; empty if it is never taken
// apart.
std::vector<std::string> pieces_of(std::string_view name);

}  // namespace percheron::checkpoint
