#include "ops/cpu/levels.h"

#include <cstdlib>

#include <gmock/gmock.h>

#include "ops/cpu/cpu_backend.h"

namespace percheron::ops {
namespace {

class Levels : public testing::Test {
  protected:
    void TearDown() override { unsetenv("PERCHERON_SIMD"); }
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
