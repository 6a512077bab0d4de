#include "checkpoint/quantization_config.h"

#include <array>

// The eight-bit functions of PCRE2 are used; the header wants to be told before.
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "checkpoint/field_reader.h"
#include "checkpoint/fused_names.h"
#include "checkpoint/names.h"
#include "core/files.h"

namespace percheron::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr Bytes largest_description = 64u << 20;
// Steps after which an expression counts as not matching: a hostile one may not hold up a start.
constexpr std::uint32_t match_limit = 100'000;

// The names a tool may have known a module by.
std::array<std::string, 4> spellings(std::string_view stem) {
    std::string_view rest = stem;
    if (rest.starts_with(text_prefix)) rest.remove_prefix(text_prefix.size());
    const std::string bare(rest);
    return {std::string(stem), "model." + bare, "language_model.model." + bare, bare};
}

// '*' is any run of characters, '?' any one.
bool matches_pattern(std::string_view pattern, std::string_view text) {
    std::size_t at = 0;
    std::size_t star = std::string_view::npos;
    std::size_t resume = 0;
    for (std::size_t i = 0; i < text.size();) {
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
    while (at < pattern.size() && pattern[at] == '*') {
        ++at;
    }
    return at == pattern.size();
}

Status add_all(const Json& list, ModuleList& modules) {
    for (const Json& entry : list) {
        if (!entry.is_string()) {
            return Error(ErrorCode::corrupt, "a list of modules holds something beside strings");
        }
        PERCHERON_TRY(modules.add(entry.get_ref<const std::string&>()));
    }
    return {};
}

Result<QuantizationConfig> read_claim(const Json& json) {
    QuantizationConfig config;
    if (!json.is_object()) return Error(ErrorCode::corrupt, "is not an object");
    for (const char* field : {"ignore", "modules_to_not_convert", "exclude_modules"}) {
        const auto list = json.find(field);
        if (list == json.end() || list->is_null()) continue;
        if (!list->is_array()) {
            return Error(ErrorCode::corrupt, std::string(field) + " is not a list");
        }
        PERCHERON_TRY(add_all(*list, config.exempt));
    }
    if (const auto groups = json.find("config_groups"); groups != json.end()) {
        for (const Json& group : *groups) {
            const auto targets = group.is_object() ? group.find("targets") : group.end();
            if (targets != group.end() && targets->is_array()) {
                PERCHERON_TRY(add_all(*targets, config.targets));
            }
        }
    }
    if (config.targets.empty()) PERCHERON_TRY(config.targets.add("Linear"));
    return config;
}

bool is_exl3(const Json& json) {
    const auto method = json.is_object() ? json.find("quant_method") : json.end();
    return method != json.end() && *method == "exl3";
}

// Modules that EXL3's own account of a folder calls quantised; nothing else is said of any.
Result<QuantizationConfig> read_tensor_storage(const Json& json) {
    QuantizationConfig config;
    const auto modules = json.find("tensor_storage");
    if (modules == json.end() || !modules->is_object()) {
        return Error(ErrorCode::corrupt, "tensor_storage is not an object");
    }
    for (const auto& [module, about] : modules->items()) {
        const auto stored = about.is_object() ? about.find("stored_tensors") : about.end();
        if (stored != about.end() && stored->is_object()) {
            std::vector<std::string>& names = config.stored_together.emplace_back();
            for (const auto& tensor : stored->items())
                names.push_back(canonical_name(tensor.key()));
        }
        const auto form = about.is_object() ? about.find("quant_format") : about.end();
        if (form == about.end() || *form != "exl3") continue;
        PERCHERON_TRY(config.targets.add(module));
        // A stack is named as one.
        for (const std::string& share : shares_of_stack(canonical_name(module)))
            PERCHERON_TRY(config.targets.add(share));
    }
    return config;
}

Result<Json> read_description(const fs::path& path) {
    PERCHERON_ASSIGN(const std::string text, read_text_file(path, largest_description));
    Json json = Json::parse(text, nullptr, false);
    if (!json.is_object()) {
        return Error(ErrorCode::corrupt, path.string() + ": is not a JSON object");
    }
    return json;
}

}  // namespace

struct ModuleList::Expression {
    explicit Expression(pcre2_code* compiled)
        : code(compiled),
          limits(pcre2_match_context_create(nullptr)),
          result(pcre2_match_data_create(1, nullptr)) {
        pcre2_set_match_limit(limits, match_limit);
        pcre2_set_depth_limit(limits, match_limit);
    }
    ~Expression() {
        pcre2_match_data_free(result);
        pcre2_match_context_free(limits);
        pcre2_code_free(code);
    }
    Expression(const Expression&) = delete;
    Expression& operator=(const Expression&) = delete;

    bool matches(const std::string& text) const {
        return pcre2_match(code, reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), 0,
                           PCRE2_ANCHORED, result, limits) >= 0;
    }

    pcre2_code* code;
    pcre2_match_context* limits;
    pcre2_match_data* result;
};

Status ModuleList::add(std::string_view entry) {
    constexpr std::string_view expression_prefix = "re:";
    if (entry == "Linear") {
        every_linear_ = true;
    } else if (entry.starts_with(expression_prefix)) {
        const std::string_view text = entry.substr(expression_prefix.size());
        int code = 0;
        PCRE2_SIZE offset = 0;
        pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                                             0, &code, &offset, nullptr);
        if (compiled == nullptr) {
            return Error(ErrorCode::corrupt,
                         "the expression '" + std::string(text) + "' cannot be compiled");
        }
        expressions_.push_back(std::make_shared<const Expression>(compiled));
    } else if (entry.find_first_of("*?") != std::string_view::npos) {
        patterns_.emplace_back(entry);
    } else {
        names_.insert(canonical_name(entry));
    }
    return {};
}

bool ModuleList::contains(std::string_view stem) const {
    for (std::size_t end = stem.size(); end != std::string_view::npos && end > 0;
         end = stem.rfind('.', end - 1)) {
        if (names_.contains(std::string(stem.substr(0, end)))) return true;
    }
    if (patterns_.empty() && expressions_.empty()) return false;
    for (const std::string& name : spellings(stem)) {
        for (const std::string& pattern : patterns_) {
            if (matches_pattern(pattern, name)) return true;
        }
        for (const auto& expression : expressions_) {
            if (expression->matches(name)) return true;
        }
    }
    return false;
}

bool ModuleList::empty() const {
    return names_.empty() && patterns_.empty() && expressions_.empty() && !every_linear_;
}

Result<std::optional<QuantizationConfig>> read_quantization_config(const fs::path& folder) {
    std::error_code error;
    constexpr const char* tensor_storage = "quantization_config.json";
    if (fs::exists(folder / tensor_storage, error)) {
        PERCHERON_ASSIGN(const Json json, read_description(folder / tensor_storage));
        if (is_exl3(json)) {
            auto config = read_tensor_storage(json);
            if (!config.ok()) return config.error().in((folder / tensor_storage).string());
            return std::optional<QuantizationConfig>(std::move(config).value());
        }
    }
    for (const auto& [file, field] : {std::pair{"config.json", "quantization_config"},
                                      std::pair{"hf_quant_config.json", "quantization"}}) {
        if (!fs::exists(folder / file, error)) continue;
        PERCHERON_ASSIGN(const Json json, read_description(folder / file));
        const auto claim = json.find(field);
        if (claim == json.end() || claim->is_null()) continue;
        // EXL3 names modules in the other file alone.
        if (is_exl3(*claim)) continue;
        auto config = read_claim(*claim);
        if (!config.ok()) return config.error().in((folder / file).string() + ": " + field);
        return std::optional<QuantizationConfig>(std::move(config).value());
    }
    return std::optional<QuantizationConfig>();
}

}  // namespace percheron::checkpoint
