// What `percheron serve` refuses on its command line: exit code 2 and a sentence that names the
// option, before anything is loaded or bound.
#include <array>
#include <string>

#include <gtest/gtest.h>

#include "tools/run_command.h"

namespace percheron {
namespace {

using tools::testing::CommandOutcome;
using tools::testing::run_command;

TEST(ServeFlags, ValuesThatMeanNothingAreRefusedByName) {
    const std::pair<const char*, std::array<const char*, 3>> wrong[] = {
        {"--max-body", {"0", "1023", "many"}},
        {"--model-name", {"''", "'a b'", "\"$(printf 'a\\nb')\""}},
        {"--port", {"65536", "-1", "x"}},
        {"--max-running", {"0", "-1", "x"}},
        {"--reasoning-effort", {"none", "''", "medium"}},
        {"--log-format", {"xml", "''", "JSON"}}};
    for (const auto& [flag, values] : wrong) {
        for (const char* value : values) {
            const CommandOutcome outcome = run_command("serve " + std::string(flag) + " " + value);
            EXPECT_EQ(outcome.code, 2) << flag << " " << value << ": " << outcome.err;
            EXPECT_NE(outcome.err.find(flag), std::string::npos) << outcome.err;
        }
    }
}

}  // namespace
}  // namespace percheron
