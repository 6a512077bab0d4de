#include "server/served_model.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include <sys/stat.h>

namespace percheron::server {
namespace {

namespace fs = std::filesystem;

Result<std::string> read_text(const fs::path& file) {
    std::ifstream stream(file, std::ios::binary);
    if (!stream) return Error(ErrorCode::not_found, "cannot read " + file.string());
    std::stringstream text;
    text << stream.rdbuf();
    return std::move(text).str();
}

Result<Json> read_json(const fs::path& file) {
    PERCHERON_ASSIGN(const std::string text, read_text(file));
    Json json = Json::parse(text, nullptr, false);
    if (!json.is_object())
        return Error(ErrorCode::corrupt, file.string() + " is not a JSON object");
    return json;
}

// The field at the top or inside text_config, as both forms exist.
const Json* field_of(const Json& config, const char* name) {
    if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
        if (const auto found = text->find(name); found != text->end()) return &*found;
    }
    const auto found = config.find(name);
    return found == config.end() ? nullptr : &*found;
}

void add_stop_tokens(const Json* ids, std::vector<TokenId>& stops) {
    if (ids == nullptr) return;
    for (const Json& id : ids->is_array() ? *ids : Json::array({*ids})) {
        if (!id.is_number_unsigned()) continue;
        const TokenId stop{id.get<std::int32_t>()};
        if (std::find(stops.begin(), stops.end(), stop) == stops.end()) stops.push_back(stop);
    }
}

// A whole number that may be absent, within sensible bounds.
Status read_count(const Json& json, const char* name, const fs::path& file, std::size_t& target) {
    constexpr std::size_t most = 256;
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) return {};
    if (!found->is_number_unsigned() || found->get<std::uint64_t>() == 0 ||
        found->get<std::uint64_t>() > most) {
        return Error(ErrorCode::corrupt,
                     file.string() + ": " + name + " must be from 1 to " + std::to_string(most));
    }
    target = found->get<std::size_t>();
    return {};
}

// One number a channel.
Status read_channels(const Json& json, const char* name, const fs::path& file,
                     std::array<float, 3>& target) {
    const auto found = json.find(name);
    if (found == json.end() || found->is_null()) return {};
    for (std::size_t c = 0; c < 3; ++c) {
        if (!found->is_array() || found->size() != 3 || !(*found)[c].is_number()) {
            return Error(ErrorCode::corrupt, file.string() + ": " + name + " must be 3 numbers");
        }
        target[c] = (*found)[c].get<float>();
    }
    return {};
}

Result<std::optional<vision::PictureFormat>> read_vision(const fs::path& folder,
                                                         const Json& config) {
    const auto tower = config.find("vision_config");
    if (tower == config.end() || !tower->is_object()) return std::optional<vision::PictureFormat>();
    vision::PictureFormat format;
    vision::CanvasRule& rule = format.canvas;
    const fs::path config_file = folder / "config.json";
    PERCHERON_TRY(read_count(*tower, "patch_size", config_file, rule.patch));
    PERCHERON_TRY(read_count(*tower, "spatial_merge_size", config_file, rule.merge));
    PERCHERON_TRY(read_count(*tower, "temporal_patch_size", config_file, rule.frames));
    const fs::path file = folder / "preprocessor_config.json";
    if (!fs::exists(file)) return std::optional(format);
    PERCHERON_ASSIGN(const Json processor, read_json(file));
    const vision::CanvasRule of_tower = rule;
    PERCHERON_TRY(read_count(processor, "patch_size", file, rule.patch));
    PERCHERON_TRY(read_count(processor, "merge_size", file, rule.merge));
    PERCHERON_TRY(read_count(processor, "temporal_patch_size", file, rule.frames));
    if (rule.patch != of_tower.patch || rule.merge != of_tower.merge ||
        rule.frames != of_tower.frames) {
        return Error(ErrorCode::corrupt,
                     file.string() + " cuts pictures otherwise than vision_config in " +
                         config_file.string() + "; use the two files of one model");
    }
    PERCHERON_TRY(read_channels(processor, "image_mean", file, format.scale.mean));
    PERCHERON_TRY(read_channels(processor, "image_std", file, format.scale.deviation));
    for (const float deviation : format.scale.deviation) {
        if (!(deviation > 0)) {
            return Error(ErrorCode::corrupt, file.string() + ": image_std must be above 0");
        }
    }
    return std::optional(format);
}

}  // namespace

Result<ServedModel> ServedModel::load(const fs::path& folder) {
    PERCHERON_ASSIGN(const Json config, read_json(folder / "config.json"));
    PERCHERON_ASSIGN(ChatFormat format, ChatFormat::load(folder));
    ServedModel model{.name = fs::absolute(folder / ".").parent_path().filename().string(),
                      .root = folder.string(),
                      .format = std::move(format),
                      .defaults = {},
                      .chat_template = {},
                      .stop_tokens = {},
                      .vision = {}};
    const auto positive = [&](const char* name) -> std::uint32_t {
        const Json* value = field_of(config, name);
        return value != nullptr && value->is_number_unsigned() ? value->get<std::uint32_t>() : 0;
    };
    model.vocabulary = positive("vocab_size");
    model.context_limit = positive("max_position_embeddings");
    if (model.vocabulary == 0 || model.context_limit == 0) {
        return Error(ErrorCode::corrupt, (folder / "config.json").string() +
                                             " lacks vocab_size or max_position_embeddings");
    }
    add_stop_tokens(field_of(config, "eos_token_id"), model.stop_tokens);
    if (auto text = read_text(folder / "chat_template.jinja"); text.ok()) {
        model.chat_template = std::move(*text);
    }
    if (fs::exists(folder / "generation_config.json")) {
        PERCHERON_ASSIGN(const Json generation, read_json(folder / "generation_config.json"));
        add_stop_tokens(field_of(generation, "eos_token_id"), model.stop_tokens);
        const auto number = [&](const char* name, float& target) {
            const auto found = generation.find(name);
            if (found != generation.end() && found->is_number()) target = found->get<float>();
        };
        number("temperature", model.defaults.temperature);
        number("top_p", model.defaults.top_p);
        number("min_p", model.defaults.min_p);
        number("repetition_penalty", model.defaults.repetition_penalty);
        const auto top_k = generation.find("top_k");
        if (top_k != generation.end() && top_k->is_number_integer()) {
            model.defaults.top_k = top_k->get<int>();
        }
    }
    if (model.format.tokenizer().added_token("<|image|>")) {
        PERCHERON_ASSIGN(model.vision, read_vision(folder, config));
    }
    struct stat facts {};
    if (::stat((folder / "config.json").c_str(), &facts) == 0) {
        model.created = static_cast<std::uint64_t>(facts.st_mtime);
    }
    return model;
}

}  // namespace percheron::server
