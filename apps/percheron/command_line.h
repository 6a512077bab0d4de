// What this process was started as, as one would write it in a shell.
#pragma once

#include <fstream>
#include <iterator>
#include <string>

namespace percheron::apps {

// Empty where the system does not say.
inline std::string command_line() {
    std::ifstream file("/proc/self/cmdline", std::ios::binary);
    const std::string words((std::istreambuf_iterator<char>(file)),
                            std::istreambuf_iterator<char>());
    std::string line;
    for (std::size_t start = 0; start < words.size();) {
        const std::size_t end = words.find('\0', start);
        const std::string word = words.substr(start, end - start);
        start = end == std::string::npos ? words.size() : end + 1;
        if (!line.empty()) line += ' ';
        if (!word.empty() && word.find_first_of(" \t\n\"'\\$`*?[]{}()<>|&;#~!") == word.npos) {
            line += word;
            continue;
        }
        line += '\'';
        for (const char letter : word)
            line += letter == '\'' ? "'\\''" : std::string(1, letter);
        line += '\'';
    }
    return line;
}

}  // namespace percheron::apps
