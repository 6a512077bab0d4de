#include "grammar/output_rules.h"

#include "percheron/engine.h"

#include "grammar/grammar_text.h"
#include "grammar/json_rules.h"
#include "grammar/tool_call_rules.h"

namespace percheron::grammar {
namespace {

constexpr std::uint64_t most_calls = 64;  // in a row
constexpr std::size_t most_choices = 5000;
constexpr std::size_t longest_choices = 256 * 1024;  // bytes together

const Json& function_of(const Json& tool) {
    const auto nested = tool.find("function");
    return nested != tool.end() ? *nested : tool;
}

bool is_strict(const Json& tool) {
    return function_of(tool).value("strict", Json()) == true ||
           tool.value("strict", Json()) == true;
}

bool any_strict(const Json& tools) {
    for (const Json& tool : tools) {
        if (is_strict(tool)) return true;
    }
    return false;
}

Result<std::string> choice_rule(const std::vector<std::string>& choices) {
    std::vector<std::string> parts;
    std::size_t bytes = 0;
    for (const std::string& choice : choices) {
        parts.push_back(RuleWriter::literal(choice));
        bytes += choice.size();
    }
    if (parts.empty() || parts.size() > most_choices || bytes > longest_choices) {
        return Error(ErrorCode::invalid_argument,
                     "must be from 1 to " + std::to_string(most_choices) +
                         " strings of at most 256 KiB together",
                     reasons::invalid_value);
    }
    return RuleWriter::alternatives(parts);
}

Result<std::string> format_rule(const OutputRequest& request, RuleWriter& writer) {
    using Format = OutputRequest::Format;
    JsonRules json(writer, request.schema);
    switch (request.format) {
        case Format::json_object:
            return json.any_object();
        case Format::json_schema:
            return json.value({&request.schema, ""});
        case Format::choice:
            return choice_rule(request.choices);
        case Format::regex: {
            PERCHERON_ASSIGN(const Regex regex, parse_regex(request.text, RegexMatch::whole));
            return writer.regex(regex, TextForm::raw);
        }
        default:
            return std::string();
    }
}

class Writer {
  public:
    Writer(const OutputRequest& request, const Tokenizer& tokenizer)
        : request_(request), tokenizer_(tokenizer) {}

    OutputRules write() {
        OutputRules result;
        const Status status = write_into(result);
        if (!status.ok()) {
            result.error = status.error();
            result.param = param_;
        }
        return result;
    }

  private:
    Status write_into(OutputRules& result) {
        using Format = OutputRequest::Format;
        using Calls = OutputRequest::Calls;
        param_ = request_.param;
        if (request_.format == Format::rules) {
            if (request_.calls != Calls::none) {
                return Error(ErrorCode::unsupported,
                             "cannot stand beside tools; send tool_choice \"none\", or no tools",
                             reasons::unsupported_parameter);
            }
            PERCHERON_TRY(check_grammar_text(request_.text));
            result.text = request_.text;
            return {};
        }
        std::string root;
        if (request_.calls != Calls::required) {
            PERCHERON_ASSIGN(root, format_rule(request_, writer_));
        }
        const bool strict = request_.calls == Calls::allowed && any_strict(request_.tools);
        if (request_.calls == Calls::required || strict ||
            (request_.calls == Calls::allowed && !root.empty())) {
            PERCHERON_ASSIGN(const std::string calls, calls_rule());
            if (request_.calls == Calls::required) {
                root = calls;
            } else if (!root.empty()) {
                root = RuleWriter::alternatives({root, calls});
            } else {
                const std::string text = joined({CodepointSet::all().rule_text(), "*"});
                root = RuleWriter::sequence({text, RuleWriter::optional(calls)});
            }
        }
        if (root.empty()) return {};
        if (writer_.full()) {
            return Error(ErrorCode::unsupported,
                         "makes the grammar larger than is supported; ask for less",
                         reasons::unsupported_parameter);
        }
        result.text = writer_.text(root);
        return {};
    }

    Result<std::string> calls_rule() {
        param_ = "tools";
        const auto tags = CallTags::of(tokenizer_);
        if (!tags) {
            return Error(ErrorCode::unsupported, "need a model whose tokenizer has <tool_call>",
                         reasons::unsupported_parameter);
        }
        const ToolSchemas schemas(request_.tools);
        ToolCallRules rules(writer_, *tags, schemas);
        std::vector<std::string> calls;
        for (std::size_t i = 0; i < request_.tools.size(); ++i) {
            const Json& tool = request_.tools[i];
            param_ = "tools[" + std::to_string(i) + "].function.parameters";
            const CallSchema held = is_strict(tool) ? CallSchema::strict
                                    : request_.calls == OutputRequest::Calls::required
                                        ? CallSchema::held
                                        : CallSchema::ignored;
            PERCHERON_ASSIGN(std::string call, rules.call(function_of(tool), held));
            calls.push_back(writer_.rule(call));
        }
        const std::string one = writer_.rule(RuleWriter::alternatives(calls));
        return request_.one_call ? one : RuleWriter::repeated(one, 1, most_calls);
    }

    const OutputRequest& request_;
    const Tokenizer& tokenizer_;
    RuleWriter writer_;
    std::string param_;
};

}  // namespace

bool OutputRequest::asks_for_anything() const {
    return format != Format::text || calls == Calls::required ||
           (calls == Calls::allowed && any_strict(tools));
}

OutputRules write_rules(const OutputRequest& request, const Tokenizer& tokenizer) {
    return Writer(request, tokenizer).write();
}

}  // namespace percheron::grammar
