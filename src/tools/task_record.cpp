#include "tools/task_record.h"

#define XXH_INLINE_ALL
#include <algorithm>
#include <array>
#include <cstdio>
#include <vector>

#include <nlohmann/json.hpp>
#include <xxhash.h>

#include "core/files.h"

namespace percheron::tools {
namespace {

constexpr Bytes largest_record = Bytes{1} << 30;
constexpr Bytes largest_configuration = Bytes{1} << 20;

std::string hexadecimal(std::uint64_t key) {
    std::array<char, 17> digits{};
    std::snprintf(digits.data(), digits.size(), "%016llx", static_cast<unsigned long long>(key));
    return digits.data();
}

// The outcome on a line of a record; nothing when the line is none.
struct RecordLine {
    std::string model;
    std::uint64_t key = 0;
    bool right = false;
};

std::optional<RecordLine> parse_line(const std::string& text) {
    const auto object = nlohmann::json::parse(text, nullptr, false);
    if (!object.is_object()) return std::nullopt;
    const auto model = object.find("model");
    const auto item = object.find("item");
    const auto right = object.find("right");
    if (model == object.end() || item == object.end() || right == object.end() ||
        !model->is_string() || !item->is_string() || !right->is_boolean()) {
        return std::nullopt;
    }
    const auto digits = item->get<std::string>();
    if (digits.size() != 16 || digits.find_first_not_of("0123456789abcdef") != std::string::npos) {
        return std::nullopt;
    }
    return RecordLine{model->get<std::string>(), std::stoull(digits, nullptr, 16),
                      right->get<bool>()};
}

}  // namespace

std::uint64_t item_key(const TaskItem& item) {
    const nlohmann::ordered_json asked = {item.task,  item.messages,
                                          item.tools, item.reasoning_effort,
                                          item.want,  item.check == TaskItem::Check::text};
    const std::string text = asked.dump();
    return XXH3_64bits(text.data(), text.size());
}

Result<std::string> asked_model(const std::filesystem::path& folder, std::uint32_t max_tokens) {
    PERCHERON_ASSIGN(std::string identity,
                     read_text_file(folder / "config.json", largest_configuration));
    std::vector<std::string> shards;
    std::error_code failure;
    for (const auto& entry : std::filesystem::directory_iterator(folder, failure)) {
        if (entry.path().extension() != ".safetensors") continue;
        shards.push_back(entry.path().filename().string() + " " +
                         std::to_string(entry.file_size(failure)) + "\n");
    }
    if (failure) {
        return Error(ErrorCode::io, folder.string() + ": cannot be listed: " + failure.message());
    }
    std::sort(shards.begin(), shards.end());
    for (const std::string& shard : shards)
        identity += shard;
    identity += std::to_string(max_tokens);
    return hexadecimal(XXH3_64bits(identity.data(), identity.size()));
}

Result<TaskRecord> TaskRecord::open(const std::filesystem::path& file, const std::string& model) {
    TaskRecord record;
    record.model_ = model;
    record.file_ = file;
    if (std::filesystem::exists(file)) {
        PERCHERON_ASSIGN(const std::string text, read_text_file(file, largest_record));
        std::size_t number = 0;
        std::size_t whole = 0;  // bytes up to the last line's end
        for (std::size_t end; (end = text.find('\n', whole)) != std::string::npos;
             whole = end + 1) {
            ++number;
            const auto line = parse_line(text.substr(whole, end - whole));
            const std::string place = file.string() + ", line " + std::to_string(number);
            if (!line) return Error(ErrorCode::corrupt, place + ": is no outcome of an item");
            if (line->model != model) {
                return Error(ErrorCode::invalid_argument,
                             place + ": is of another model or --max-tokens; name another file");
            }
            record.outcomes_[line->key] = line->right;
        }
        std::error_code failure;
        std::filesystem::resize_file(file, whole, failure);
        if (failure) return Error(ErrorCode::io, file.string() + ": " + failure.message());
    }
    record.stream_.open(file, std::ios::binary | std::ios::app);
    if (!record.stream_) {
        return Error(ErrorCode::io, file.string() + ": cannot be opened for writing");
    }
    return record;
}

std::optional<bool> TaskRecord::outcome(std::uint64_t key) const {
    const auto known = outcomes_.find(key);
    return known == outcomes_.end() ? std::nullopt : std::optional(known->second);
}

Status TaskRecord::add(std::uint64_t key, bool right) {
    outcomes_[key] = right;
    if (!stream_.is_open()) return {};
    const nlohmann::ordered_json line = {
        {"model", model_}, {"item", hexadecimal(key)}, {"right", right}};
    stream_ << line.dump() << std::endl;
    if (!stream_) {
        return Error(ErrorCode::io, file_.string() + ": takes no more; is the disk full?");
    }
    return {};
}

}  // namespace percheron::tools
