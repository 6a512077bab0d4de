// What cmake/EmbedPage.cmake makes of this folder: every asset, in no particular order.
#pragma once

#include <span>

#include "server/page_assets.h"

namespace percheron::server {

std::span<const PageAsset> embedded_page_files();

}  // namespace percheron::server
