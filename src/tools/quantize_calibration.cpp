#include "tools/quantize_calibration.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <set>

#include <nlohmann/json.hpp>

#include "core/files.h"
#include "core/visible_text.h"
#include "text/prompt_images.h"
#include "tools/item_images.h"
#include "tools/model_source.h"

namespace percheron::tools {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t longest_kind = 64;  // in bytes
// Of texts that begin alike, tokens from which on they count as one that was cut.
constexpr std::size_t least_cut = 64;

// Gives the tokenizer and the template to the first line that needs them.
using FormatSource = std::function<Result<const ChatFormat*>()>;

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
Result<CalibrationText> read_line(const Json& line, const FormatSource& source,
                                  std::size_t vocabulary) {
    CalibrationText text;
    if (!line.contains("messages") && !line.contains("prompt") && !line.contains("text")) {
        if (const auto ids = line.find("ids"); ids != line.end() && ids->is_array()) {
            PERCHERON_ASSIGN(text.ids, read_ids(*ids, vocabulary));
            return text;
        }
        return Error(ErrorCode::corrupt, "needs `messages`, `prompt`, `text` or `ids`");
    }
    PERCHERON_ASSIGN(const ChatFormat* const format, source());
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
                         format->render(*messages, line.value("tools", Json()), options));
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
        text.ids = format->tokenizer().encode_trusted(*prompt);
        return text;
    }
    if (const std::string* plain = string_at("text")) {
        text.ids = format->tokenizer().encode(*plain);
        return text;
    }
    return Error(ErrorCode::corrupt, "`prompt` or `text` is not a string");
}

Result<std::vector<CalibrationText>> parse_lines(std::string_view lines, const FormatSource& format,
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
        if (text.kind.size() > longest_kind) {
            return Error(ErrorCode::corrupt, place + ": `kind` has more than 64 bytes");
        }
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

// body(number, count) for the first `count` ids, for each count up to their number that a text may
// be cut to, and for all of them: FNV-1a.
template <class Body>
void each_beginning(const std::vector<TokenId>& ids, const Body& body) {
    std::uint64_t value = 0xcbf29ce484222325u;
    for (std::size_t i = 0; i < ids.size(); ++i) {
        value = (value ^ static_cast<std::uint64_t>(to_int(ids[i]))) * 0x100000001b3u;
        if (i + 1 == ids.size() || i + 1 >= least_cut) body(value, i + 1);
    }
}

// Beginnings of every length for which `marked` says so.
TextMarks marks_where(const std::vector<CalibrationText>& texts, bool (*marked)(std::size_t)) {
    TextMarks marks;
    for (const CalibrationText& text : texts) {
        each_beginning(text.ids, [&](std::uint64_t value, std::size_t count) {
            if (count == text.ids.size()) marks.wholes.insert(value);
            if (count >= least_cut && marked(count)) marks.beginnings.insert(value);
        });
    }
    return marks;
}

}  // namespace

bool is_marked_length(std::size_t tokens) {
    return tokens >= least_cut && (tokens <= 512 ? tokens % 32 == 0 : std::has_single_bit(tokens));
}

TextMarks marks_of(const std::vector<CalibrationText>& texts) {
    return marks_where(texts, is_marked_length);
}

std::size_t texts_among(const TextMarks& marks, const std::vector<CalibrationText>& texts) {
    return static_cast<std::size_t>(
        std::count_if(texts.begin(), texts.end(), [&](const CalibrationText& text) {
            bool found = false;
            each_beginning(text.ids, [&](std::uint64_t value, std::size_t count) {
                const bool whole = count == text.ids.size();
                found = found || (whole && marks.beginnings.contains(value)) ||
                        ((whole || count >= least_cut) && marks.wholes.contains(value));
            });
            return found;
        }));
}

std::size_t texts_in_both(const std::vector<CalibrationText>& calibration,
                          const std::vector<CalibrationText>& held_out) {
    return texts_among(marks_where(calibration, [](std::size_t) { return true; }), held_out);
}

Result<std::vector<CalibrationText>> parse_calibration(std::string_view lines,
                                                       const ChatFormat& format,
                                                       std::size_t vocabulary,
                                                       const CalibrationLimits& limits) {
    return parse_lines(
        lines, [&]() -> Result<const ChatFormat*> { return &format; }, vocabulary, limits);
}

Result<std::vector<CalibrationText>> read_calibration(const std::filesystem::path& file,
                                                      const std::filesystem::path& model,
                                                      std::size_t vocabulary,
                                                      const CalibrationLimits& limits) {
    std::optional<ChatFormat> format;
    const FormatSource load = [&]() -> Result<const ChatFormat*> {
        if (!format) {
            PERCHERON_ASSIGN(const std::filesystem::path folder, text_folder(model));
            PERCHERON_ASSIGN(format, ChatFormat::load(folder));
        }
        return &*format;
    };
    PERCHERON_ASSIGN(const std::string lines, read_text_file(file, Bytes{1} << 32));
    auto texts = parse_lines(lines, load, vocabulary, limits);
    if (!texts.ok()) return texts.error().in(file.string());
    return texts;
}

}  // namespace percheron::tools
