// What is known of each task item's outcome, kept in a file as it becomes known: a long evaluation
// that was stopped goes on where it was, and parts run on several machines are joined by `cat`.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <unordered_map>

#include "core/status.h"
#include "tools/eval_tasks.h"

namespace percheron::tools {

// Identifies what was asked: equal for items that ask the same, on every machine.
std::uint64_t item_key(const TaskItem& item);

// Identifies who was asked: the configuration's content, every shard's name and size, and how long
// a reply may be.  Errors: the folder or its config.json cannot be read.
Result<std::string> asked_model(const std::filesystem::path& folder, std::uint32_t max_tokens);

class TaskRecord {
  public:
    // Only in memory.
    TaskRecord() = default;

    // Reads what `file` knows and will append to it; the file is made when absent.  Lines:
    // {"model": ..., "item": "16 hex digits", "right": bool}.  A last line cut off by a killed
    // process is dropped.  Errors: io when the file cannot be read or written, corrupt for a line
    // that is none, invalid_argument when a line is of another model.
    static Result<TaskRecord> open(const std::filesystem::path& file, const std::string& model);

    std::optional<bool> outcome(std::uint64_t key) const;

    // Known from now on, and on its way to the file before the call returns.
    // Errors: io when the file takes no more.
    Status add(std::uint64_t key, bool right);

  private:
    std::string model_;
    std::filesystem::path file_;
    std::ofstream stream_;
    std::unordered_map<std::uint64_t, bool> outcomes_;
};

}  // namespace percheron::tools
