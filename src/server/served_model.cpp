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

}  // namespace

Result<ServedModel> ServedModel::load(const fs::path& folder) {
    PERCHERON_ASSIGN(const Json config, read_json(folder / "config.json"));
    PERCHERON_ASSIGN(ChatFormat format, ChatFormat::load(folder));
    ServedModel model{.name = fs::absolute(folder / ".").parent_path().filename().string(),
                      .root = folder.string(),
                      .format = std::move(format),
                      .defaults = {},
                      .chat_template = {},
                      .stop_tokens = {}};
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
    struct stat facts {};
    if (::stat((folder / "config.json").c_str(), &facts) == 0) {
        model.created = static_cast<std::uint64_t>(facts.st_mtime);
    }
    return model;
}

}  // namespace percheron::server
