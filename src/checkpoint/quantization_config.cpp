#include "checkpoint/quantization_config.h"

#include <algorithm>
#include <map>
#include <utility>

#include "checkpoint/field_reader.h"
#include "checkpoint/fused_names.h"
#include "checkpoint/names.h"
#include "core/files.h"

namespace percheron::checkpoint {
namespace {

namespace fs = std::filesystem;
using OrderedJson = nlohmann::ordered_json;

constexpr Bytes largest_description = 64u << 20;

// ---- what is true of each form

// Values that a field may have of weights in one form; a field that is not listed says nothing.
using Truths = std::map<std::string, std::vector<OrderedJson>, std::less<>>;

const std::map<std::string, Truths, std::less<>>& truths() {
    const std::vector<OrderedJson> none;
    // Fields of compressed-tensors' groups, of ModelOpt's, of the block FP8 form, of GPTQ and AWQ.
    const auto with = [&](Truths own) {
        for (const char* field :
             {"quant_method", "quant_algo", "format", "num_bits", "type", "strategy", "group_size",
              "bits", "weight_block_size", "block_structure"}) {
            own.try_emplace(field, none);
        }
        own["dynamic"] = {false};
        own["symmetric"] = own["sym"] = {true};
        own["zero_point"] = {false};
        return own;
    };
    static const std::map<std::string, Truths, std::less<>> all = {
        {"w4a16",
         with({{"quant_method", {"compressed-tensors", "percheron", "gptq", "awq", "auto-round"}},
               {"quant_algo", {"W4A16_AWQ", "INT4_AWQ", "W4A16"}},
               {"format", {"pack-quantized"}},
               {"num_bits", {4}},
               {"bits", {4}},
               {"type", {"int"}},
               {"strategy", {"group"}},
               {"group_size", {128}}})},
        {"nvfp4", with({{"quant_method", {"modelopt", "modelopt_fp4", "percheron"}},
                        {"quant_algo", {"NVFP4", "W4A16_NVFP4", "NVFP4_AWQ"}},
                        {"format", {"nvfp4"}},
                        {"num_bits", {4}},
                        {"type", {"float"}},
                        {"strategy", {"tensor_group", "group"}},
                        {"group_size", {16}}})},
        {std::string(compressed_nvfp4), with({{"quant_method", {"compressed-tensors", "percheron"}},
                                              {"format", {compressed_nvfp4}},
                                              {"num_bits", {4}},
                                              {"type", {"float"}},
                                              {"strategy", {"tensor_group", "group"}},
                                              {"group_size", {16}}})},
        {"fp8_block", with({{"quant_method", {"fp8", "percheron"}},
                            {"quant_algo", {"FP8_PB_WO"}},
                            {"format", {"fp8-block"}},
                            {"fmt", {"e4m3"}},
                            {"num_bits", {8}},
                            {"bits", {8}},
                            {"type", {"float"}},
                            {"strategy", {"block"}},
                            {"weight_block_size", {OrderedJson::array({128, 128})}},
                            {"block_structure", {OrderedJson::array({128, 128}), "128x128"}}})},
        // Of its own account only; it says nothing about numbers that all weights share.
        {"exl3", {{"quant_method", {"exl3"}}}},
    };
    return all;
}

// Methods whose own configs have no config_groups.
bool is_of_plain_configs(const OrderedJson& method) {
    return method == "gptq" || method == "awq" || method == "auto-round" || method == "fp8";
}

std::string value_text(const OrderedJson& value) {
    return shortened(value.dump(-1, ' ', false, OrderedJson::error_handler_t::replace));
}

// ---- what the files say

Status add_all(const Json& list, ModuleList& modules) {
    for (const Json& entry : list) {
        if (!entry.is_string()) {
            return Error(ErrorCode::corrupt, "a list of modules holds something beside strings");
        }
        PERCHERON_TRY(modules.add(entry.get_ref<const std::string&>()));
    }
    return {};
}

// Fields that are there, and not null.
void copy_fields(const Json& from, std::initializer_list<const char*> fields, OrderedJson& to) {
    for (const char* field : fields) {
        const auto found = from.find(field);
        if (found != from.end() && !found->is_null()) to[field] = OrderedJson(*found);
    }
}

// What is said of all weights.
OrderedJson common_claims(const Json& json) {
    OrderedJson says = OrderedJson::object();
    copy_fields(json, {"quant_method", "quant_algo"}, says);
    // Other layers have other algorithms.
    if (says.value("quant_algo", OrderedJson()) == "MIXED_PRECISION") says.erase("quant_algo");
    return says;
}

Result<std::vector<ClaimedGroup>> read_groups(const Json& json, QuantizationConfig& config) {
    std::vector<ClaimedGroup> groups;
    const auto listed = json.find("config_groups");
    if (listed == json.end()) return groups;
    if (!listed->is_object() || listed->empty()) {
        config.oddities.push_back("config_groups " + value_text(OrderedJson(*listed)) +
                                  " describes nothing");
        return groups;
    }
    for (const auto& [name, entry] : listed->items()) {
        const std::string place = "config_groups." + shortened(name);
        if (!entry.is_object()) {
            config.oddities.push_back(place + " " + value_text(OrderedJson(entry)) +
                                      " describes nothing");
            continue;
        }
        ClaimedGroup& group = groups.emplace_back();
        group.name = place;
        group.of_config_groups = true;
        group.says = common_claims(json);
        copy_fields(json, {"format"}, group.says);
        const OrderedJson& format = group.says.value("format", OrderedJson());
        if (format.is_string() && format.get<std::string>().starts_with("mixed")) {
            group.says.erase("format");
        }
        copy_fields(entry, {"format"}, group.says);
        if (const auto weights = entry.find("weights");
            weights != entry.end() && weights->is_object()) {
            copy_fields(*weights,
                        {"num_bits", "type", "symmetric", "strategy", "group_size",
                         "block_structure", "dynamic"},
                        group.says);
        }
        if (const auto targets = entry.find("targets");
            targets != entry.end() && targets->is_array()) {
            PERCHERON_TRY(add_all(*targets, group.targets));
        }
        if (group.targets.empty()) {
            config.oddities.push_back(place +
                                      " names no targets and is taken for all linear layers");
            PERCHERON_TRY(group.targets.add("Linear"));
        }
    }
    return groups;
}

// ModelOpt's account of layers with different algorithms: one group an algorithm.
Result<std::vector<ClaimedGroup>> read_quantized_layers(const Json& json) {
    std::map<std::string, ClaimedGroup> groups;
    const auto layers = json.find("quantized_layers");
    if (layers != json.end() && layers->is_object()) {
        for (const auto& [module, entry] : layers->items()) {
            if (!entry.is_object()) continue;
            OrderedJson says = common_claims(json);
            copy_fields(entry, {"quant_algo", "group_size"}, says);
            ClaimedGroup& group = groups[value_text(says)];
            group.name = "quantized_layers";
            group.says = std::move(says);
            PERCHERON_TRY(group.targets.add(module));
        }
    }
    std::vector<ClaimedGroup> list;
    list.reserve(groups.size());
    for (auto& [text, group] : groups)
        list.push_back(std::move(group));
    return list;
}

// Of all linear layers alike.
Result<ClaimedGroup> read_plain_claim(const Json& json, const std::string& name) {
    ClaimedGroup group;
    group.name = name;
    PERCHERON_TRY(group.targets.add("Linear"));
    group.says = common_claims(json);
    copy_fields(json,
                {"format", "fmt", "bits", "group_size", "sym", "zero_point", "weight_block_size"},
                group.says);
    // Without the size of blocks this method means one scale a tensor.
    if (group.says.value("quant_method", OrderedJson()) == "fp8" &&
        !group.says.contains("weight_block_size")) {
        group.says["weight_block_size"] = nullptr;
    }
    return group;
}

Result<QuantizationConfig> read_claim(const Json& json, const std::string& name) {
    QuantizationConfig config;
    config.name = name;
    if (!json.is_object()) return Error(ErrorCode::corrupt, "is not an object");
    for (const char* field : {"ignore", "modules_to_not_convert", "exclude_modules"}) {
        const auto list = json.find(field);
        if (list == json.end() || list->is_null()) continue;
        if (!list->is_array()) {
            return Error(ErrorCode::corrupt, std::string(field) + " is not a list");
        }
        PERCHERON_TRY(add_all(*list, config.exempt));
    }
    PERCHERON_ASSIGN(config.groups, read_groups(json, config));
    if (config.groups.empty()) {
        PERCHERON_ASSIGN(config.groups, read_quantized_layers(json));
    }
    if (config.groups.empty()) {
        PERCHERON_ASSIGN(ClaimedGroup all, read_plain_claim(json, name));
        config.groups.push_back(std::move(all));
    }
    for (ClaimedGroup& group : config.groups)
        group.names_a_method = name == "quantization_config";
    return config;
}

bool is_exl3(const Json& json) {
    const auto method = json.is_object() ? json.find("quant_method") : json.end();
    return method != json.end() && *method == "exl3";
}

// Modules that EXL3's own account of a folder calls quantised; nothing else is said of any.
Result<QuantizationConfig> read_tensor_storage(const Json& json) {
    QuantizationConfig config;
    config.name = "tensor_storage";
    const auto modules = json.find("tensor_storage");
    if (modules == json.end() || !modules->is_object()) {
        return Error(ErrorCode::corrupt, "tensor_storage is not an object");
    }
    ClaimedGroup& group = config.groups.emplace_back();
    group.name = config.name;
    group.says["quant_method"] = "exl3";
    for (const auto& [module, about] : modules->items()) {
        const auto stored = about.is_object() ? about.find("stored_tensors") : about.end();
        if (stored != about.end() && stored->is_object()) {
            std::vector<std::string>& names = config.stored_together.emplace_back();
            for (const auto& tensor : stored->items())
                names.push_back(canonical_name(tensor.key()));
        }
        const auto form = about.is_object() ? about.find("quant_format") : about.end();
        if (form == about.end() || *form != "exl3") continue;
        PERCHERON_TRY(group.targets.add(module));
        // A stack is named as one.
        for (const std::string& share : shares_of_stack(canonical_name(module)))
            PERCHERON_TRY(group.targets.add(share));
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

std::string contradiction(const ClaimedGroup& group, std::string_view form) {
    const auto of_form = truths().find(form);
    if (of_form == truths().end()) return {};
    std::string text;
    for (const auto& [field, value] : group.says.items()) {
        const auto truth = of_form->second.find(field);
        if (truth == of_form->second.end()) continue;
        bool so = false;
        for (const OrderedJson& accepted : truth->second)
            so = so || accepted == value;
        // A method without groups of its own is not what a config with groups was written by.
        if (field == "quant_method" && group.of_config_groups)
            so = so && !is_of_plain_configs(value);
        if (!so) text += (text.empty() ? "" : ", ") + field + " " + value_text(value);
    }
    return text;
}

std::string silence(const ClaimedGroup& group, std::string_view form) {
    const auto says = [&](std::initializer_list<const char*> fields) {
        return std::any_of(fields.begin(), fields.end(),
                           [&](const char* field) { return group.says.contains(field); });
    };
    const OrderedJson method = group.says.value("quant_method", OrderedJson());
    const bool modelopt = method.is_null() ||
                          (method.is_string() && method.get<std::string>().starts_with("modelopt"));
    std::string text;
    const auto need = [&](const char* name, bool said) {
        if (!said) text += (text.empty() ? "" : ", ") + std::string(name);
    };
    need("quant_method", says({"quant_method"}) || !group.names_a_method);
    if (form == "exl3") return text;
    // Groups of config_groups describe their weights themselves; elsewhere an algorithm's name
    // does.
    const bool blocks = form == "fp8_block";
    if (group.of_config_groups) {
        need("num_bits", says({"num_bits"}));
        need(blocks ? "block_structure" : "group_size",
             says({blocks ? "block_structure" : "group_size"}));
        need("quant_algo", form != "nvfp4" || !modelopt || says({"quant_algo"}));
    } else if (form == "w4a16") {
        need("bits", says({"bits", "quant_algo"}));
        need("group_size", says({"group_size", "quant_algo"}));
    } else if (form == "fp8_block") {
        need("weight_block_size", says({"weight_block_size", "quant_algo"}));
    } else {
        need("quant_algo", says({"quant_algo"}));
        need("group_size", group.name == "quantized_layers" || says({"group_size"}));
    }
    return text;
}

Result<std::vector<QuantizationConfig>> read_quantization_configs(const fs::path& folder) {
    std::error_code error;
    std::vector<QuantizationConfig> found;
    constexpr const char* tensor_storage = "quantization_config.json";
    if (fs::exists(folder / tensor_storage, error)) {
        PERCHERON_ASSIGN(const Json json, read_description(folder / tensor_storage));
        if (is_exl3(json)) {
            auto config = read_tensor_storage(json);
            if (!config.ok()) return config.error().in((folder / tensor_storage).string());
            found.push_back(std::move(config).value());
            return found;
        }
    }
    for (const auto& [file, field] : {std::pair{"config.json", "quantization_config"},
                                      std::pair{"hf_quant_config.json", "quantization"}}) {
        if (!fs::exists(folder / file, error)) continue;
        PERCHERON_ASSIGN(const Json json, read_description(folder / file));
        const auto place = json.find(field);
        const bool absent = place == json.end() || place->is_null();
        // ModelOpt's own file is there for nothing else.
        const bool own_file = field == std::string_view("quantization");
        if (absent && !own_file) continue;
        const Json nothing = Json::object();
        const Json* const claim = absent ? &nothing : &*place;
        if (is_exl3(*claim)) {  // which names modules in the other file alone
            found.emplace_back().silent = true;
            continue;
        }
        const bool own = field == std::string_view("quantization_config");
        auto config = read_claim(*claim, own ? field : file);
        if (!config.ok()) return config.error().in((folder / file).string() + ": " + field);
        found.push_back(std::move(config).value());
    }
    return found;
}

}  // namespace percheron::checkpoint
