#include "ops/cpu/levels.h"

#include <cstdlib>
#include <optional>
#include <string>

#include <gmock/gmock.h>

#include "ops/cpu/cpu_backend.h"

namespace percheron::ops {
namespace {

class Levels : public testing::Test {
  protected:
    // The other tests of the program run at the level they were started with.
    Levels() {
        if (const char* const variable = std::getenv("PERCHERON_SIMD")) before_ = variable;
    }
    ~Levels() override {
        if (before_) {
            setenv("PERCHERON_SIMD", before_->c_str(), 1);
        } else {
            unsetenv("PERCHERON_SIMD");
        }
    }

  private:
    std::optional<std::string> before_;
};

TEST_F(Levels, EveryAvailableLevelCanBeForced) {
    const auto names = cpu::available_levels();
    ASSERT_FALSE(names.empty());
    EXPECT_EQ(names.front(), "generic");
    for (const std::string_view name : names) {
        ASSERT_TRUE(cpu::choose_level(name).ok());
        EXPECT_EQ(cpu::choose_level(name).value()->level, name);
        setenv("PERCHERON_SIMD", std::string(name).c_str(), 1);
        EXPECT_EQ(cpu::choose_level("").value()->level, name);
    }
}

TEST_F(Levels, AnUnknownOneIsAnErrorThatNamesTheAvailableOnes) {
    const auto wrong = cpu::choose_level("avx9000");
    ASSERT_FALSE(wrong.ok());
    EXPECT_EQ(wrong.error().code(), ErrorCode::invalid_argument);
    for (const std::string_view name : cpu::available_levels())
        EXPECT_THAT(wrong.error().message(), testing::HasSubstr(std::string(name)));
    setenv("PERCHERON_SIMD", "nonsense", 1);
    EXPECT_FALSE(cpu::choose_level("").ok());
    EXPECT_THAT(cpu::choose_level("").error().message(), testing::HasSubstr("PERCHERON_SIMD"));
    EXPECT_FALSE(make_cpu_backend({}).ok());
    EXPECT_TRUE(make_cpu_backend({.simd = "generic"}).ok()) << "an option beats the environment";
}

}  // namespace
}  // namespace percheron::ops
