// Reads a JSON schema a line and writes, a line each: {"texts": [...], "open": n} with texts that
// its grammar allows, drawn at random (`open` more did not end), or {"error", "reason"}.  The
// client validates them by other means: sampled_schemas_test.py.
#include <iostream>
#include <string>

#include <nlohmann/json.hpp>

#include "grammar/json_rules.h"
#include "grammar/random_text.h"

int main(int argc, char** argv) {
    using namespace percheron;
    using namespace percheron::grammar;
    const int count = argc > 1 ? std::stoi(argv[1]) : 10;
    GrammarCompiler compiler(testing::nano_tokenizer(), testing::nano_options());
    std::mt19937 random(7);
    for (std::string line; std::getline(std::cin, line);) {
        const Json schema = Json::parse(line);
        RuleWriter writer;
        JsonRules rules(writer, schema);
        Json reply;
        const auto root = rules.value({&schema, ""});
        if (!root.ok()) {
            reply = {{"error", root.error().message()}, {"reason", root.error().reason()}};
        } else {
            const auto grammar = compiler.compile(writer.text(*root));
            if (!grammar.ok()) {
                reply = {{"error", grammar.error().message()}, {"reason", "compile"}};
            } else {
                reply = {{"texts", Json::array()}, {"open", 0}};
                for (int i = 0; i < count; ++i) {
                    const testing::RandomText text = testing::random_text(**grammar, random);
                    if (!text.fault.empty()) {
                        reply["fault"] = text.fault;
                    } else if (text.ended) {
                        reply["texts"].push_back(text.text);
                    } else {
                        reply["open"] = reply["open"].get<int>() + 1;
                    }
                }
            }
        }
        std::cout << reply.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
    }
}
