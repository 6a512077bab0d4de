#include "tools/quantize_calibration.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "core/files.h"
#include "text/prompt_images.h"
#include "tools/item_images.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

Result<std::vector<TokenId>> read_ids(const Json& list, std::size_t vocabulary) {
    std::vector<TokenId> ids;
    for (const Json& id : list) {
        const bool fits = id.is_number_unsigned() && id.get<std::uint64_t>() < vocabulary;
        if (!fits) {
            return Error(ErrorCode::invalid_argument, "`ids` holds " + id.dump().substr(0, 40) +
                                                          "; the model's ids are 0 to " +
                                                          std::to_string(vocabulary - 1));
        }
        ids.push_back(static_cast<TokenId>(id.get<std::int32_t>()));
    }
    return ids;
}

// Ids and images of a line.
Result<CalibrationText> read_line(const Json& line, const ChatFormat& format,
                                  std::size_t vocabulary) {
    CalibrationText text;
    const auto string_at = [&](const char* field) -> const std::string* {
        const auto found = line.find(field);
        return found != line.end() && found->is_string() ? found->get_ptr<const std::string*>()
                                                         : nullptr;
    };
    if (const auto messages = line.find("messages"); messages != line.end()) {
        ChatOptions options;
        options.add_generation_prompt = false;
        if (const std::string* effort = string_at("reasoning_effort")) {
            options.reasoning_effort = *effort;
        }
        PERCHERON_ASSIGN(ChatPrompt prompt,
                         format.render(*messages, line.value("tools", Json()), options));
        if (!prompt.video_positions.empty()) {
            return Error(ErrorCode::invalid_argument,
                         "holds a video; leave messages with videos out of the calibration");
        }
        PERCHERON_ASSIGN(std::vector<PromptImage> images, item_images(*messages));
        text.images = place_images(std::move(images), prompt);
        text.ids = std::move(prompt.ids);
        return text;
    }
    if (const std::string* prompt = string_at("prompt")) {
        text.ids = format.tokenizer().encode_trusted(*prompt);
        return text;
    }
    if (const std::string* plain = string_at("text")) {
        text.ids = format.tokenizer().encode(*plain);
        return text;
    }
    if (const auto ids = line.find("ids"); ids != line.end() && ids->is_array()) {
        PERCHERON_ASSIGN(text.ids, read_ids(*ids, vocabulary));
        return text;
    }
    return Error(ErrorCode::corrupt, "needs `messages`, `prompt`, `text` or `ids`");
}

}  // namespace

Result<std::vector<CalibrationText>> parse_calibration(std::string_view lines,
                                                       const ChatFormat& format,
                                                       std::size_t vocabulary,
                                                       const CalibrationLimits& limits) {
    std::vector<CalibrationText> texts;
    std::size_t tokens = 0;
    for (std::size_t number = 1; !lines.empty() && tokens < limits.tokens; ++number) {
        const std::size_t end = std::min(lines.find('\n'), lines.size());
        const std::string_view line = lines.substr(0, end);
        lines.remove_prefix(std::min(end + 1, lines.size()));
        if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
        const std::string place = "line " + std::to_string(number);
        const Json json = Json::parse(line, nullptr, false);
        if (!json.is_object()) return Error(ErrorCode::corrupt, place + ": is no JSON object");
        auto read = read_line(json, format, vocabulary);
        if (!read.ok()) return read.error().in(place);
        CalibrationText text = std::move(read).value();
        const auto kind = json.find("kind");
        text.kind = kind != json.end() && kind->is_string() ? kind->get<std::string>() : "text";
        text.ids.resize(std::min({text.ids.size(), limits.length, limits.tokens - tokens}));
        std::erase_if(text.images,
                      [&text](const PromptImage& image) { return image.first >= text.ids.size(); });
        if (text.ids.size() < 2) continue;  // says nothing about what follows what
        tokens += text.ids.size();
        texts.push_back(std::move(text));
    }
    if (texts.empty()) {
        return Error(ErrorCode::invalid_argument, "holds no text of at least two tokens");
    }
    return texts;
}

Result<std::vector<CalibrationText>> read_calibration(const std::filesystem::path& file,
                                                      const std::filesystem::path& model,
                                                      std::size_t vocabulary,
                                                      const CalibrationLimits& limits) {
    PERCHERON_ASSIGN(const ChatFormat format, ChatFormat::load(model));
    PERCHERON_ASSIGN(const std::string lines, read_text_file(file, Bytes{1} << 32));
    auto texts = parse_calibration(lines, format, vocabulary, limits);
    if (!texts.ok()) return texts.error().in(file.string());
    return texts;
}

}  // namespace percheron::tools
