// What numbers on the command line must be, in words that say what to change.
#pragma once

#include <CLI/CLI.hpp>

namespace percheron::apps {

// For --threads, --repeat and the like: 0 and less mean nothing.
CLI::Validator positive_number();

// Gives every option that takes a count or another number a check: the library lets -1 be the
// largest count, and nan be in every range.
void check_counts(CLI::App& app);

}  // namespace percheron::apps
