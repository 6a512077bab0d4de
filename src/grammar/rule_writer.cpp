#include "grammar/rule_writer.h"

#include "text/unicode.h"

namespace percheron::grammar {

std::string joined(std::initializer_list<std::string_view> pieces) {
    std::string text;
    for (const std::string_view piece : pieces)
        text += piece;
    return text;
}

std::string RuleWriter::rule(const std::string& body) {
    if (const auto known = names_.find(body); known != names_.end()) return known->second;
    const std::string name = reserve();
    define(name, body);
    if (!full()) names_.emplace(body, name);
    return name;
}

std::string RuleWriter::reserve() {
    return joined({"r", std::to_string(++reserved_)});
}

void RuleWriter::define(const std::string& name, const std::string& body) {
    size_ += name.size() + body.size() + 8;
    if (!full()) rules_.emplace_back(name, body);
}

std::string RuleWriter::text(std::string_view root_body) const {
    std::string text = joined({"root ::= ", root_body, "\n"});
    for (const auto& [name, body] : rules_)
        text += joined({name, " ::= ", body, "\n"});
    return text;
}

std::string RuleWriter::literal(std::string_view text) {
    static constexpr char hex[] = "0123456789abcdef";
    std::string result = "\"";
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (c == '"' || c == '\\') {
            result += '\\';
            result += c;
        } else if (byte < 0x20 || byte == 0x7f) {
            result += "\\u00";
            result += hex[byte >> 4];
            result += hex[byte & 15];
        } else {
            result += c;
        }
    }
    result += '"';
    return result;
}

std::string RuleWriter::token(TokenId id) {
    return joined({"Token(", std::to_string(to_int(id)), ")"});
}

std::string RuleWriter::sequence(const std::vector<std::string>& parts) {
    std::string result;
    for (const std::string& part : parts) {
        if (part.empty() || part == "\"\"") continue;
        if (!result.empty()) result += ' ';
        result += part;
    }
    if (result.empty()) return "\"\"";
    return joined({"(", result, ")"});
}

std::string RuleWriter::alternatives(const std::vector<std::string>& parts) {
    if (parts.size() == 1) return parts.front();
    std::string result = "(";
    for (const std::string& part : parts) {
        if (result.size() > 1) result += " | ";
        result += part;
    }
    result += ')';
    return result;
}

std::string RuleWriter::repeated(const std::string& part, std::uint64_t least,
                                 std::optional<std::uint64_t> most) {
    if (!most && least == 0) return joined({"(", part, ")*"});
    if (!most && least == 1) return joined({"(", part, ")+"});
    if (most == 0) return "\"\"";
    if (most == 1 && least == 1) return part;
    if (most == 1) return optional(part);
    return joined({"(", part, "){", std::to_string(least), ",",
                   most ? std::to_string(*most) : std::string(), "}"});
}

std::string RuleWriter::character(const CodepointSet& set, TextForm form) {
    if (form == TextForm::raw) return set.rule_text();
    static const CodepointSet escaped{{0, 0x1f}, {'"', '"'}, {'\\', '\\'}};
    static constexpr std::pair<char, std::string_view> named[] = {
        {'"', "\\\""}, {'\\', "\\\\"}, {'\n', "\\n"}, {'\r', "\\r"},
        {'\t', "\\t"}, {'\b', "\\b"},  {'\f', "\\f"}};
    static constexpr char hex[] = "0123456789abcdef";
    std::vector<std::string> parts;
    const CodepointSet plain = set.without(escaped);
    if (!plain.empty()) parts.push_back(plain.rule_text());
    for (const auto& [character, text] : named) {
        if (set.contains(static_cast<unsigned char>(character))) parts.push_back(literal(text));
    }
    if (set.contains_all(0, 0x1f)) {
        parts.push_back(joined({"(", literal("\\u00"), " [01] [0-9a-f])"}));
    } else {
        for (std::uint32_t control = 0; control < 0x20; ++control) {
            const bool has_name = control == '\n' || control == '\r' || control == '\t' ||
                                  control == '\b' || control == '\f';
            if (has_name || !set.contains(control)) continue;
            const char digits[] = {hex[control >> 4], hex[control & 15], 0};
            parts.push_back(literal(joined({"\\u00", digits})));
        }
    }
    return parts.size() == 1 ? parts.front() : rule(alternatives(parts));
}

std::string RuleWriter::regex(const Regex& regex, TextForm form) {
    std::vector<std::string> parts;
    switch (regex.kind) {
        case Regex::Kind::set:
            return character(regex.set, form);
        case Regex::Kind::repeat:
            return repeated(this->regex(regex.parts.front(), form), regex.least, regex.most);
        case Regex::Kind::sequence:
        case Regex::Kind::alternatives:
            for (const Regex& part : regex.parts)
                parts.push_back(this->regex(part, form));
            break;
    }
    return regex.kind == Regex::Kind::sequence ? sequence(parts) : alternatives(parts);
}

}  // namespace percheron::grammar
