// Task accuracy: fixed items with known answers, asked greedily of a model through the engine, and
// two models compared on the same items pair by pair.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "percheron/engine.h"

#include "core/status.h"
#include "text/chat_prompt.h"

namespace percheron::tools {

struct TaskItem {
    enum class Check {
        text,    // the reply after its reasoning, stripped, equals `want`
        number,  // its last number equals the last number of `want`
    };
    std::string task;
    nlohmann::ordered_json messages;
    nlohmann::ordered_json tools;  // null: none
    std::string reasoning_effort;
    Check check = Check::text;
    std::string want;
};

// One JSON object a line, plain or zstd-compressed: task, messages, tools, reasoning_effort, check,
// want.  Images are described, not carried (drawn_pictures.h).  Errors name file and line.
Result<std::vector<TaskItem>> read_task_items(const std::filesystem::path& file);

// The first `limit` items of every task; with `tasks` given, of those only.
// Errors: invalid_argument when a named task has no item.
Result<std::vector<TaskItem>> choose_task_items(std::vector<TaskItem> items,
                                                std::span<const std::string> tasks,
                                                std::optional<std::size_t> limit);

// One of several shares of a run: every `of`-th item from the `number`-th on.
struct TaskPart {
    std::size_t number = 1;  // 1 .. of
    std::size_t of = 1;
};

// "2/16".  Errors: invalid_argument.
Result<TaskPart> parse_task_part(std::string_view text);

std::vector<TaskItem> part_of_items(std::vector<TaskItem> items, TaskPart part);

// Whether a reply (its text with tags, without the closing stop token) answers the item.
bool answers(const TaskItem& item, std::string_view reply);

struct TaskRunOptions {
    std::uint32_t streams = 32;      // requests in flight
    std::uint32_t max_tokens = 170;  // of one reply
};

// Asks every item greedily and tells of each, in the order they end, whether it was answered.
// Errors: the engine's, the template's, or what `answered` returns.
using TaskAnswered = std::function<Status(std::size_t item, bool right)>;
Status run_tasks(Engine& engine, const ChatFormat& format, std::span<const TaskItem> items,
                 const TaskRunOptions& options, const TaskAnswered& answered);

struct TaskScore {
    std::string task;
    std::size_t items = 0;
    std::size_t right = 0;

    double accuracy() const { return static_cast<double>(right) / static_cast<double>(items); }
};

// By task, in the order of first appearance.
std::vector<TaskScore> score_tasks(std::span<const TaskItem> items, const std::vector<bool>& right);

// Accuracy of `model` minus accuracy of `base` on the same items.
struct TaskDifference {
    std::string task;
    std::size_t items = 0;
    double base = 0;        // accuracy
    double model = 0;       // accuracy
    double difference = 0;  // model - base
    // Half width of the 95 % band: 1.96 standard errors of the paired difference; none of one item.
    std::optional<double> band;
};

std::vector<TaskDifference> compare_tasks(std::span<const TaskItem> items,
                                          const std::vector<bool>& base,
                                          const std::vector<bool>& model);

}  // namespace percheron::tools
