// A model as files, for those who rewrite files: a folder as it is, a made-up model written for the
// while into a folder of its own.
#pragma once

#include <filesystem>
#include <utility>

#include "core/status.h"

namespace percheron::tools {

class StoredModel {
  public:
    // `model` is of resolve_model(); a made-up one is written beside `out`, into ".OUT.made-up",
    // byte for byte and time for time the same whenever it is made.  Errors: those of synth().
    static Result<StoredModel> of(const std::filesystem::path& model,
                                  const std::filesystem::path& out);

    StoredModel(StoredModel&& other) noexcept;
    StoredModel& operator=(StoredModel&&) = delete;
    ~StoredModel();  // removes what was written

    const std::filesystem::path& folder() const { return folder_; }

  private:
    StoredModel(std::filesystem::path folder, bool written)
        : folder_(std::move(folder)), written_(written) {}

    std::filesystem::path folder_;
    bool written_;
};

}  // namespace percheron::tools
