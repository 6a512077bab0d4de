// POST /v1/chat/completions: parse and render on a text thread, hand to the engine, let the writer
// answer, and let go at once when the client goes.
#include <ctime>

#include "server/chat_request.h"
#include "server/chat_writer.h"
#include "server/reply.h"
#include "server/request_log.h"
#include "server/routes.h"
#include "text/prompt_images.h"

namespace percheron::server {
namespace {

// What a text thread makes of a body.
struct PreparedChat {
    std::optional<ApiError> error;
    ChatRequest chat;
    ChatPrompt prompt;
    std::shared_ptr<const ToolSchemas> tools;
};

// No room for a single token is an error; a larger max_tokens than what is left is not: the reply
// then ends with the context and says so (stop_reason "context").
std::optional<ApiError> check_context(const GenerationRequest& request, std::size_t prompt,
                                      std::uint32_t context) {
    const std::size_t least = prompt + std::max<std::size_t>(request.min_tokens, 1);
    if (least <= context) return std::nullopt;
    std::string message = "the prompt has " + std::to_string(prompt) +
                          " tokens and the model's context is " + std::to_string(context) +
                          " tokens";
    message += request.min_tokens > 1
                   ? ", which leaves no room for min_tokens " + std::to_string(request.min_tokens)
                   : ", which leaves no room for a reply";
    return ApiError{400, "context_length_exceeded", message + "; shorten the messages", "messages"};
}

// What the requests of one server have in common.
struct ChatSetting {
    const ServedModel& model;
    ChatDefaults defaults;
    const EngineDescription& engine;
    bool strict_model = false;
};

// The prompt of `chat` with its images, into `prepared`.
std::optional<ApiError> render(ChatRequest& chat, const ChatSetting& setting, ChatPrompt& prompt) {
    ChatImages images =
        read_chat_images(std::move(chat.images), setting.model.vision, setting.engine);
    if (images.error) return images.error;
    chat.prompt_options.most_tokens = setting.engine.context_tokens;
    auto rendered = setting.model.format.render(chat.messages, chat.tools, chat.prompt_options);
    if (!rendered.ok()) return error_of_rendering(rendered.error());
    prompt = std::move(*rendered);
    GenerationRequest& request = chat.generation.request;
    request.images = place_images(std::move(images.images), prompt);
    return check_context(request, prompt.ids.size(), setting.engine.context_tokens);
}

PreparedChat prepare(const ChatSetting& setting, std::string_view body) {
    PreparedChat prepared;
    const ServedModel& model = setting.model;
    ParsedChat parsed = parse_chat_request(body, setting.defaults, model.vocabulary);
    prepared.chat = std::move(parsed.request);
    prepared.error = std::move(parsed.error);
    if (prepared.error) return prepared;
    ChatRequest& chat = prepared.chat;
    const std::string& name = chat.generation.model;
    if (setting.strict_model && !name.empty() && name != model.name) {
        prepared.error =
            ApiError{404, "model_not_found",
                     "this server serves " + model.name + " and no other model", "model"};
        return prepared;
    }
    prepared.error = render(chat, setting, prepared.prompt);
    if (prepared.error) return prepared;
    prepared.tools = std::make_shared<const ToolSchemas>(chat.tools);
    GenerationRequest& request = chat.generation.request;
    const std::uint32_t context = setting.engine.context_tokens;
    const std::size_t room = context - std::min<std::size_t>(context, prepared.prompt.ids.size());
    if (request.max_tokens.value_or(0) > room) request.max_tokens.reset();
    request.prompt = std::move(prepared.prompt.ids);
    request.last_message = std::move(prepared.prompt.last_message);
    // Large requests are taken apart here and not on the I/O thread.
    prepared.prompt.text.clear();
    chat.messages = nullptr;
    return prepared;
}

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

std::optional<ApiError> queue_full(const ServerState& state, std::uint32_t choices) {
    const std::size_t room =
        std::size_t{state.engine->description().max_running} + state.options.max_queued;
    if (choices > room) {
        return invalid_value("n", "n is larger than the " + std::to_string(room) +
                                      " replies this server takes at once");
    }
    if (state.link.in_flight() + choices <= room) return std::nullopt;
    return ApiError{429, "queue_full",
                    std::to_string(state.link.in_flight()) +
                        " replies run or wait, and no more may wait; try again later",
                    ""};
}

void log_refusal(RouteCall& call, const ApiError& error) {
    call.state.log_line(LogLevel::info, "refused",
                        {{"id", call.request_id},
                         {"route", call.exchange.request().path},
                         {"status", static_cast<std::uint64_t>(error.status)},
                         {"code", error.code},
                         {"param", error.param}});
}

void refuse(RouteCall& call, const ApiError& error) {
    log_refusal(call, error);
    call.exchange.respond(error_response(error));
}

ReplySetup reply_setup(const PreparedChat& prepared, const ServerState& state,
                       Clock::time_point received) {
    const GenerationFields& fields = prepared.chat.generation;
    ReplySetup setup;
    setup.choices = fields.request.choices;
    setup.prompt_tokens = static_cast<std::uint32_t>(fields.request.prompt.size());
    for (const PromptImage& image : fields.request.images)
        setup.image_tokens += image.count;
    setup.use_cache = fields.request.use_cache;
    setup.token_details = fields.return_token_ids || fields.request.sampling.top_logprobs >= 0;
    setup.one_tool_call = !prepared.chat.parallel_tool_calls;
    setup.tools = prepared.tools;
    setup.received = received;
    setup.keep_alive = fields.stream ? state.options.keep_alive : std::chrono::seconds(0);
    ReplyOptions& options = setup.stream_options;
    options.starts_in_reasoning = prepared.prompt.starts_in_reasoning;
    options.parse_tool_calls = !prepared.tools->empty();
    // Where stop ids may come without ending the reply, only the engine knows which of them does.
    if (!fields.request.ignore_eos && fields.request.min_tokens == 0) {
        options.stop_tokens = state.engine->description().stop_tokens;
        options.stop_tokens.insert(options.stop_tokens.end(),
                                   fields.request.extra_stop_tokens.begin(),
                                   fields.request.extra_stop_tokens.end());
    }
    options.stop_strings = fields.stop_strings;
    return setup;
}

// What a request takes while its reply is under way.
std::size_t held_bytes(const GenerationRequest& request) {
    std::size_t bytes = request.prompt.size() * sizeof(TokenId) * (1 + request.choices);
    for (const PromptImage& image : request.images)
        bytes += image.canvas->pixels.size();
    return bytes;
}

// `held` is let go when the engine has ended the reply.
asio::awaitable<void> run_reply(RouteCall& call, PreparedChat& prepared,
                                std::shared_ptr<HeldBytes::Share> held,
                                Clock::time_point received) {
    ServerState& state = call.state;
    HttpExchange& exchange = call.exchange;
    const GenerationFields& fields = prepared.chat.generation;
    const Tokenizer& tokenizer = state.model->format.tokenizer();
    const ReplyIdentity identity{"chatcmpl-" + state.make_id(), state.model->name,
                                 static_cast<std::uint64_t>(std::time(nullptr)),
                                 prepared.chat.prompt_options.reasoning_effort};
    const ChatWriterOptions options{fields.request.choices, fields.include_usage,
                                    fields.continuous_usage, fields.return_token_ids,
                                    fields.request.sampling.top_logprobs >= 0};
    const std::unique_ptr<ReplyWriter> writer =
        fields.stream ? make_chat_stream_writer(exchange, identity, options, tokenizer)
                      : make_chat_writer(exchange, identity, options, tokenizer);

    ReplySetup setup = reply_setup(prepared, state, received);
    setup.id = identity.id;
    setup.route = exchange.request().path;
    setup.stream_options.call_id_prefix = "call_" + state.make_id() + "_";
    const auto reply =
        std::make_shared<Reply>(std::move(setup), tokenizer, state.link, state.metrics);
    const auto wakeup = std::make_shared<Wakeup>(state.io.get_executor());
    // The line is written when the engine has ended, which may be after the client has left.
    const auto ended = [&state, wakeup, held = std::move(held), id = identity.id,
                        route = exchange.request().path,
                        label = call.key_label](const Reply& reply) {
        log_reply(state, id, route, label, reply);
        wakeup->set();
    };
    const Status started =
        reply->start(std::move(prepared.chat.generation.request), *writer, ended);
    if (!started.ok()) {
        refuse(call, error_of_engine(started.error()));
        co_return;
    }
    exchange.connection().on_peer_gone([wakeup] { wakeup->set(); });
    if (!exchange.connection().peer_present()) wakeup->set();
    if (!wakeup->is_set) {
        boost::system::error_code ignored;
        co_await wakeup->timer.async_wait(asio::redirect_error(asio::use_awaitable, ignored));
    }
    if (reply->ended()) co_return;
    reply->detach();
    exchange.respond(error_response(
        {400, "client_closed", "the connection was closed by its client before the reply", ""}));
}

}  // namespace

asio::awaitable<void> serve_chat(RouteCall& call) {
    ServerState& state = call.state;
    const Clock::time_point received = Clock::now();
    if (const auto error = state.unavailable()) {
        refuse(call, *error);
        co_return;
    }
    auto prepared = std::make_unique<PreparedChat>();
    const ChatSetting setting{*state.model,
                              {state.model->defaults, state.options.reasoning_effort},
                              state.engine->description(),
                              state.options.strict_model};
    const std::string& body = call.exchange.request().body;
    co_await on_text_thread(state, [&] { *prepared = prepare(setting, body); });
    call.exchange.release_body();
    state.note_unknown_fields(call.exchange.request().path, prepared->chat.unknown_fields);
    std::optional<ApiError> error = prepared->error;
    if (!error) error = state.unavailable();
    if (!error) error = queue_full(state, prepared->chat.generation.request.choices);
    const auto held = std::make_shared<HeldBytes::Share>(state.held);
    if (!error && !held->set(held_bytes(prepared->chat.generation.request))) {
        error = ApiError{429, "queue_full",
                         "the replies under way hold as many prompts and images as the server may; "
                         "try again later",
                         ""};
    }
    if (error) {
        refuse(call, *error);
        co_return;
    }
    co_await run_reply(call, *prepared, held, received);
}

}  // namespace percheron::server
