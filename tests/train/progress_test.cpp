#include "dovetail/train/run/progress.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/train/run/tensorboard.h"

namespace dovetail::train::progress_test {
namespace {

const ProgressState kMidway = {.step = 640,
                               .steps = 1000,
                               .loss = 1.9123,
                               .validation_loss = 1.9341,
                               .tokens_per_s = 18420,
                               .utilization = 0.412,
                               .eta_s = 72};

/// Returns the width of a text in terminal columns. This is the number of code points, since each
/// is one column wide here.
int columns_of(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xc0) != 0x80; }));
}

TEST(ProgressText, SaysWhatMattersOnPlainLines) {
  const std::string text = progress_text(kMidway, 0);
  EXPECT_EQ(text,
            " step  640/1000   64 %  loss 1.912  val 1.934  18.4k tok/s  41 % of peak  eta 1:12");
}

TEST(ProgressText, SaysHowEachTaskRanks) {
  ProgressState state = kMidway;
  state.auc = "late 0.6512, cancelled 0.7021";
  EXPECT_THAT(progress_text(state, 0),
              ::testing::HasSubstr("val 1.934  auc late 0.6512, cancelled 0.7021  18.4k tok/s"));
}

TEST(ProgressText, FitsEveryTerminal) {
  const int plain = columns_of(progress_text(kMidway, 0));
  for (int columns = plain; columns < 300; ++columns) {
    EXPECT_LE(columns_of(progress_text(kMidway, columns)), columns);
  }
}

TEST(ProgressText, TheBarFollowsTheFraction) {
  for (const int64_t step : {0, 1, 500, 999, 1000}) {
    ProgressState state = kMidway;
    state.step = step;
    const std::string text = progress_text(state, 140);
    int heavy = 0, cells = 0;
    for (const auto& [mark, value] : {std::pair{"━", 2}, {"╸", 1}, {"─", 0}}) {
      for (size_t at = text.find(mark); at != std::string::npos; at = text.find(mark, at + 1)) {
        heavy += value;
        ++cells;
      }
    }
    EXPECT_EQ(cells, 32);
    EXPECT_NEAR(heavy / 64.0, static_cast<double>(step) / 1000.0, 0.5 / 64 + 1e-9);
  }
}

TEST(ProgressText, LeavesOutWhatIsUnknown) {
  const std::string text =
      progress_text({.step = 5, .steps = 5, .loss = 2, .tokens_per_s = 3e6}, 0);
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("val")));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("peak")));
  EXPECT_THAT(text, ::testing::Not(::testing::HasSubstr("eta")));
  EXPECT_THAT(text, ::testing::HasSubstr("3.00M tok/s"));
}

// RFC 3720, B.4.
TEST(Crc32c, FollowsThePublishedVectors) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  EXPECT_EQ(crc32c(""), 0u);
}

}  // namespace
}  // namespace dovetail::train::progress_test
