// A folder that a new checkpoint is written to.
#pragma once

#include <filesystem>

#include "percheron/types.h"

#include "core/status.h"

namespace percheron::tools {

// Errors: io, if the disk `out` is on or would be on has fewer than `bytes` bytes free.
Status check_free_space(const std::filesystem::path& out, Bytes bytes);

// Makes the folder.  Errors: invalid_argument if it is no folder or holds a checkpoint or a file
// that copy_companions() would replace; io, also if the disk has fewer than `bytes` bytes free.
Status make_output_folder(const std::filesystem::path& out, Bytes bytes = 0);

// Copies the files beside the weights that a folder needs to be a whole model: tokenizer, template,
// processors and, unless left out, generation_config.json.  Those that `from` lacks are skipped.
enum class Companions { all, tokenizer_only };
Status copy_companions(const std::filesystem::path& from, const std::filesystem::path& to,
                       Companions which);

}  // namespace percheron::tools
