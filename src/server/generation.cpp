#include "server/generation.h"

#include <algorithm>
#include <ctime>

#include "server/reply.h"
#include "server/reply_group.h"
#include "server/request_log.h"

namespace percheron::server {
namespace {

// Wakes the route's coroutine when the reply has ended or its client has gone, whichever is first.
struct Wakeup {
    explicit Wakeup(const asio::any_io_executor& io) : timer(io, Clock::time_point::max()) {}
    void set() {
        is_set = true;
        timer.cancel();
    }
    asio::steady_timer timer;
    bool is_set = false;
};

std::optional<ApiError> queue_full(const ServerState& state, std::size_t replies) {
    const std::size_t room =
        std::size_t{state.engine->description().max_running} + state.options.max_queued;
    if (replies > room) {
        return invalid_value("n", "n is larger than the " + std::to_string(room) +
                                      " replies this server takes at once");
    }
    if (state.link.in_flight() + replies <= room) return std::nullopt;
    return ApiError{429, "queue_full",
                    std::to_string(state.link.in_flight()) +
                        " replies run or wait, and no more may wait; try again later",
                    ""};
}

void refuse(RouteCall& call, const ApiError& error) {
    call.state.log_line(LogLevel::info, "refused",
                        {{"id", call.request_id},
                         {"route", call.exchange.request().path},
                         {"status", static_cast<std::uint64_t>(error.status)},
                         {"code", error.code},
                         {"param", error.param}});
    call.exchange.respond(error_response(error, call.error_form));
}

ReplySetup reply_setup(const PreparedGeneration& prepared, const GenerationRequest& request,
                       ServerState& state, Clock::time_point received) {
    const GenerationFields& fields = prepared.fields;
    ReplySetup setup;
    setup.choices = request.choices;
    setup.prompt_tokens = static_cast<std::uint32_t>(request.prompt.size());
    for (const PromptImage& image : request.images)
        setup.image_tokens += image.count;
    setup.use_cache = request.use_cache;
    setup.token_details = fields.return_token_ids || request.sampling.top_logprobs >= 0;
    setup.one_tool_call = !prepared.parallel_tool_calls;
    setup.tools = prepared.tools;
    setup.received = received;
    setup.keep_alive = fields.stream ? state.options.keep_alive : std::chrono::seconds(0);
    ReplyOptions& options = setup.stream_options;
    options.starts_in_reasoning = prepared.starts_in_reasoning;
    options.parse_tool_calls = !prepared.tools->empty();
    options.verbatim = prepared.verbatim;
    // Where stop ids may come without ending the reply, only the engine knows which of them does.
    // Under a grammar every stop id does.
    if (request.grammar != nullptr || (!request.ignore_eos && request.min_tokens == 0)) {
        options.stop_tokens = state.engine->description().stop_tokens;
        options.stop_tokens.insert(options.stop_tokens.end(), request.extra_stop_tokens.begin(),
                                   request.extra_stop_tokens.end());
    }
    options.stop_strings = fields.stop_strings;
    options.call_id_prefix = "call_" + state.make_id() + "_";
    return setup;
}

// What requests take while their replies are under way.
std::size_t held_bytes(const std::vector<GenerationRequest>& requests) {
    std::size_t bytes = 0;
    for (const GenerationRequest& request : requests) {
        bytes += request.prompt.size() * sizeof(TokenId) * (1 + request.choices);
        for (const PromptImage& image : request.images)
            bytes += image.canvas->pixels.size();
    }
    return bytes;
}

// On the grammar thread.
std::optional<ApiError> compile_grammar(ServerState& state, PreparedGeneration& prepared) {
    if (state.grammars == nullptr) {
        grammar::GrammarCompilerOptions options;
        options.vocabulary = state.model->vocabulary;
        options.stop_tokens = state.engine->description().stop_tokens;
        state.grammars = std::make_unique<grammar::GrammarCompiler>(state.model->format.tokenizer(),
                                                                    std::move(options));
    }
    auto compiled = state.grammars->compile(prepared.rules);
    if (!compiled.ok()) {
        return invalid_value(prepared.rules_param,
                             prepared.rules_param + ": " + compiled.error().message());
    }
    for (GenerationRequest& request : prepared.requests)
        request.grammar = *compiled;
    return std::nullopt;
}

// `held` is let go when the engine has ended the replies.
asio::awaitable<void> run_replies(RouteCall& call, PreparedGeneration& prepared,
                                  std::shared_ptr<HeldBytes::Share> held,
                                  Clock::time_point received) {
    ServerState& state = call.state;
    HttpExchange& exchange = call.exchange;
    const Tokenizer& tokenizer = state.model->format.tokenizer();
    const ReplyIdentity identity{prepared.id_prefix + state.make_id(), state.model->name,
                                 static_cast<std::uint64_t>(std::time(nullptr)),
                                 prepared.reasoning_effort};
    const std::unique_ptr<ReplyWriter> writer =
        prepared.make_writer({exchange, identity, tokenizer});
    const auto wakeup = std::make_shared<Wakeup>(state.io.get_executor());
    ReplyGroup group(*writer, prepared.requests.size(), [wakeup] { wakeup->set(); });
    // The line is written when the engine has ended, which may be after the client has left.
    const auto ended =
        [&state, wakeup, held = std::move(held), id = identity.id, route = exchange.request().path,
         label = call.key.label,
         open = std::make_shared<std::size_t>(prepared.requests.size())](const Reply& reply) {
            log_reply(state, id, route, label, reply);
            if (--*open == 0) wakeup->set();
        };
    for (GenerationRequest& request : prepared.requests) {
        ReplySetup setup = reply_setup(prepared, request, state, received);
        setup.id = identity.id;
        setup.route = exchange.request().path;
        group.add(std::make_shared<Reply>(std::move(setup), tokenizer, state.link, state.metrics));
    }
    if (const Status started = group.start(std::move(prepared.requests), ended); !started.ok()) {
        refuse(call, error_of_engine(started.error()));
        co_return;
    }
    exchange.connection().on_peer_gone([wakeup] { wakeup->set(); });
    if (!exchange.connection().peer_present()) wakeup->set();
    if (!wakeup->is_set) {
        boost::system::error_code ignored;
        co_await wakeup->timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    if (group.done()) co_return;
    group.detach();
    exchange.respond(error_response(
        {400, "client_closed", "the connection was closed by its client before the reply", ""},
        call.error_form));
}

}  // namespace

GenerationSetting generation_setting(const RouteCall& call) {
    ServerState& state = call.state;
    return {*state.model,
            state.engine->description(),
            state.options.reasoning_effort,
            state.options.strict_model,
            call.key.owner,
            state.responses};
}

std::optional<ApiError> check_model(const GenerationSetting& setting, const std::string& name) {
    if (!setting.strict_model || name.empty() || name == setting.model.name) return std::nullopt;
    return ApiError{404, "model_not_found",
                    "this server serves " + setting.model.name + " and no other model", "model"};
}

std::optional<ApiError> set_prompt(GenerationRequest& request, std::vector<TokenId> prompt,
                                   const GenerationSetting& setting, const std::string& param) {
    const std::size_t context = setting.engine.context_tokens;
    if (prompt.size() + std::max<std::size_t>(request.min_tokens, 1) > context) {
        std::string message = "the prompt has " + std::to_string(prompt.size()) +
                              " tokens and the model's context is " + std::to_string(context) +
                              " tokens, which leaves no room for ";
        message += request.min_tokens > 1 ? "min_tokens " + std::to_string(request.min_tokens)
                                          : std::string("a reply");
        return ApiError{400, "context_length_exceeded", message + "; shorten the " + param, param};
    }
    if (request.max_tokens.value_or(0) > context - prompt.size()) request.max_tokens.reset();
    request.prompt = std::move(prompt);
    return std::nullopt;
}

void write_output_rules(const GenerationSetting& setting, PreparedGeneration& prepared) {
    const grammar::OutputRequest& output = prepared.fields.output;
    if (!output.asks_for_anything()) return;
    using Output = grammar::OutputRequest;
    if (!setting.engine.grammars) {
        // Strict tools whose calls nobody forces are taken as they are.
        const bool forced = output.calls == Output::Calls::required;
        if (output.format == Output::Format::text && !forced) return;
        const std::string param = forced ? "tool_choice" : output.param;
        prepared.error = unsupported_parameter(
            param, param + " is not supported here: a replay answers from its file as it stands");
        return;
    }
    grammar::OutputRules written = grammar::write_rules(output, setting.model.format.tokenizer());
    if (written.error) {
        const std::string message = written.param + ": " + written.error->message();
        prepared.error = written.error->code() == ErrorCode::unsupported
                             ? unsupported_parameter(written.param, message)
                             : invalid_value(written.param, message);
        return;
    }
    prepared.rules = std::move(written.text);
    prepared.rules_param = output.format == Output::Format::text ? "tools" : output.param;
}

asio::awaitable<void> serve_generation(RouteCall& call, Preparation prepare) {
    ServerState& state = call.state;
    const Clock::time_point received = Clock::now();
    if (const auto error = state.unavailable()) {
        refuse(call, *error);
        co_return;
    }
    auto prepared = std::make_unique<PreparedGeneration>();
    const GenerationSetting setting = generation_setting(call);
    const std::string& body = call.exchange.request().body;
    co_await on_text_thread(state, [&] { *prepared = prepare(setting, body); });
    call.exchange.release_body();
    state.note_unknown_fields(call.exchange.request().path, prepared->unknown_fields);
    std::optional<ApiError> error = prepared->error;
    if (!error && !prepared->rules.empty()) {
        co_await on_grammar_thread(state, [&] { error = compile_grammar(state, *prepared); });
    }
    if (!error) error = state.unavailable();
    if (!error) {
        error = queue_full(state, prepared->requests.size() * prepared->fields.request.choices);
    }
    const auto held = std::make_shared<HeldBytes::Share>(state.held);
    if (!error && !held->set(held_bytes(prepared->requests))) {
        error = ApiError{429, "queue_full",
                         "the replies under way hold as many prompts and images as the server may; "
                         "try again later",
                         ""};
    }
    if (error) {
        refuse(call, *error);
        co_return;
    }
    co_await run_replies(call, *prepared, held, received);
}

}  // namespace percheron::server
