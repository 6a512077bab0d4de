// `percheron chat` as a script sees it: piped input, no terminal.
#include <cstdio>
#include <string>

#include <gtest/gtest.h>
#include <sys/wait.h>

namespace percheron::tools {
namespace {

struct Outcome {
    std::string output;
    int exit_code = -1;
};

Outcome chat(const std::string& input, const std::string& flags, const std::string& redirect) {
    const std::string command = "printf '" + input + "' | " + PERCHERON_BINARY + " chat " + flags +
                                " --kv-memory 32MiB " + redirect;
    Outcome outcome;
    std::FILE* pipe = popen(command.c_str(), "r");
    if (pipe == nullptr) {
        return outcome;
    }
    char buffer[4096];
    while (const std::size_t got = std::fread(buffer, 1, sizeof buffer, pipe)) {
        outcome.output.append(buffer, got);
    }
    outcome.exit_code = WEXITSTATUS(pclose(pipe));
    return outcome;
}

std::size_t count(const std::string& text, const std::string& part) {
    std::size_t found = 0;
    for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) {
        ++found;
    }
    return found;
}

TEST(Chat, AnswersEveryLineAndSaysHowFast) {
    const Outcome outcome =
        chat("What is 17 + 25?\\n\\n/reset\\nWhat is 3 + 4?\\n/exit\\nnot read\\n",
             "--temperature 0 --max-tokens 200 --draft mtp --draft-depth 1", "2>/dev/null");
    EXPECT_EQ(outcome.exit_code, 0);
    EXPECT_NE(outcome.output.find("17 + 25 = 42"), std::string::npos) << outcome.output;
    EXPECT_EQ(count(outcome.output, " tok/s; prompt of "), 2u) << outcome.output;
    EXPECT_EQ(count(outcome.output, " drafts accepted]"), 2u) << outcome.output;
    // Not a terminal: no escape codes, no prompt sign, no tags.
    EXPECT_EQ(outcome.output.find('\033'), std::string::npos);
    EXPECT_EQ(outcome.output.find("> "), std::string::npos);
    EXPECT_EQ(outcome.output.find("</think>"), std::string::npos);
}

// The second turn sees the first; after /reset it does not.
TEST(Chat, RemembersTheConversationUntilReset) {
    const auto second_prompt = [](const std::string& between) {
        const Outcome outcome = chat("What is 1 + 1?\\n" + between + "What is 1 + 1?\\n",
                                     "--temperature 0 --max-tokens 4", "2>/dev/null");
        const std::size_t last = outcome.output.rfind("prompt of ");
        return last == std::string::npos ? -1 : std::atoi(outcome.output.c_str() + last + 10);
    };
    const int fresh = second_prompt("/reset\\n");
    EXPECT_GT(fresh, 0);
    EXPECT_GT(second_prompt(""), fresh + 4);
}

TEST(Chat, AThinkingBudgetStillGetsAnAnswer) {
    const Outcome outcome =
        chat("What is 17 + 25?\\n", "--temperature 0 --max-tokens 100 --thinking-budget 5",
             "2>/dev/null");
    EXPECT_EQ(outcome.exit_code, 0);
    // Five tokens of thinking, an empty line, then an answer.
    const std::size_t gap = outcome.output.find("\n\n");
    ASSERT_NE(gap, std::string::npos) << outcome.output;
    EXPECT_NE(outcome.output.find_first_not_of("\n", gap), outcome.output.find('['));
}

TEST(Chat, ErrorsAreOneSentenceAndAnExitCode) {
    const Outcome missing = chat("hello\\n", "/nowhere/at/all", "2>&1");
    EXPECT_EQ(missing.exit_code, 1);
    EXPECT_EQ(count(missing.output, "\n"), 1u) << missing.output;
    EXPECT_NE(missing.output.find("percheron chat: "), std::string::npos);
    const Outcome fp4 = chat("hello\\n", "--kv-dtype fp4", "2>&1");
    EXPECT_EQ(fp4.exit_code, 2);
    EXPECT_NE(fp4.output.find("--kv-dtype"), std::string::npos);
    EXPECT_EQ(chat("", "--no-such-flag", "2>/dev/null").exit_code, 2);
}

// A script learns that a message got no reply, also when a later one did.
TEST(Chat, AMessageWithoutAReplyIsAFailure) {
    std::string long_message;
    for (int i = 0; i < 400; ++i)
        long_message += "word ";
    const Outcome outcome = chat(long_message + "\\nWhat is 1 + 1?\\n",
                                 "--temperature 0 --max-tokens 4 --context 128", "2>&1");
    EXPECT_EQ(outcome.exit_code, 1);
    EXPECT_NE(outcome.output.find("percheron chat: "), std::string::npos) << outcome.output;
    EXPECT_EQ(count(outcome.output, " tok/s; prompt of "), 1u) << outcome.output;
}

}  // namespace
}  // namespace percheron::tools
