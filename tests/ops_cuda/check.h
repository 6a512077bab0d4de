// The kernel tests run where nothing is installed, so they carry their own few lines of test
// framework: a registry, and checks that print what they saw.
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace percheron::check {

struct Case {
    const char* name;
    void (*body)();
};

std::vector<Case>& cases();
// Notes a failed check of the running case; the first few are printed.
void fail(const char* file, int line, const std::string& what);
void count_check();

struct Registration {
    Registration(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

}  // namespace percheron::check

#define KERNEL_TEST(name)                                                  \
    static void name();                                                    \
    static const percheron::check::Registration name##_entry(#name, name); \
    static void name()

#define CHECK_THAT(condition, ...)                                                           \
    do {                                                                                     \
        percheron::check::count_check();                                                     \
        if (!(condition)) {                                                                  \
            char text[512];                                                                  \
            std::snprintf(text, sizeof text, __VA_ARGS__);                                   \
            percheron::check::fail(__FILE__, __LINE__, std::string(#condition ": ") + text); \
        }                                                                                    \
    } while (false)

#define CHECK_OK(status)                                                                   \
    do {                                                                                   \
        const auto check_ok_result = (status);                                             \
        percheron::check::count_check();                                                   \
        if (!check_ok_result.ok())                                                         \
            percheron::check::fail(__FILE__, __LINE__, check_ok_result.error().message()); \
    } while (false)
