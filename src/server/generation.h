// What the generating routes share.  A route says how a body becomes prompts and who writes the
// reply; the rest is one: queueing, submitting, waiting, letting go at once when the client goes.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "percheron/engine.h"

#include "server/api_error.h"
#include "server/generation_fields.h"
#include "server/reply_writer.h"
#include "server/routes.h"
#include "server/served_model.h"
#include "text/reply_stream.h"
#include "text/tool_schema.h"

namespace percheron::server {

class ResponseStore;

// What the requests of one server have in common.
struct GenerationSetting {
    const ServedModel& model;
    const EngineDescription& engine;
    std::string reasoning_effort;  // of requests that name none
    bool strict_model = false;
    std::string owner;  // of what is kept for this request's key alone
    ResponseStore& responses;
};

// Once the model is there.
GenerationSetting generation_setting(const RouteCall& call);

// What a writer is made of, beside what its route knows.
struct WriterSetting {
    HttpExchange& exchange;
    ReplyIdentity identity;
    const Tokenizer& tokenizer;
};

// What a text thread makes of a body.
struct PreparedGeneration {
    std::optional<ApiError> error;
    GenerationFields fields;
    std::vector<GenerationRequest> requests;  // one a prompt, each for fields.request.choices
    // What fields.output asks for, written on the text thread: for the requests' grammar.
    std::string rules;
    std::string rules_param;  // the field they come from
    bool starts_in_reasoning = true;
    bool verbatim = false;  // the reply has no structure
    bool parallel_tool_calls = true;
    std::shared_ptr<const ToolSchemas> tools = std::make_shared<const ToolSchemas>();
    std::string reasoning_effort;  // the effective level
    std::string id_prefix;         // "chatcmpl-"
    std::vector<std::string> unknown_fields;
    std::function<std::unique_ptr<ReplyWriter>(const WriterSetting&)> make_writer;
};

using Preparation =
    std::function<PreparedGeneration(const GenerationSetting& setting, std::string_view body)>;

// Answers `call`.  `prepare` runs on a text thread.
asio::awaitable<void> serve_generation(RouteCall& call, Preparation prepare);

// The error of a request for another model, where only one is accepted.
std::optional<ApiError> check_model(const GenerationSetting& setting, const std::string& name);

// Gives `request` its prompt and settles its limits against the context; `request` without its
// prompt is what the body said.  No room for a single token is an error that names `param`; a
// larger max_tokens than what is left is not: the reply then ends with the context and says so.
std::optional<ApiError> set_prompt(GenerationRequest& request, std::vector<TokenId> prompt,
                                   const GenerationSetting& setting, const std::string& param);

// Writes the rules of prepared.fields.output; what cannot be held is the error.
void write_output_rules(const GenerationSetting& setting, PreparedGeneration& prepared);

}  // namespace percheron::server
