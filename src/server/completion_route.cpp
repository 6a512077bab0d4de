// POST /v1/completions.
#include "server/completion_request.h"
#include "server/generation.h"
#include "server/routes.h"

namespace percheron::server {

asio::awaitable<void> serve_completion(RouteCall& call) {
    return serve_generation(call, prepare_completion);
}

}  // namespace percheron::server
