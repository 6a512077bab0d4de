#include "text/chat_template.h"

#include <random>

#include <gmock/gmock.h>

#include "text_files.h"

namespace percheron {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::pair<std::string, jinja::Value>> variables_of(const Json& object) {
    std::vector<std::pair<std::string, jinja::Value>> variables;
    for (const auto& [name, json] : object.items()) {
        variables.emplace_back(name, jinja::value_of_json(json, TextOrigin::from_input).value());
    }
    return variables;
}

// The rendered text, or "error: ..." of either step.
std::string rendered(std::string_view source, const Json& variables = Json::object(),
                     const jinja::RunLimits& limits = {}) {
    const auto compiled = ChatTemplate::compile(source);
    if (!compiled.ok()) return "error: " + compiled.error().message();
    const auto text = compiled->render(variables_of(variables), limits);
    return text.ok() ? text->text() : "error: " + text.error().message();
}

// Template, variables and the text that Jinja2 3.1.6 gives with trim_blocks and lstrip_blocks on
// and transformers' filters and globals; an error there is an error here.
TEST(ChatTemplate, RendersAsTheReferenceDoes) {
    const auto file = json_of("tests/data/template_cases.json");
    ASSERT_GE(file["cases"].size(), 135u);
    for (const auto& one : file["cases"]) {
        const auto source = one["template"].get<std::string>();
        const std::string text = rendered(source, file["variables"]);
        if (one.contains("error")) {
            EXPECT_THAT(text, testing::StartsWith("error: ")) << source;
        } else {
            EXPECT_EQ(text, one["rendered"].get<std::string>()) << source;
        }
    }
}

TEST(ChatTemplate, WhatTheTemplateRaisesReachesTheCaller) {
    EXPECT_THAT(rendered("{{ raise_exception('only text, ' ~ x) }}", {{"x", "please"}}),
                testing::HasSubstr("only text, please"));
}

TEST(ChatTemplate, SaysWhatItDoesNotKnowAndWhere) {
    using testing::HasSubstr;
    EXPECT_THAT(rendered("a\nb {% include 'x' %}"),
                testing::AllOf(HasSubstr("line 2"), HasSubstr("include")));
    EXPECT_THAT(rendered("{{ x | nosuch }}"), HasSubstr("nosuch"));
    EXPECT_THAT(rendered("{{ x is nosuch }}"), HasSubstr("nosuch"));
    EXPECT_THAT(rendered("{{ missing.field }}"), HasSubstr("`missing` is undefined"));
    EXPECT_THAT(rendered("{% if x %}"), HasSubstr("endif"));
    EXPECT_THAT(rendered("{{ 'x"), HasSubstr("not closed"));
    EXPECT_THAT(rendered("{{ f(1) }}"), HasSubstr("`f` is undefined"));
}

TEST(ChatTemplate, HostileTemplatesAndInputsEndInAnError) {
    const jinja::RunLimits limits{.steps = 2'000'000, .text_bytes = 1 << 20};
    const std::vector<std::string> sources = {
        "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor "
        "%}{% endfor %}{% endfor %}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set n.x = n.x ~ n.x %}{% "
        "endfor %}{{ n.x }}",
        "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(64) %}{% set n.x = n.x | "
        "replace('a', n.x) %}{% endfor %}",
        "{% set n = namespace(x=[1]) %}{% for i in range(64) %}{% set n.x = n.x + n.x %}{% endfor "
        "%}",
        "{% set n = namespace(x=1) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}",
        "{% set n = namespace(x={}) %}{% for i in range(9999) %}{% set n.x = {'k': n.x} %}{% "
        "endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'x' * 999999999999 }}",
        "{{ [1] * 999999999999 }}",
        "{{ range(99999999) }}",
        "{{ 9 ** 999999999 }}",
        "{{ 9223372036854775807 + 1 }}",
        "{{ 1 // 0 }}",
        "{{ 1 % 0 }}",
        "{{ -9223372036854775807 - 2 }}",
        "{{ 'x' | indent(999999999) }}",
        "{% for i in range(9999) %}{{ 'x' * 1000 }}{% endfor %}",
        "{{ " + std::string(5000, '(') + "1" + std::string(5000, ')') + " }}",
        "{{ " + std::string(5000, '-') + "1 }}",
        "{{ x" + std::string(5000, '.') + " }}",
        std::string("{{ 1") +
            [] {
                std::string s;
                for (int i = 0; i < 9000; ++i)
                    s += "+1";
                return s;
            }() +
            " }}",
        [] {
            std::string s;
            for (int i = 0; i < 3000; ++i)
                s += "{% if 1 %}";
            return s;
        }(),
    };
    for (const std::string& source : sources) {
        EXPECT_THAT(rendered(source, {{"x", "y"}}, limits), testing::StartsWith("error: "))
            << source.substr(0, 80);
    }
    // Things that hold each other must not outlive the run.
    EXPECT_EQ(rendered("{% set n = namespace() %}{% set n.me = n %}{% set n.list = [n] %}{% macro "
                       "f() %}m{% endmacro %}{% set n.f = f %}{{ f() }}"),
              "m");
}

TEST(ChatTemplate, EveryOperationKeepsTheMarkOfInput) {
    // Upper-case letters are the template's, lower-case ones input; each expression must come out
    // with that still true.
    const Json variables = {{"a", "ab cd"}, {"l", {"x", "y"}}, {"d", {{"k", "v"}}}};
    const std::vector<std::string> expressions = {"'A' ~ a ~ 'B'",
                                                  "'A' + a + 'B'",
                                                  "a[1:3] ~ 'A'",
                                                  "('A' ~ a ~ 'B')[1:4]",
                                                  "('A' ~ a)[::-1]",
                                                  "('A ' ~ a).split(' ') | join('X')",
                                                  "l | join('X')",
                                                  "a.replace('b', 'X')",
                                                  "('XY' ~ a).replace('Y', a)",
                                                  "(' ' ~ a ~ ' ').strip()",
                                                  "a.split()[1] ~ 'A'",
                                                  "'A{}'.replace('{}', a)",
                                                  "('A' ~ a) | list | join",
                                                  "(['A'] + l) | join('-')",
                                                  "d.items() | list | first | join('A')",
                                                  "d | tojson",
                                                  "l | tojson",
                                                  "('A' ~ a) | tojson",
                                                  "('A' ~ a).partition('b')[2]",
                                                  "('A' ~ a) | indent",
                                                  "('A' ~ a).rsplit('c', 1)[0]",
                                                  "('A\n' ~ a).splitlines() | join('B')",
                                                  "l | map('string') | join('Q')",
                                                  "(a ~ 'A') | trim",
                                                  "a.removeprefix('a') ~ 'A'",
                                                  "('A' ~ a) | reverse",
                                                  "'-'.join(l) ~ 'A'",
                                                  "l[0] ~ 'A' ~ l[-1]",
                                                  "d.get('k') ~ 'A'",
                                                  "d['k'] * 2 ~ 'A'",
                                                  "l | string ~ 'A'",
                                                  "{'A': a} | tojson(indent=2)"};
    for (const std::string& expression : expressions) {
        const auto compiled = ChatTemplate::compile("{{ " + expression + " }}");
        ASSERT_TRUE(compiled.ok()) << expression;
        const auto text = compiled->render(variables_of(variables));
        ASSERT_TRUE(text.ok()) << expression << ": " << text.error().message();
        bool some_input = false;
        std::size_t begin = 0;
        for (const MarkedText::Run& run : text->runs()) {
            for (std::size_t i = begin; i < run.end; ++i) {
                const char c = text->text()[i];
                if (c >= 'a' && c <= 'z') {
                    EXPECT_EQ(run.origin, TextOrigin::from_input) << expression;
                    some_input = true;
                }
                if (c >= 'A' && c <= 'Z') {
                    EXPECT_EQ(run.origin, TextOrigin::from_template) << expression;
                }
            }
            begin = run.end;
        }
        EXPECT_TRUE(some_input) << expression;
    }
}

}  // namespace
}  // namespace percheron
