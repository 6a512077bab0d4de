#include "tools/quantize_folder.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "core/checksum.h"
#include "core/files.h"
#include "core/logging.h"
#include "tools/checkpoint_folder.h"

namespace percheron::tools {
namespace {

namespace fs = std::filesystem;
using checkpoint::TensorHeader;
using Json = nlohmann::ordered_json;

constexpr Bytes largest_manifest = Bytes{1} << 30;

Error io_error(const fs::path& path, const char* what, const std::error_code& error) {
    return Error(ErrorCode::io, path.string() + ": cannot " + what + ": " + error.message());
}

// The first field in which two descriptions differ, in the order that they were written in.
std::string difference(const std::string& one, const std::string& other) {
    const Json a = Json::parse(one, nullptr, false);
    const Json b = Json::parse(other, nullptr, false);
    if (!a.is_object() || !b.is_object()) return "its description";
    for (const auto& [key, value] : a.items()) {
        if (!b.contains(key) || b[key] != value) return key;
    }
    for (const auto& [key, value] : b.items()) {
        if (!a.contains(key)) return key;
    }
    return "its description";
}

Bytes bytes_below(const fs::path& folder) {
    Bytes total = 0;
    std::error_code error;
    for (fs::directory_iterator entry(folder, error); !error && entry != fs::directory_iterator();
         entry.increment(error)) {
        std::error_code gone;
        const auto size = entry->file_size(gone);
        if (!gone) total += size;
    }
    return total;
}

std::string in_hex(std::uint64_t number) {
    char text[17];
    std::snprintf(text, sizeof(text), "%016llx", static_cast<unsigned long long>(number));
    return text;
}

std::string checksum_of(std::string_view text) {
    return in_hex(checksum(std::as_bytes(std::span(text))));
}

// Size and checksum of a whole file.
Result<std::pair<Bytes, std::string>> sum_of(const fs::path& path) {
    PERCHERON_ASSIGN(const FileReader file, FileReader::open(path));
    std::vector<std::byte> block(std::size_t{4} << 20);
    std::uint64_t sum = 0;
    for (Bytes at = 0; at < file.size(); at += block.size()) {
        const auto piece = std::span(block).first(std::min<Bytes>(block.size(), file.size() - at));
        PERCHERON_TRY(file.read_at(at, piece));
        sum = checksum(piece, sum);
    }
    return std::pair(file.size(), in_hex(sum));
}

// A record is the checksum of what follows in its first line, then
//   {"run": CHECKSUM OF RUN.JSON, "section": NUMBER, "account": TEXT, "files": {NAME: [SIZE,
//   CHECKSUM], ...}}
// Null: there is no record, it is damaged, or it is another section's or run's.
Json read_record(const fs::path& path, const std::string& run, std::size_t section) {
    const auto text = read_text_file(path, largest_manifest);
    if (!text.ok()) return {};
    const std::size_t line = text->find('\n');
    if (line == std::string::npos) return {};
    const std::string_view body = std::string_view(*text).substr(line + 1);
    if (text->substr(0, line) != checksum_of(body)) return {};
    Json record = Json::parse(body, nullptr, false);
    const bool whole = record.is_object() && record.value("run", Json()) == run &&
                       record.value("section", Json()) == section && record.contains("account") &&
                       record["account"].is_string() && record.contains("files") &&
                       record["files"].is_object();
    return whole ? record : Json();
}

bool is_as_left(const fs::path& path, const Json& left) {
    const auto sum = sum_of(path);
    return sum.ok() && left == Json{sum->first, sum->second};
}

}  // namespace

Result<QuantizeFolder> QuantizeFolder::open(const fs::path& out, const std::string& run,
                                            Bytes bytes) {
    const fs::path state = out / ".quantize";
    const fs::path description = state / "run.json";
    std::error_code error;
    if (!fs::exists(description, error)) PERCHERON_TRY(make_output_folder(out, bytes));
    error.clear();
    fs::create_directories(state, error);
    if (error) return io_error(state, "make the folder", error);
    auto lock = FileLock::take(state / "lock");
    if (!lock.ok()) {
        return Error(lock.error().code(), out.string() + ": " + lock.error().message() +
                                              "; wait for its end or name another OUT");
    }
    // What another run did before it let go is looked at now.
    if (fs::exists(description, error)) {
        PERCHERON_ASSIGN(const std::string found, read_text_file(description, largest_manifest));
        if (!Json::parse(found, nullptr, false).is_object()) {
            return Error(ErrorCode::invalid_argument,
                         description.string() +
                             ": is damaged, so that nobody knows which run was "
                             "stopped; remove " +
                             state.string() + " or name another OUT");
        }
        if (found != run) {
            return Error(ErrorCode::invalid_argument,
                         state.string() + ": an unfinished run that differs in " +
                             difference(found, run) +
                             "; repeat that run, remove the folder or name another OUT");
        }
        PERCHERON_TRY(check_free_space(out, bytes - std::min(bytes, bytes_below(state))));
        return QuantizeFolder(out, state, checksum_of(run), std::move(*lock));
    }
    PERCHERON_TRY(make_output_folder(out, bytes));
    PERCHERON_TRY(write_text_file(description, run));
    return QuantizeFolder(out, state, checksum_of(run), std::move(*lock));
}

fs::path QuantizeFolder::part(std::size_t shard) const {
    char name[32];
    std::snprintf(name, sizeof(name), "part-%05zu", shard);
    return state_ / name;
}

fs::path QuantizeFolder::record_path(std::size_t section) const {
    return state_ / ("section-" + std::to_string(section) + ".json");
}

std::optional<std::string> QuantizeFolder::record(std::size_t section,
                                                  std::size_t all_parts) const {
    const fs::path path = record_path(section);
    std::error_code error;
    if (!fs::exists(path, error)) return std::nullopt;
    const auto damaged = [](const fs::path& file) {
        log_warning(file.string() + " is not as it was left; what it belongs to is done again");
        return std::nullopt;
    };
    const Json record = read_record(path, run_, section);
    if (record.is_null()) return damaged(path);
    for (const auto& [name, left] : record["files"].items()) {
        std::size_t number = 0;
        if (std::sscanf(name.c_str(), "part-%zu", &number) != 1) continue;
        const fs::path final_path = out_ / checkpoint::shard_name(number, all_parts);
        const bool is_named = !fs::exists(part(number), error) && fs::exists(final_path, error);
        const fs::path at = is_named ? final_path : part(number);
        if (!is_as_left(at, left)) return damaged(at);
    }
    return record["account"].get<std::string>();
}

bool QuantizeFolder::holds(std::size_t section, const fs::path& file) const {
    const Json record = read_record(record_path(section), run_, section);
    const std::string name = file.filename().string();
    return !record.is_null() && record["files"].contains(name) &&
           is_as_left(file, record["files"][name]);
}

Status QuantizeFolder::write_record(std::size_t section, const std::string& account,
                                    std::span<const fs::path> files) {
    Json record = {
        {"run", run_}, {"section", section}, {"account", account}, {"files", Json::object()}};
    for (const fs::path& file : files) {
        PERCHERON_ASSIGN(const auto sum, sum_of(file));
        record["files"][file.filename().string()] = {sum.first, sum.second};
    }
    const std::string body = record.dump() + "\n";
    return write_text_file(record_path(section), checksum_of(body) + "\n" + body);
}

Status QuantizeFolder::publish(const std::vector<std::vector<TensorHeader>>& shards, Bytes limit) {
    Bytes total = 0;
    for (const std::vector<TensorHeader>& shard : shards) {
        for (const TensorHeader& tensor : shard)
            total += tensor.bytes();
    }
    if (total <= limit) return join(shards);
    for (std::size_t i = 0; i < shards.size(); ++i) {
        const fs::path final_path = out_ / checkpoint::shard_name(i, shards.size());
        std::error_code error;
        if (!fs::exists(part(i), error) && fs::exists(final_path, error)) continue;
        fs::rename(part(i), final_path, error);
        if (error) return io_error(part(i), "give it its final name", error);
    }
    return checkpoint::write_index(out_, shards);
}

Status QuantizeFolder::join(const std::vector<std::vector<TensorHeader>>& shards) {
    std::vector<TensorHeader> all;
    for (const std::vector<TensorHeader>& shard : shards)
        all.insert(all.end(), shard.begin(), shard.end());
    PERCHERON_ASSIGN(auto writer, checkpoint::SafetensorsWriter::create(
                                      out_ / checkpoint::shard_name(0, 1), std::move(all)));
    for (std::size_t i = 0; i < shards.size(); ++i) {
        PERCHERON_ASSIGN(const auto file, checkpoint::SafetensorsFile::open(part(i)));
        for (const checkpoint::StoredTensor& tensor : file.tensors())
            PERCHERON_TRY(writer.write(tensor.name, tensor.bytes));
    }
    return writer.finish();
}

Status QuantizeFolder::remove_state() {
    // At once out of the way: half of it must never look like an unfinished run.
    const fs::path finished = out_ / ".quantize-finished";
    std::error_code error;
    fs::remove_all(finished, error);
    fs::rename(state_, finished, error);
    if (!error) fs::remove_all(finished, error);
    if (error) return io_error(state_, "remove the folder", error);
    return {};
}

}  // namespace percheron::tools
