// One name per tensor, whatever prefix a converter wrote.
//
// Canonical: text tensors start with "model.language_model.", the head is "lm_head.", vision
// tensors start with "model.visual.".  Also met on disk: "language_model.model." and
// "language_model." and plain "model." for text, "language_model.lm_head." and "model.lm_head.",
// and "visual.".
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace percheron::checkpoint {

inline constexpr std::string_view text_prefix = "model.language_model.";
inline constexpr std::string_view vision_prefix = "model.visual.";

// Works for tensors and for modules ("model.layers.3.self_attn").  Unknown names stay as they are.
std::string canonical_name(std::string_view stored);

// "model.language_model.layers.{index}."
std::string layer_prefix(std::size_t index);

// The layer of a canonical name below such a prefix.
std::optional<std::size_t> layer_of(std::string_view canonical);
// Whether it is a routed expert's: "....mlp.experts.3.up_proj".
bool is_routed_expert(std::string_view canonical);

}  // namespace percheron::checkpoint
