// golden.safetensors: tensors that another implementation computed (scripts/make_golden.py says
// which and how).
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/status.h"

namespace percheron::tests {

// Any stored number type, widened.
struct GoldenTensor {
    std::vector<std::size_t> shape;
    std::vector<float> values;

    std::size_t rows() const { return shape.empty() ? 1 : shape[0]; }
    std::size_t row_size() const { return rows() == 0 ? 0 : values.size() / rows(); }
    const float* row(std::size_t index) const { return values.data() + index * row_size(); }
};

class GoldenFile {
  public:
    static Result<GoldenFile> open(const std::filesystem::path& folder);

    const std::filesystem::path& folder() const { return folder_; }
    // Names of all prompts: every X of an X.ids.
    const std::vector<std::string>& prompts() const { return prompts_; }
    // Names of all tensors.
    std::vector<std::string> names() const;
    std::vector<int> ids(const std::string& prompt) const;
    // Nullptr when the file has no such tensor.
    const GoldenTensor* find(const std::string& name) const;

  private:
    std::filesystem::path folder_;
    std::map<std::string, GoldenTensor> tensors_;
    std::vector<std::string> prompts_;
};

}  // namespace percheron::tests
