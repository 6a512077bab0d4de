#include "server/page_assets.h"

#include <algorithm>

#include "server/page/files.h"

namespace percheron::server {

std::optional<PageAsset> find_page_asset(std::string_view path) {
    for (const PageAsset& asset : embedded_page_files()) {
        if (asset.path == path) return asset;
    }
    return std::nullopt;
}

bool client_has(const PageAsset& asset, std::string_view if_none_match) {
    constexpr std::string_view blank = " \t";
    while (!if_none_match.empty()) {
        const std::size_t comma = if_none_match.find(',');
        std::string_view tag = if_none_match.substr(0, comma);
        if_none_match.remove_prefix(comma == tag.npos ? if_none_match.size() : comma + 1);

        tag.remove_prefix(std::min(tag.find_first_not_of(blank), tag.size()));
        tag = tag.substr(0, tag.find_last_not_of(blank) + 1);
        // If-None-Match compares weakly: a proxy that compressed the body has marked the tag W/.
        if (tag.starts_with("W/")) tag.remove_prefix(2);
        if (tag == "*" || tag == asset.etag) return true;
    }
    return false;
}

}  // namespace percheron::server
