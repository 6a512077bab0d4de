// The web page, embedded in the binary: what lies in src/server/page/ when the program is built.
//
// A route hands the request's path to find_page_asset() and sends what comes back with its
// headers; `/` is the chat, /dashboard the dashboard, all that they load lies under /assets/.
#pragma once

#include <array>
#include <optional>
#include <string_view>

namespace percheron::server {

struct PageAsset {
    std::string_view path;          // "/", "/dashboard" or "/assets/NAME"
    std::string_view content_type;  // with the charset
    std::string_view etag;          // strong and quoted, from the body's SHA-256
    std::string_view body;
};

struct PageHeader {
    std::string_view name;
    std::string_view value;
};

// Sent with every asset, with 304 as well.  The policy allows only what this server sends: no
// inline script or style, nothing remote, no frame around the page, and no string ever becomes
// markup.  `no-cache` makes a browser ask each time, which an ETag answers with 304: a new binary
// is never mixed with an old page.
inline constexpr std::array<PageHeader, 5> page_headers{{
    {"Content-Security-Policy",
     "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
     "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
     "require-trusted-types-for 'script'; trusted-types 'none'"},
    {"Cache-Control", "no-cache"},
    {"X-Content-Type-Options", "nosniff"},
    {"Referrer-Policy", "no-referrer"},
    {"Cross-Origin-Opener-Policy", "same-origin"},
}};

// The asset at a path without its query; nullopt when there is none (404).
std::optional<PageAsset> find_page_asset(std::string_view path);

// Whether an If-None-Match header names this asset's ETag or is `*`: answer 304 without a body.
bool client_has(const PageAsset& asset, std::string_view if_none_match);

}  // namespace percheron::server
