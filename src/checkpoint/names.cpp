#include "checkpoint/names.h"

#include <charconv>
#include <system_error>

namespace percheron::checkpoint {
namespace {

// Removes `prefix` from the front of `text` if it is there.
bool strip(std::string_view& text, std::string_view prefix) {
    if (!text.starts_with(prefix)) return false;
    text.remove_prefix(prefix.size());
    return true;
}

bool names_module(std::string_view text, std::string_view module) {
    return text.starts_with(module) && (text.size() == module.size() || text[module.size()] == '.');
}

}  // namespace

std::string canonical_name(std::string_view stored) {
    std::string_view rest = stored;
    const bool wrapped = strip(rest, text_prefix) || strip(rest, "language_model.model.") ||
                         strip(rest, "language_model.") || strip(rest, "model.");
    if (names_module(rest, "layers") || names_module(rest, "embed_tokens") ||
        names_module(rest, "norm")) {
        return std::string(text_prefix) + std::string(rest);
    }
    if (names_module(rest, "lm_head")) return std::string(rest);
    if (names_module(rest, "visual")) return "model." + std::string(rest);
    return std::string(wrapped ? stored : rest);
}

std::string layer_prefix(std::size_t index) {
    return std::string(text_prefix) + "layers." + std::to_string(index) + ".";
}

std::optional<std::size_t> layer_of(std::string_view canonical) {
    if (!strip(canonical, text_prefix) || !strip(canonical, "layers.")) return std::nullopt;
    std::size_t layer = 0;
    const char* const end = canonical.data() + canonical.size();
    const auto [rest, error] = std::from_chars(canonical.data(), end, layer);
    if (error != std::errc() || rest == end || *rest != '.') return std::nullopt;
    return layer;
}

bool is_routed_expert(std::string_view canonical) {
    return layer_of(canonical) && canonical.find(".mlp.experts.") != canonical.npos;
}

}  // namespace percheron::checkpoint
