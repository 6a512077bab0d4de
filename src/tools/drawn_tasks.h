// The vision tasks that the embedded model was trained for, drawn anew from a seed: no pictures are
// stored, and the same seed gives the same items everywhere.
//
//   vision colour    a shape on a ground: the colour of either
//   vision shape     circle, square, triangle or cross
//   vision count     one to seven equal shapes
//   vision position  in which of nine places a shape stands
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tools/eval_tasks.h"

namespace percheron::tools {

// `count` items of every task, task by task.  The first n items of a task are the same for any
// count of at least n.
std::vector<TaskItem> draw_task_items(std::size_t count, std::uint64_t seed);

}  // namespace percheron::tools
