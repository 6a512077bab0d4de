// What `percheron serve` refuses on its command line: exit code 2 and a sentence that names the
// option, before anything is loaded or bound.
#include <array>
#include <cstdio>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace percheron {
namespace {

struct Outcome {
    int code = -1;
    std::string text;  // stdout and stderr
};

Outcome serve(const std::string& arguments) {
    const std::string command = std::string(PERCHERON_BINARY) + " serve " + arguments + " 2>&1";
    Outcome outcome;
    FILE* const pipe = ::popen(command.c_str(), "r");
    std::array<char, 4096> buffer;
    for (std::size_t count = 0; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;)
        outcome.text.append(buffer.data(), count);
    const int status = ::pclose(pipe);
    outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    return outcome;
}

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
            const Outcome outcome = serve(std::string(flag) + " " + value);
            EXPECT_EQ(outcome.code, 2) << flag << " " << value << ": " << outcome.text;
            EXPECT_NE(outcome.text.find(flag), std::string::npos) << outcome.text;
        }
    }
}

}  // namespace
}  // namespace percheron
