#include "checkpoint/module_list.h"

#include <algorithm>
#include <array>
#include <cctype>

// The eight-bit functions of PCRE2 are used; the header wants to be told before.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "checkpoint/names.h"

namespace percheron::checkpoint {
namespace {

constexpr std::string_view expression_prefix = "re:";
constexpr std::size_t longest_expression = 16384;
constexpr std::uint32_t most_heap = 16384;  // of a match, in KiB
constexpr std::size_t most_complaints = 10;

// The names a tool may have known a module by.
std::array<std::string, 4> spellings(std::string_view stem) {
    std::string_view rest = stem;
    if (rest.starts_with(text_prefix)) rest.remove_prefix(text_prefix.size());
    const std::string bare(rest);
    return {std::string(stem), "model." + bare, "language_model.model." + bare, bare};
}

// '*' is any run of characters, '?' any one.  Takes steps of at most the product of both lengths:
// after a second '*' the first one's run never changes again.
bool matches_pattern(std::string_view pattern, std::string_view text, std::uint64_t& steps) {
    std::size_t at = 0;
    std::size_t star = std::string_view::npos;
    std::size_t resume = 0;
    for (std::size_t i = 0; i < text.size();) {
        ++steps;
        if (at < pattern.size() && pattern[at] == '*') {
            star = at++;
            resume = i;
        } else if (at < pattern.size() && (pattern[at] == '?' || pattern[at] == text[i])) {
            ++at;
            ++i;
        } else if (star != std::string_view::npos) {
            at = star + 1;
            i = ++resume;
        } else {
            return false;
        }
    }
    const std::size_t rest = pattern.find_first_not_of('*', at);
    steps += std::min(rest, pattern.size()) - at;
    return rest == std::string_view::npos;
}

// Characters that stand next to each other in whatever the expression matches: the longest such run
// that is easily seen, outside of groups and without what may be left out.  Empty: none is.
std::string needed_text(std::string_view expression) {
    if (expression.find('|') != std::string_view::npos ||
        expression.find("(?") != std::string_view::npos ||
        expression.find("(*") != std::string_view::npos ||
        expression.find("\\Q") != std::string_view::npos) {
        return {};
    }
    std::string longest, run;
    const auto end_run = [&] {
        if (run.size() > longest.size()) longest = run;
        run.clear();
    };
    std::size_t depth = 0;
    for (std::size_t i = 0; i < expression.size(); ++i) {
        char c = expression[i];
        bool plain = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-';
        if (c == '\\') {
            if (++i == expression.size()) return {};
            c = expression[i];
            // Other letters behind a backslash are classes, places or references, and may take
            // more characters with them.
            const bool is_class = std::string_view("dwsDWS").find(c) != std::string_view::npos;
            plain = std::ispunct(static_cast<unsigned char>(c)) != 0;
            if (!plain && !is_class) return {};
        } else if (c == '[') {
            // A bracket that comes first, or behind '^', is a member.
            std::size_t at = i + 1;
            if (at < expression.size() && expression[at] == '^') ++at;
            for (++at; at < expression.size() && expression[at] != ']'; ++at) {
                if (expression[at] == '\\' || expression[at] == '[') return {};
            }
            if (at >= expression.size() || expression[i + 1] == '\\') return {};
            i = at;
        } else if (c == '(') {
            ++depth;
        } else if (c == ')') {
            if (depth == 0) return {};
            --depth;
        } else if (c == '*' || c == '?' || c == '{') {
            if (!run.empty()) run.pop_back();
            end_run();
            if (c != '{') continue;
            i = expression.find('}', i);
            if (i == std::string_view::npos) return {};
            continue;
        }
        if (!plain || depth > 0) {
            end_run();
        } else {
            run += c;
        }
    }
    end_run();
    return longest;
}

}  // namespace

std::string shortened(std::string_view entry) {
    constexpr std::size_t most = 80;
    if (entry.size() <= most) return std::string(entry);
    return std::string(entry.substr(0, most)) + "…";
}

std::vector<std::string> MatchBudget::complaints() const {
    std::vector<std::string> entries(given_up_.begin(), given_up_.end());
    std::sort(entries.begin(), entries.end());
    std::vector<std::string> sentences;
    for (const std::string& entry : entries) {
        if (sentences.size() == most_complaints) {
            sentences.push_back(std::to_string(entries.size() - most_complaints) +
                                " more patterns take too long to match and name nothing");
            break;
        }
        sentences.push_back("the pattern '" + shortened(entry) +
                            "' takes too long to match and names nothing");
    }
    if (exhausted()) {
        sentences.emplace_back(
            "its patterns take too long to match; from some weight on they name nothing");
    }
    return sentences;
}

// Compiled so that the matcher calls back at every item of the expression that it tries: these are
// the steps, of which a backtracking expression takes exponentially many.
struct ModuleList::Expression {
    Expression(std::string_view entry, pcre2_code* compiled)
        : text(entry),
          needed(needed_text(entry.substr(expression_prefix.size()))),
          code(compiled),
          limits(pcre2_match_context_create(nullptr)),
          result(pcre2_match_data_create(1, nullptr)) {
        pcre2_set_heap_limit(limits, most_heap);
        pcre2_set_callout(limits, &Expression::step, &steps);
    }
    ~Expression() {
        pcre2_match_data_free(result);
        pcre2_match_context_free(limits);
        pcre2_code_free(code);
    }
    Expression(const Expression&) = delete;
    Expression& operator=(const Expression&) = delete;

    struct Steps {
        std::uint64_t taken = 0;
        std::uint64_t most = 0;
    };

    static int step(pcre2_callout_block*, void* data) {
        Steps& steps = *static_cast<Steps*>(data);
        return ++steps.taken > steps.most ? PCRE2_ERROR_MATCHLIMIT : 0;
    }

    bool matches(const std::string& name, MatchBudget& budget) const {
        if (!budget.spend(1 + needed.size() / 16)) return false;
        if (name.find(needed) == std::string::npos) return false;
        if (!budget.spend(1 + text.size() / 16) || budget.given_up().contains(text)) return false;
        steps.taken = 0;
        steps.most = std::min(budget.left(), MatchBudget::steps_of_a_match);
        const int found = pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(name.data()), name.size(),
                                      0, PCRE2_ANCHORED, result, limits);
        budget.spend(steps.taken);
        // With less left than any match may take, it is not this one that took it.
        const bool too_long = found < 0 && found != PCRE2_ERROR_NOMATCH;
        if (too_long && !budget.exhausted()) budget.give_up(text);
        return found >= 0;
    }

    std::string text;
    std::string needed;  // whatever matches has it
    pcre2_code* code;
    pcre2_match_context* limits;
    pcre2_match_data* result;
    mutable Steps steps;
};

Status ModuleList::add(std::string_view entry) {
    if (entry == "Linear") {
        every_linear_ = true;
    } else if (entry.starts_with(expression_prefix)) {
        const std::string_view text = entry.substr(expression_prefix.size());
        int code = 0;
        PCRE2_SIZE offset = 0;
        pcre2_code* const compiled =
            text.size() > longest_expression
                ? nullptr
                : pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                PCRE2_AUTO_CALLOUT | PCRE2_NO_START_OPTIMIZE, &code, &offset,
                                nullptr);
        if (compiled == nullptr) {
            return Error(ErrorCode::corrupt,
                         "the expression '" + shortened(text) + "' cannot be compiled");
        }
        expressions_.push_back(std::make_shared<const Expression>(entry, compiled));
    } else if (entry.find_first_of("*?") != std::string_view::npos) {
        patterns_.emplace_back(entry);
    } else {
        names_.insert(canonical_name(entry));
    }
    return {};
}

bool ModuleList::contains(std::string_view stem, MatchBudget& budget) const {
    if (!names_.empty()) {
        for (std::size_t end = stem.size(); end != std::string_view::npos && end > 0;
             end = stem.rfind('.', end - 1)) {
            if (!budget.spend(1)) return false;
            if (names_.contains(std::string(stem.substr(0, end)))) return true;
        }
    }
    if (!budget.spend(1) || (patterns_.empty() && expressions_.empty())) return false;
    for (const std::string& name : spellings(stem)) {
        for (const std::string& pattern : patterns_) {
            std::uint64_t steps = 0;
            const bool matches = matches_pattern(pattern, name, steps);
            if (!budget.spend(steps + 1)) return false;
            if (matches) return true;
        }
        for (const auto& expression : expressions_) {
            if (expression->matches(name, budget)) return true;
            if (budget.exhausted()) return false;
        }
    }
    return false;
}

bool ModuleList::empty() const {
    return names_.empty() && patterns_.empty() && expressions_.empty() && !every_linear_;
}

}  // namespace percheron::checkpoint
