#include "tools/quantize_folder.h"

#include <cstdio>

#include <nlohmann/json.hpp>

#include "core/files.h"
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
        if (found != run) {
            return Error(ErrorCode::invalid_argument,
                         state.string() + ": an unfinished run that differs in " +
                             difference(found, run) +
                             "; repeat that run, remove the folder or name another OUT");
        }
        PERCHERON_TRY(check_free_space(out, bytes - std::min(bytes, bytes_below(state))));
        return QuantizeFolder(out, state, std::move(*lock));
    }
    PERCHERON_TRY(make_output_folder(out, bytes));
    PERCHERON_TRY(write_text_file(description, run));
    return QuantizeFolder(out, state, std::move(*lock));
}

fs::path QuantizeFolder::part(std::size_t shard) const {
    char name[32];
    std::snprintf(name, sizeof(name), "part-%05zu", shard);
    return state_ / name;
}

fs::path QuantizeFolder::record_path(std::size_t section) const {
    return state_ / ("section-" + std::to_string(section) + ".json");
}

Result<std::optional<std::string>> QuantizeFolder::record(std::size_t section) const {
    std::error_code error;
    if (!fs::exists(record_path(section), error)) return std::optional<std::string>();
    PERCHERON_ASSIGN(std::string text, read_text_file(record_path(section), largest_manifest));
    return std::optional<std::string>(std::move(text));
}

Status QuantizeFolder::write_record(std::size_t section, const std::string& record) {
    return write_text_file(record_path(section), record);
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
