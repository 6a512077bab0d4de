// Rows of floats in a file: activations of a whole calibration set, which for a large model are
// more than its memory, while the page cache keeps what fits.
#pragma once

#include <cstddef>
#include <filesystem>

#include "core/status.h"
#include "core/views.h"

namespace percheron::tools {

class RowFile {
  public:
    // A new file under "PATH.partial" that finish() gives its name; without it nothing is left.
    static Result<RowFile> create(const std::filesystem::path& path, std::size_t columns);
    // A finished one.  Errors: not_found; corrupt (its length is not `rows` rows).
    static Result<RowFile> open(const std::filesystem::path& path, std::size_t columns,
                                std::size_t rows);

    RowFile(RowFile&& other) noexcept;
    RowFile& operator=(RowFile&& other) noexcept;
    ~RowFile();

    std::size_t columns() const { return columns_; }

    // Rows [first, first + rows.rows); every row has columns() numbers.  Errors: io.
    Status write(std::size_t first, Rows<const float> rows);
    Status read(std::size_t first, Rows<float> rows) const;
    // `durable`: what the file holds outlives a loss of power.
    Status finish(bool durable);

  private:
    RowFile() = default;
    void drop();

    std::filesystem::path path_;
    std::size_t columns_ = 0;
    int descriptor_ = -1;
    bool unfinished_ = false;
};

}  // namespace percheron::tools
