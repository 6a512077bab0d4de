// The program as a shell sees it.
#pragma once

#include <cstdio>
#include <string>

#include <sys/wait.h>

#include "checkpoint/small_model.h"
#include "core/files.h"

namespace percheron::tools::testing {

struct CommandOutcome {
    int code = -1;
    std::string out;
    std::string err;
};

// `percheron ARGUMENTS`, with VARIABLE=VALUE before it perhaps.
inline CommandOutcome run_command(const std::string& arguments,
                                  const std::string& environment = "") {
    const checkpoint::test::TemporaryFolder folder;
    const std::string error_file = (folder.path() / "stderr").string();
    const std::string command =
        environment + " " + PERCHERON_BINARY + " " + arguments + " 2>" + error_file;
    CommandOutcome outcome;
    FILE* pipe = ::popen(command.c_str(), "r");
    char buffer[4096];
    for (std::size_t count = 0; (count = std::fread(buffer, 1, sizeof(buffer), pipe)) > 0;) {
        outcome.out.append(buffer, count);
    }
    const int status = ::pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    outcome.err = *read_text_file(error_file, 1u << 20);
    return outcome;
}

}  // namespace percheron::tools::testing
