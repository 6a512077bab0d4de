// Every command of the binary.  A command adds its subcommand to the app; its callback does the
// work and leaves the exit code: 0 done, 1 the work failed, 2 wrong usage.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include <CLI/App.hpp>

#include "core/status.h"

namespace percheron::apps {

using AddCommand = std::function<void(CLI::App& app, int& exit_code)>;

std::vector<AddCommand> all_commands();

// Says a fault as "percheron COMMAND: …" on stderr; names in it may come from files.
void say_fault(std::string_view command, std::string_view message);
// 0, or 1 after the fault was said.
int exit_code_of(const Status& done, std::string_view command);

void add_draft(CLI::App& app, int& exit_code);
void add_eval(CLI::App& app, int& exit_code);
void add_inspect(CLI::App& app, int& exit_code);
void add_quality(CLI::App& app, int& exit_code);
void add_quantize(CLI::App& app, int& exit_code);
void add_chat(CLI::App& app, int& exit_code);
void add_bench_streams(CLI::App& app, int& exit_code);
void add_rank(CLI::App& app, int& exit_code);
void add_score(CLI::App& app, int& exit_code);
void add_synth(CLI::App& app, int& exit_code);
void add_top(CLI::App& app, int& exit_code);

void add_serve(CLI::App& app, int& exit_code);  // serve.cpp
void add_bench(CLI::App& app, int& exit_code);  // bench.cpp
// Parts of `bench`.
void add_bench_machine(CLI::App& bench, int& exit_code);
void add_bench_step(CLI::App& bench, int& exit_code);
void add_bench_resend(CLI::App& bench, int& exit_code);
void add_bench_restore(CLI::App& bench, int& exit_code);

}  // namespace percheron::apps
