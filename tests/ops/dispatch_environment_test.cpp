#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/ops/testing.h"

// The environment is read once a process, so each test reads it in a child of its own.
namespace dovetail::ops::dispatch_environment_test {
namespace {

void exit_with(bool right) { std::exit(right ? 0 : 1); }

TEST(DispatchEnvironment, SimdLevelIsHonoured) {
  EXPECT_EXIT((setenv("DOVETAIL_SIMD", "scalar", 1), exit_with(simd_level() == SimdLevel::kScalar)),
              ::testing::ExitedWithCode(0), "");
}

TEST(DispatchEnvironment, UnknownSimdLevelIsRefused) {
  EXPECT_EXIT(
      (setenv("DOVETAIL_SIMD", "avx1024", 1),
       exit_with(testing::user_error([] { simd_level(); }).find("avx1024") != std::string::npos)),
      ::testing::ExitedWithCode(0), "");
}

TEST(DispatchEnvironment, DisabledKernelsAreHonoured) {
  EXPECT_EXIT((setenv("DOVETAIL_DISABLE", "attention,adamw", 1),
               exit_with(!kernel_enabled(Kernel::kAttention) && !kernel_enabled(Kernel::kAdamW) &&
                         kernel_enabled(Kernel::kGemm))),
              ::testing::ExitedWithCode(0), "");
}

TEST(DispatchEnvironment, UnknownKernelIsRefused) {
  EXPECT_EXIT((setenv("DOVETAIL_DISABLE", "atention", 1),
               exit_with(testing::user_error([] {
                           kernel_enabled(Kernel::kGemm);
                         }).find("atention") != std::string::npos)),
              ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace dovetail::ops::dispatch_environment_test
