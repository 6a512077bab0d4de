#include "checkpoint/shards.h"

#include <algorithm>
#include <map>
#include <set>

#include <simdjson.h>

#include "checkpoint/names.h"

namespace percheron::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr Bytes largest_index = 512u << 20;

// Which file the index puts each tensor into, both sorted.
using WeightMap = std::map<std::string, std::string, std::less<>>;

Result<WeightMap> read_index(const fs::path& path) {
    PERCHERON_ASSIGN(const std::string text, read_text_file(path, largest_index));
    simdjson::dom::parser parser;
    simdjson::dom::element document;
    simdjson::dom::object map;
    if (const auto error = parser.parse(text).get(document); error != simdjson::SUCCESS) {
        return Error(ErrorCode::corrupt,
                     path.string() + ": is not JSON: " + simdjson::error_message(error));
    }
    if (document["weight_map"].get(map) != simdjson::SUCCESS) {
        return Error(ErrorCode::corrupt, path.string() + ": has no object 'weight_map'");
    }
    WeightMap result;
    for (const simdjson::dom::key_value_pair entry : map) {
        std::string_view file;
        const std::string tensor(entry.key);
        if (entry.value.get(file) != simdjson::SUCCESS) {
            return Error(ErrorCode::corrupt,
                         path.string() + ": tensor " + tensor + ": its file is not a string");
        }
        // A shard is a plain name in the same folder; nothing else may be opened by a checkpoint.
        if (file.empty() || file == "." || file == ".." ||
            file.find_first_of(std::string_view("/\\\0", 3)) != std::string_view::npos) {
            return Error(ErrorCode::corrupt, path.string() + ": tensor " + tensor +
                                                 ": its file is not a plain file name");
        }
        if (!result.emplace(tensor, file).second) {
            return Error(ErrorCode::corrupt,
                         path.string() + ": tensor " + tensor + ": is listed twice");
        }
    }
    return result;
}

bool is_there(const fs::path& path) {
    std::error_code error;
    return fs::exists(path, error);
}

// The only safetensors file of a folder, or an error that says why there is no such thing.
Result<fs::path> only_file(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> found;
    fs::directory_iterator entries(folder, error);
    for (; !error && entries != fs::directory_iterator(); entries.increment(error)) {
        if (entries->path().extension() == ".safetensors") found.push_back(entries->path());
    }
    if (error) {
        return Error(ErrorCode::not_found,
                     folder.string() + ": cannot list the folder: " + error.message());
    }
    if (found.empty()) {
        return Error(ErrorCode::not_found, folder.string() + ": holds no safetensors file");
    }
    if (found.size() > 1) {
        return Error(ErrorCode::not_found,
                     folder.string() + ": holds " + std::to_string(found.size()) +
                         " safetensors files but no model.safetensors.index.json that joins them");
    }
    return found.front();
}

}  // namespace

std::string describe(const TensorPlace& place) {
    return place.file->path().string() + ": tensor " + place.tensor->name;
}

ShardSet ShardSet::scan(const fs::path& folder, std::vector<Error>& problems) {
    ShardSet set;
    set.folder_ = folder;
    if (is_there(folder / "model.safetensors")) {
        set.add_file(folder / "model.safetensors", problems);
    } else if (is_there(folder / "model.safetensors.index.json")) {
        set.add_indexed(folder / "model.safetensors.index.json", problems);
    } else if (auto file = only_file(folder); file.ok()) {
        set.add_file(*file, problems);
    } else {
        problems.push_back(file.error());
    }
    return set;
}

void ShardSet::add_file(const fs::path& path, std::vector<Error>& problems) {
    auto file = SafetensorsFile::open(path);
    if (!file.ok()) {
        problems.push_back(file.error());
        return;
    }
    files_.push_back(std::move(file).value());
    const SafetensorsFile& added = files_.back();
    for (const StoredTensor& tensor : added.tensors()) {
        const TensorPlace place{&tensor, &added};
        has_trellis_ = has_trellis_ || tensor.name.ends_with(".trellis");
        const auto [entry, fresh] = places_.emplace(canonical_name(tensor.name), place);
        if (!fresh) {
            problems.emplace_back(
                ErrorCode::corrupt,
                describe(place) + ": is stored a second time as " + describe(entry->second));
        }
    }
}

void ShardSet::add_indexed(const fs::path& index, std::vector<Error>& problems) {
    auto weight_map = read_index(index);
    if (!weight_map.ok()) {
        problems.push_back(weight_map.error());
        return;
    }
    std::set<std::string> names;
    for (const auto& [tensor, file] : *weight_map) {
        names.insert(file);
    }
    std::set<std::string> unreadable;
    for (const std::string& name : names) {
        const std::size_t before = files_.size();
        add_file(index.parent_path() / name, problems);
        if (files_.size() == before) unreadable.insert(name);
    }
    for (const SafetensorsFile& file : files_) {
        const std::string name = file.path().filename().string();
        for (const StoredTensor& tensor : file.tensors()) {
            const auto entry = weight_map->find(tensor.name);
            if (entry == weight_map->end() || entry->second != name) {
                problems.emplace_back(ErrorCode::corrupt, describe({&tensor, &file}) +
                                                              ": the index does not put it there");
            }
        }
    }
    for (const auto& [tensor, file] : *weight_map) {
        if (unreadable.contains(file)) continue;  // said once for the whole file
        const TensorPlace place = find(canonical_name(tensor));
        if (!place) {
            problems.emplace_back(ErrorCode::corrupt,
                                  (index.parent_path() / file).string() + ": tensor " + tensor +
                                      ": the index promises it but it is not there");
        }
    }
}

TensorPlace ShardSet::find(std::string_view canonical) const {
    const auto entry = places_.find(std::string(canonical));
    return entry == places_.end() ? TensorPlace{} : entry->second;
}

}  // namespace percheron::checkpoint
