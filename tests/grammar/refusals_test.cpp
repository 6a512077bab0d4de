// What cannot be held is refused by its pointer; what is hostile is refused or stays small.
#include <string>

#include <gtest/gtest.h>

#include "percheron/engine.h"

#include "grammar/allowed_text.h"
#include "grammar/grammar_text.h"
#include "grammar/output_rules.h"
#include "grammar/rule_writer.h"

namespace percheron::grammar::testing {
namespace {

OutputRules of_schema(const Json& schema) {
    OutputRequest request;
    request.format = OutputRequest::Format::json_schema;
    request.schema = schema;
    request.param = "schema";
    return write_rules(request, nano_tokenizer());
}

TEST(Refusals, KeywordsThatAreNotHeldAreNamedByTheirPointer) {
    const std::vector<std::pair<const char*, const char*>> keywords = {
        {"not", R"({"type":"null"})"},
        {"if", "{}"},
        {"then", "{}"},
        {"else", "{}"},
        {"multipleOf", "3"},
        {"patternProperties", R"({"^x":{}})"},
        {"propertyNames", R"({"maxLength":3})"},
        {"dependentRequired", "{}"},
        {"dependentSchemas", "{}"},
        {"dependencies", "{}"},
        {"contains", "{}"},
        {"minContains", "1"},
        {"maxContains", "1"},
        {"uniqueItems", "true"},
        {"unevaluatedProperties", "false"},
        {"unevaluatedItems", "false"},
        {"$dynamicRef", R"("#x")"},
        {"$anchor", R"("x")"},
        {"additionalItems", "false"},
        {"madeUp", "1"}};
    for (const auto& [keyword, value] : keywords) {
        const bool of_lists = std::string_view(keyword) == "uniqueItems";
        Json inner = {{"type", of_lists ? "array" : "object"}};
        inner[keyword] = Json::parse(value);
        const Json schema = {
            {"type", "object"},
            {"properties", {{"a/b", {{"type", "array"}, {"items", {{"anyOf", {inner}}}}}}}}};
        const OutputRules rules = of_schema(schema);
        ASSERT_TRUE(rules.error.has_value()) << keyword;
        EXPECT_EQ(rules.error->reason(), reasons::unsupported_parameter);
        EXPECT_EQ(rules.param, "schema");
        EXPECT_TRUE(rules.error->message().starts_with(
            std::string("#/properties/a~1b/items/anyOf/0/") + keyword + " "))
            << rules.error->message();
    }
}

TEST(Refusals, CombinationsThatWouldBePassedOverAreNamed) {
    const std::vector<std::pair<const char*, const char*>> cases = {
        {R"({"$ref":"#/$defs/a","maxLength":3,"$defs":{"a":{"type":"string"}}})", "#/maxLength"},
        {R"({"anyOf":[{"type":"string"}],"properties":{}})", "#/properties"},
        {R"({"enum":["a"],"minLength":3})", "#/minLength"},
        {R"({"allOf":[{"type":"object"},{"type":"object"}]})", "#/allOf"},
        {R"({"type":"string","pattern":"a","maxLength":3})", "#/maxLength"},
        {R"({"type":"string","format":"iri"})", "#/format"},
        {R"x({"type":"string","pattern":"(?=a)"})x", "#/pattern"},
        {R"({"oneOf":[{"type":"object"},{"type":"object"}]})", "#/oneOf"},
        {R"({"oneOf":[{"type":"integer"},{"type":"number"}]})", "#/oneOf"},
        {R"({"$ref":"https://example.com/schema"})", "#/$ref"},
        {R"({"type":"object","properties":{"a":{}},"minProperties":1})", "#/minProperties"},
        {R"({"type":"number","minimum":1e300})", "#/minimum"},
        {R"({"type":"string","maxLength":100000})", "#/maxLength"},
        {R"({"type":"array","minItems":100000000})", "#/minItems"}};
    for (const auto& [schema, pointer] : cases) {
        const OutputRules rules = of_schema(Json::parse(schema));
        ASSERT_TRUE(rules.error.has_value()) << schema;
        EXPECT_EQ(rules.error->reason(), reasons::unsupported_parameter) << schema;
        EXPECT_TRUE(rules.error->message().starts_with(std::string(pointer) + " ") ||
                    rules.error->message().starts_with(std::string(pointer) + " :"))
            << rules.error->message();
    }
}

TEST(Refusals, SchemasThatAllowNothingOrAreNoneAreWrong) {
    for (const char* schema :
         {"false",
          "3",
          R"(["a"])",
          R"({"type":"what"})",
          R"({"type":[]})",
          R"({"enum":[]})",
          R"({"enum":["a"],"type":"integer"})",
          R"({"anyOf":[]})",
          R"({"anyOf":[false]})",
          R"({"$ref":"#/nowhere"})",
          R"({"$ref":"#"})",
          R"({"$ref":"#/$defs/a","$defs":{"a":{"anyOf":[{"$ref":"#/$defs/a"},{"type":"null"}]}}})",
          R"({"type":"integer","minimum":5,"maximum":4})",
          R"({"type":"integer","exclusiveMinimum":4,"exclusiveMaximum":5})",
          R"({"type":"string","minLength":5,"maxLength":4})",
          R"({"type":"string","minLength":-1})",
          R"({"type":"string","pattern":"["})",
          R"({"type":"array","minItems":2,"maxItems":1})",
          R"({"type":"array","items":false,"minItems":1})",
          R"({"type":"object","required":["a"],"additionalProperties":false})",
          R"({"type":"object","properties":[]})"}) {
        const OutputRules rules = of_schema(Json::parse(schema));
        ASSERT_TRUE(rules.error.has_value()) << schema;
        EXPECT_EQ(rules.error->reason(), reasons::invalid_value) << schema;
        EXPECT_TRUE(rules.error->message().starts_with("#")) << rules.error->message();
    }
}

// Each is refused, or its rules stay within their limit and compile.
TEST(Refusals, HostileSchemasAreRefusedOrStaySmall) {
    std::vector<Json> schemas;
    Json deep = {{"type", "null"}};
    for (int i = 0; i < 60; ++i)
        deep = {{"type", "array"}, {"items", deep}};
    schemas.push_back(deep);
    for (int i = 0; i < 60; ++i)
        deep = {{"anyOf", {deep}}};
    schemas.push_back(deep);
    Json large_enum = {{"enum", Json::array()}};
    for (int i = 0; i < 5000; ++i)
        large_enum["enum"].push_back("value number " + std::to_string(i * 7919));
    schemas.push_back(large_enum);
    large_enum["enum"].push_back("one more");
    schemas.push_back(large_enum);
    Json wide = {{"type", "object"}, {"additionalProperties", true}};
    for (int i = 0; i < 300; ++i)
        wide["properties"]["property " + std::to_string(i)] = {{"type", "string"},
                                                               {"maxLength", 10000}};
    schemas.push_back(wide);
    // Every definition refers twice to the next: written out it would double 60 times.
    Json doubling = {{"$ref", "#/$defs/d0"}};
    for (int i = 0; i < 60; ++i) {
        const Json next = {{"$ref", "#/$defs/d" + std::to_string(i + 1)}};
        doubling["$defs"]["d" + std::to_string(i)] = {{"type", "object"},
                                                      {"properties", {{"a", next}, {"b", next}}}};
    }
    doubling["$defs"]["d60"] = {{"type", "null"}};
    schemas.push_back(doubling);
    schemas.push_back(
        Json::parse(R"({"type":"array","items":{"type":"array","items":{"type":"array",
        "minItems":10000,"maxItems":10000},"minItems":10000,"maxItems":10000},"minItems":10000})"));
    schemas.push_back(Json::parse(R"x({"type":"string","pattern":"^(a+)+(b|a)*c$"})x"));
    schemas.push_back(Json::parse(R"x({"type":"string","pattern":"(x{0,1000}){0,1000}"})x"));
    schemas.push_back({{"const", std::string(600000, 'x')}});
    int refused = 0;
    int taken = 0;
    for (const Json& schema : schemas) {
        const OutputRules rules = of_schema(schema);
        if (rules.error) {
            EXPECT_TRUE(rules.error->reason() == reasons::unsupported_parameter ||
                        rules.error->reason() == reasons::invalid_value);
            ++refused;
            continue;
        }
        EXPECT_LE(rules.text.size(), RuleWriter::largest + 100000);
        const auto grammar = nano_compiler().compile(rules.text);
        ASSERT_TRUE(grammar.ok()) << grammar.error().message().substr(0, 300);
        std::vector<std::uint32_t> mask((nano_tokenizer().size() + 31) / 32);
        EXPECT_TRUE((*grammar)->start()->fill(mask).ok());
        ++taken;
    }
    EXPECT_GE(refused, 4);
    EXPECT_GE(taken, 4);
}

TEST(Refusals, GrammarsOfClientsAreCheckedForSize) {
    const auto check = [](const std::string& text) {
        OutputRequest request;
        request.format = OutputRequest::Format::rules;
        request.text = text;
        return write_rules(request, nano_tokenizer());
    };
    const OutputRules fine = check(
        "root ::= (\"a\" | [b-d]{2,3}) rest # comment {9999999}\n"
        "rest ::= \"{99999999} (\" | \"\"\n");
    ASSERT_FALSE(fine.error.has_value()) << fine.error->message();
    const auto grammar = nano_compiler().compile(fine.text).value();
    EXPECT_TRUE(allows(*grammar, "a{99999999} ("));
    EXPECT_TRUE(allows(*grammar, "bcd"));
    EXPECT_FALSE(allows(*grammar, "bcda"));
    for (const std::string& text :
         {std::string(), std::string("root ::= \"a\"\0", 13), std::string("root ::= \"\xff\""),
          std::string("root ::= \"a\"{100000}"), std::string("root ::= \"a"),
          std::string("root ::= [a"), std::string("root ::= \"a\" )"),
          std::string("root ::= (((\"a\"{1000}){1000}){1000})"),
          "root ::= " + std::string(1000, '(') + "\"a\"" + std::string(1000, ')'),
          "root ::= \"" + std::string(longest_grammar, 'a') + "\""}) {
        const OutputRules rules = check(text);
        ASSERT_TRUE(rules.error.has_value()) << text.substr(0, 60);
        EXPECT_EQ(rules.error->reason(), reasons::invalid_value) << text.substr(0, 60);
    }
    for (const char* text :
         {"root ::= Token(5)", "root ::= Regex(\"a\")", "root[temperature=0.1] ::= \"a\""}) {
        const OutputRules rules = check(text);
        ASSERT_TRUE(rules.error.has_value()) << text;
        EXPECT_EQ(rules.error->reason(), reasons::unsupported_parameter) << text;
    }
    // What is small but makes no sense is the compiler's to refuse.
    for (const char* text : {"start ::= \"a\"", "root ::= other", "root ::= ::=", "?start: word"}) {
        const OutputRules rules = check(text);
        ASSERT_FALSE(rules.error.has_value()) << text;
        const auto result = nano_compiler().compile(rules.text);
        ASSERT_FALSE(result.ok()) << text;
        EXPECT_EQ(result.error().code(), ErrorCode::invalid_argument);
    }
}

}  // namespace
}  // namespace percheron::grammar::testing
