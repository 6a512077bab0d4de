// One line a request that reached the engine.
#pragma once

#include <string_view>

#include "server/reply.h"
#include "server/routes.h"

namespace percheron::server {

// id, route, prompt, cached, thinking, tokens, sha (of the generated ids), finish, stop_reason,
// seed, tok_s, ttft_ms, prefill_ms, rounds, drafted, accepted; `choice` and `key` when there are.
void log_reply(ServerState& state, std::string_view id, std::string_view route,
               std::string_view key_label, const Reply& reply);

// The first 16 hex digits of the SHA-256 of the ids, each as four bytes, lowest first.
std::string digest_of(const std::vector<TokenId>& ids);

}  // namespace percheron::server
