#include "dovetail/plan/device/step_device.h"

#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/packing.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::plan::step_device_test {
namespace {

/// Streams of the CPU with a slow tier in memory and in a file.
class CpuStreams : public ::testing::TestWithParam<bool> {
 protected:
  static constexpr int64_t kBytes = 64 * kPage;
  const test::TemporaryFolder folder_;
  const StepDevice& device_ = step_device(c10::kCPU);
  std::unique_ptr<Region> region_ = device_.region(2 * kBytes);
  std::unique_ptr<StepStreams> streams_ =
      device_.streams(GetParam() ? folder_.path() : std::filesystem::path{}, kBytes);
};

TEST_P(CpuStreams, ACopyWaitsForCopiesBeforeIt) {
  std::fill_n(region_->data(), kBytes, std::byte{7});
  for (int round = 0; round < 20; ++round) {
    streams_->begin(3, /*timed=*/true);
    streams_->offload(0, {.address = region_->data(), .bytes = kBytes});
    streams_->prefetch(1, {.address = region_->data() + kBytes, .bytes = kBytes, .waits = {0}});
    streams_->await(1);
    EXPECT_EQ(std::memcmp(region_->data(), region_->data() + kBytes, kBytes), 0);
    streams_->compute_begins(2);
    streams_->compute_ends(2);
    const auto spans = streams_->end();
    ASSERT_EQ(spans.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_GT(spans[i].end_s, 0);
      if (i > 0) {
        EXPECT_GE(spans[i].start_s, spans[i - 1].end_s);
      }
    }
    std::fill_n(region_->data(), kBytes, static_cast<std::byte>(round));
  }
}

TEST_P(CpuStreams, AnActionWithoutACopyIsNotAwaited) {
  streams_->begin(2, /*timed=*/false);
  streams_->await(1);
  streams_->end();
}

INSTANTIATE_TEST_SUITE_P(Tiers, CpuStreams, ::testing::Bool());

TEST(StepDevice, IsACpuOrAGpu) {
  try {
    step_device(c10::kMeta);
    ADD_FAILURE() << "a meta device runs no step";
  } catch (const UserError& error) {
    EXPECT_NE(std::string(error.what()).find("on a CPU or a CUDA GPU, not on meta"),
              std::string::npos);
  }
}

TEST(StepDevice, DropsAllButWhatIsKept) {
  const auto region = step_device(c10::kCPU).region(8 * kPage);
  std::fill_n(region->data(), 8 * kPage, std::byte{1});
  region->drop_all_but({{0, kPage}, {3 * kPage, 2 * kPage}});
  const auto sum = [&](int64_t page) {
    return std::count(region->data() + page * kPage, region->data() + (page + 1) * kPage,
                      std::byte{1});
  };
  for (int64_t page = 0; page < 8; ++page)
    EXPECT_EQ(sum(page), page == 0 || page == 3 || page == 4 ? kPage : 0) << page;
}

}  // namespace
}  // namespace dovetail::plan::step_device_test
