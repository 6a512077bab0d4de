// Reads a line each: {"schema": ...} or {"tools": [...], "one": bool}; writes a line each:
// {"texts": [...], "open": n} with texts that the grammar allows, drawn at random (`open` more did
// not end), the calls of tools as {"name", "arguments"} as the reply's parser reads them; or
// {"error", "reason"}.  The client validates them by other means: sampled_schemas_test.py.
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "grammar/output_rules.h"
#include "grammar/random_text.h"
#include "text/reply_stream.h"

namespace {

using namespace percheron;
using namespace percheron::grammar;

// What a client would get: calls, or a fault.
Json calls_of(const Json& tools, const std::vector<TokenId>& ids) {
    const ToolSchemas schemas(tools);
    ReplyOptions options;
    options.starts_in_reasoning = false;
    options.stop_tokens = grammar::testing::nano_stops();
    ReplyStream stream(grammar::testing::nano_tokenizer(), schemas, options);
    std::vector<ReplyEvent> events;
    std::vector<TokenId> all = ids;
    all.push_back(options.stop_tokens.back());
    stream.push(all, events);
    stream.finish(ReplyStream::End::stopped, events);
    Json calls = Json::array();
    std::string other;
    for (const ReplyEvent& event : events) {
        if (event.kind == ReplyEvent::Kind::tool_begin) {
            calls.push_back({{"name", event.text}, {"arguments", ""}});
        } else if (event.kind == ReplyEvent::Kind::tool_arguments) {
            Json& arguments = calls.back()["arguments"];
            arguments = arguments.get<std::string>() + event.text;
        } else if (event.kind != ReplyEvent::Kind::tool_end) {
            other += event.text;
        }
    }
    if (!other.empty() || !stream.summary().only_complete_calls()) {
        return {{"fault", "not calls alone: " + other}};
    }
    return calls;
}

Json answer(GrammarCompiler& compiler, std::mt19937& random, const Json& line, int count) {
    OutputRequest request;
    if (line.contains("tools")) {
        request.calls = OutputRequest::Calls::required;
        request.tools = line["tools"];
        request.one_call = line.value("one", false);
    } else {
        request.format = OutputRequest::Format::json_schema;
        request.schema = line["schema"];
    }
    const OutputRules rules = write_rules(request, grammar::testing::nano_tokenizer());
    if (rules.error) {
        return {{"error", rules.error->message()}, {"reason", rules.error->reason()}};
    }
    const auto compiled = compiler.compile(rules.text);
    if (!compiled.ok()) return {{"error", compiled.error().message()}, {"reason", "compile"}};
    Json reply = {{"texts", Json::array()}, {"open", 0}};
    for (int i = 0; i < count; ++i) {
        const grammar::testing::RandomText text = grammar::testing::random_text(**compiled, random);
        if (!text.fault.empty()) {
            reply["fault"] = text.fault;
        } else if (!text.ended) {
            reply["open"] = reply["open"].get<int>() + 1;
        } else if (line.contains("tools")) {
            reply["texts"].push_back(calls_of(line["tools"], text.ids));
        } else {
            reply["texts"].push_back(text.text);
        }
    }
    return reply;
}

}  // namespace

int main(int argc, char** argv) {
    const int count = argc > 1 ? std::stoi(argv[1]) : 10;
    GrammarCompiler compiler(grammar::testing::nano_tokenizer(), grammar::testing::nano_options());
    std::mt19937 random(7);
    for (std::string line; std::getline(std::cin, line);) {
        const Json reply = answer(compiler, random, Json::parse(line), count);
        std::cout << reply.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
    }
}
