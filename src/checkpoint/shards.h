// The tensors of a model folder, from however many safetensors files it has.
//
// A folder holds model.safetensors, or model.safetensors.index.json ({"weight_map": {tensor:
// file}}) with the files it names, or one safetensors file of any other name.  With an index, files
// and index must agree in both directions.
#pragma once

#include <cstddef>
#include <deque>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/status.h"

namespace percheron::checkpoint {

// A tensor and the file it lies in.
struct TensorPlace {
    const StoredTensor* tensor = nullptr;
    const SafetensorsFile* file = nullptr;

    explicit operator bool() const { return tensor != nullptr; }
};

// "FOLDER/model-00001.safetensors: tensor NAME", the start of a message about it.
std::string describe(const TensorPlace& place);

class ShardSet {
  public:
    // Maps whatever can be read and lists everything that is wrong in `problems`.
    static ShardSet scan(const std::filesystem::path& folder, std::vector<Error>& problems);

    const std::filesystem::path& folder() const { return folder_; }
    const std::deque<SafetensorsFile>& files() const { return files_; }
    // By canonical name (names.h); empty if there is none.
    TensorPlace find(std::string_view canonical) const;
    const std::unordered_map<std::string, TensorPlace>& tensors() const { return places_; }
    // Whether a weight is stored in EXL3 (trellis.h), whose converter also keeps others in F16.
    bool has_trellis() const { return has_trellis_; }

  private:
    void add_file(const std::filesystem::path& path, std::vector<Error>& problems);
    void add_indexed(const std::filesystem::path& index, std::vector<Error>& problems);

    std::filesystem::path folder_;
    std::deque<SafetensorsFile> files_;  // a deque: places point into it
    std::unordered_map<std::string, TensorPlace> places_;
    bool has_trellis_ = false;
};

}  // namespace percheron::checkpoint
