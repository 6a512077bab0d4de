#include "grammar/string_rules.h"

#include <array>
#include <optional>

namespace percheron::grammar {
namespace {

constexpr std::uint64_t longest_string = 10000;

// Each is a part of what its format allows: no 29th of February, addresses and names of the usual
// letters.
constexpr std::array<std::pair<std::string_view, std::string_view>, 7> formats{{
    {"date",
     "[12]\\d{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\\d|3[01])|(?:0[469]|11)-"
     "(?:0[1-9]|[12]\\d|30)|02-(?:0[1-9]|1\\d|2[0-8]))"},
    {"time",
     "(?:[01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(?:\\.\\d{1,6})?"
     "(?:Z|[+\\-](?:[01]\\d|2[0-3]):[0-5]\\d)"},
    {"date-time", ""},  // both, below
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"ipv4",
     "(?:(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)\\.){3}"
     "(?:25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)"},
    {"email",
     "[a-z0-9](?:[a-z0-9._+\\-]{0,30}[a-z0-9])?@"
     "(?:[a-z0-9](?:[a-z0-9\\-]{0,30}[a-z0-9])?\\.){1,4}[a-z]{2,12}"},
    {"hostname",
     "(?:[a-z0-9](?:[a-z0-9\\-]{0,30}[a-z0-9])?\\.){0,4}[a-z](?:[a-z0-9\\-]{0,30}"
     "[a-z0-9])?"},
}};

std::optional<std::string> pattern_of_format(std::string_view name) {
    if (name == "date-time") {
        return *pattern_of_format("date") + "T" + *pattern_of_format("time");
    }
    for (const auto& [format, pattern] : formats) {
        if (format == name) return std::string(pattern);
    }
    return std::nullopt;
}

}  // namespace

bool restricts_strings(const SchemaNode& node) {
    return node.has("minLength") || node.has("maxLength") || node.has("pattern") ||
           node.has("format");
}

Result<std::string> string_rule(const SchemaNode& node, TextForm form, RuleWriter& writer) {
    PERCHERON_ASSIGN(const auto least, node.count("minLength", longest_string));
    PERCHERON_ASSIGN(const auto most, node.count("maxLength", longest_string));
    if (least && most && *least > *most) {
        return node.wrong("maxLength", "is below minLength: no string is valid");
    }
    const bool has_length = least.value_or(0) > 0 || most;
    const Json* pattern = node.find("pattern");
    const Json* format = node.find("format");
    if (pattern != nullptr && format != nullptr) {
        return node.unsupported("format", "stands beside pattern, which is not supported");
    }
    if (pattern == nullptr && format == nullptr) {
        return writer.repeated(writer.character(CodepointSet::all(), form), least.value_or(0),
                               most);
    }
    const char* keyword = pattern != nullptr ? "pattern" : "format";
    if (has_length) {
        return node.unsupported(most ? "maxLength" : "minLength",
                                std::string("stands beside ") + keyword +
                                    ", which is not supported; say the length in the pattern");
    }
    const Json& value = pattern != nullptr ? *pattern : *format;
    if (!value.is_string()) return node.wrong(keyword, "must be a string");
    std::string expression = value.get<std::string>();
    if (format != nullptr) {
        const auto known = pattern_of_format(expression);
        if (!known) {
            return node.unsupported(
                "format",
                "is none of date, time, date-time, uuid, ipv4, email and hostname; leave it out");
        }
        expression = *known;
    }
    auto regex =
        parse_regex(expression, pattern != nullptr ? RegexMatch::search : RegexMatch::whole);
    if (!regex.ok()) {
        const std::string why = ": " + regex.error().message();
        return regex.error().code() == ErrorCode::unsupported ? node.unsupported(keyword, why)
                                                              : node.wrong(keyword, why);
    }
    return writer.regex(*regex, form);
}

}  // namespace percheron::grammar
