// OUT while it is being written: OUT/.quantize holds finished parts, one file a shard, and a record
// a section, so that a run that was stopped goes on behind the last finished section.
//
//   lock               whose it is now: one run at a time
//   run.json           what is being done; another run does not go on from here
//   part-00007         a shard, complete
//   section-2.json     the section's account, and size and checksum of every file that it left
//   streams-2, …       activations of the calibration (quantize_layers.h)
//
// A section of which anything is not as its record says, the record included, is done again.
#pragma once

#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/safetensors_writer.h"
#include "core/file_lock.h"
#include "core/status.h"

namespace percheron::tools {

class QuantizeFolder {
  public:
    // Makes the folder, or finds the run described by `run` in it.  `bytes` is what the whole run
    // writes at most; a disk that has not as much free, what is already there counted in, is
    // refused.  Errors: invalid_argument (no folder, a checkpoint is there, an unfinished run that
    // differs: names the first difference); unavailable (another process writes it); io.
    static Result<QuantizeFolder> open(const std::filesystem::path& out, const std::string& run,
                                       Bytes bytes);

    const std::filesystem::path& state() const { return state_; }
    std::filesystem::path part(std::size_t shard) const;

    // What write_record() was given, where the record and the section's parts, `all_parts` being
    // those of the whole run, are as they were left.  Absent: the section is to be done; a warning
    // says what was damaged.
    std::optional<std::string> record(std::size_t section, std::size_t all_parts) const;
    // Whether a file that the section left in state() beside its parts is as it was left.
    bool holds(std::size_t section, const std::filesystem::path& file) const;
    // The section is done and left these files in state(), those of part() among them.
    Status write_record(std::size_t section, const std::string& account,
                        std::span<const std::filesystem::path> files);

    // Gives the parts their final names, or joins them into model.safetensors if `limit` bytes are
    // enough for all; writes the index of several.  May be repeated after a stop.
    Status publish(const std::vector<std::vector<checkpoint::TensorHeader>>& shards, Bytes limit);
    // Removes what only a run needs.  The folder is a checkpoint before that.
    Status remove_state();

  private:
    QuantizeFolder(std::filesystem::path out, std::filesystem::path state, std::string run,
                   FileLock lock)
        : out_(std::move(out)),
          state_(std::move(state)),
          run_(std::move(run)),
          lock_(std::move(lock)) {}
    std::filesystem::path record_path(std::size_t section) const;
    Status join(const std::vector<std::vector<checkpoint::TensorHeader>>& shards);

    std::filesystem::path out_, state_;
    std::string run_;  // checksum of its description
    FileLock lock_;
};

}  // namespace percheron::tools
