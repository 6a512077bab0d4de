// The web page and what it loads.
#include "server/page_assets.h"
#include "server/routes.h"

namespace percheron::server {
namespace {

// As routes are found: with or without a slash at the end.
std::optional<PageAsset> asset_of(std::string_view path) {
    if (path.size() > 1 && path.back() == '/') path.remove_suffix(1);
    return find_page_asset(path);
}

HttpResponse page_response(const PageAsset& asset) {
    HttpResponse response;
    response.content_type = asset.content_type;
    for (const PageHeader& field : page_headers) {
        response.headers.push_back({std::string(field.name), std::string(field.value)});
    }
    response.body = asset.body;
    return response;
}

}  // namespace

HttpResponse page_for_key(std::string_view path) {
    HttpResponse response = page_response(asset_of(path).value_or(find_page_asset("/").value()));
    response.status = 401;
    return response;
}

asio::awaitable<void> serve_page(RouteCall& call) {
    const HttpRequest& request = call.exchange.request();
    const auto asset = asset_of(request.path);
    if (!asset) {
        call.exchange.respond(
            error_response({404, "not_found", "the page has no file of this name", ""}));
        co_return;
    }
    HttpResponse response = page_response(*asset);
    response.headers.push_back({"ETag", std::string(asset->etag)});
    if (client_has(*asset, request.header("If-None-Match"))) response.status = 304;
    call.exchange.respond(std::move(response));
}

}  // namespace percheron::server
