#include "checkpoint/fused_names.h"

#include <array>

#include "checkpoint/names.h"

namespace percheron::checkpoint {
namespace {

struct Stack {
    std::string_view whole;
    std::array<std::string_view, 3> shares;
};

constexpr Stack kda_stacks[] = {
    {".self_attn.qkv_proj", {".self_attn.q_proj", ".self_attn.k_proj", ".self_attn.v_proj"}},
    {".self_attn.conv1d", {".self_attn.q_conv1d", ".self_attn.k_conv1d", ".self_attn.v_conv1d"}},
};
constexpr Stack vision_stack = {".attn.qkv", {".attn.q_proj", ".attn.k_proj", ".attn.v_proj"}};

// Where `part` ends a module's name in `name`, else npos.
std::size_t find_module(std::string_view name, std::string_view part) {
    const std::size_t at = name.find(part);
    if (at == std::string_view::npos) return at;
    const std::size_t end = at + part.size();
    return end == name.size() || name[end] == '.' ? at : std::string_view::npos;
}

std::string replaced(std::string_view name, std::size_t at, std::size_t size, std::string_view by) {
    return std::string(name.substr(0, at)) + std::string(by) + std::string(name.substr(at + size));
}

}  // namespace

std::optional<FusedShare> share_of_stack(std::string_view name) {
    if (!name.starts_with(text_prefix)) return std::nullopt;
    for (const Stack& stack : kda_stacks) {
        for (std::size_t i = 0; i < stack.shares.size(); ++i) {
            const std::size_t at = find_module(name, stack.shares[i]);
            if (at == std::string_view::npos) continue;
            return FusedShare{replaced(name, at, stack.shares[i].size(), stack.whole), i,
                              stack.shares.size()};
        }
    }
    return std::nullopt;
}

std::vector<std::string> shares_of_stack(std::string_view name) {
    std::vector<std::string> names;
    if (!name.starts_with(text_prefix)) return names;
    for (const Stack& stack : kda_stacks) {
        const std::size_t at = find_module(name, stack.whole);
        if (at == std::string_view::npos) continue;
        for (const std::string_view share : stack.shares)
            names.push_back(replaced(name, at, stack.whole.size(), share));
    }
    return names;
}

std::vector<std::string> pieces_of(std::string_view name) {
    std::vector<std::string> pieces;
    if (!name.starts_with(vision_prefix)) return pieces;
    const std::size_t at = find_module(name, vision_stack.whole);
    if (at == std::string_view::npos) return pieces;
    for (const std::string_view share : vision_stack.shares)
        pieces.push_back(replaced(name, at, vision_stack.whole.size(), share));
    return pieces;
}

}  // namespace percheron::checkpoint
