#include "dovetail/plan/device/paged_memory.h"

#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/proc_files.h"
#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/record/capture.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::plan::paged_memory_test {
namespace {

constexpr int64_t kElements = 16 << 20, kMiB = 1 << 20;

/// Returns resident memory of this process in MiB. Kinds: "RssAnon", anonymous memory; "RssFile",
/// file pages.
int64_t resident_mib(const std::string& kind) {
  return static_cast<int64_t>(kilobytes_of(read_file("/proc/self/status"), kind)) / kMiB;
}

TEST(PagedMemory, TensorsLieInAFileUntilTheyAreFreed) {
  const test::TemporaryFolder folder;
  const int64_t file = resident_mib("RssFile"), own = resident_mib("RssAnon");
  at::Tensor tensor, small;
  {
    const PagedAllocations paged(folder.path());
    tensor = at::full({kElements}, 3.0F);
    small = at::full({kPagedBytes / 8}, 4.0F);
  }
  const int64_t bytes = kElements * 4 / kMiB;
  EXPECT_GE(resident_mib("RssFile"), file + bytes);
  EXPECT_LT(resident_mib("RssAnon"), own + bytes / 4);
  const at::Tensor after = at::full({kElements}, 5.0F);
  EXPECT_GE(resident_mib("RssAnon"), own + bytes);
  EXPECT_EQ(tensor.eq(3.0F).all().item<bool>(), true);
  tensor.reset();
  EXPECT_LT(resident_mib("RssFile"), file + bytes / 4);
  EXPECT_EQ(small.eq(4.0F).all().item<bool>(), true);
}

TEST(PagedMemory, TheLastOneMadeCounts) {
  const test::TemporaryFolder folder;
  const int64_t own = resident_mib("RssAnon");
  const PagedAllocations outer(folder.path());
  {
    const PagedAllocations inner(folder.path());
  }
  const at::Tensor tensor = at::full({kElements}, 3.0F);
  EXPECT_LT(resident_mib("RssAnon"), own + kElements * 4 / kMiB / 4);
}

TEST(PagedMemory, GivesZerosThatDoNotOverlap) {
  const test::TemporaryFolder folder;
  PagedMemory memory(folder.path());
  std::vector<std::byte*> pieces;
  for (int i = 0; i < 40; ++i) {
    const int64_t bytes = kPage * (1 + i % 3) - i;
    std::byte* piece = memory.allocate(bytes);
    for (int64_t b = 0; b < bytes; ++b) ASSERT_EQ(piece[b], std::byte{0});
    std::fill_n(piece, bytes, static_cast<std::byte>(i + 1));
    pieces.push_back(piece);
    if (i % 4 == 3) memory.release(pieces[i - 2]);
  }
  for (int i = 0; i < 40; ++i) {
    if (i % 4 == 1) continue;
    EXPECT_EQ(pieces[i][0], static_cast<std::byte>(i + 1));
    EXPECT_EQ(pieces[i][kPage * (1 + i % 3) - i - 1], static_cast<std::byte>(i + 1));
  }
}

// A step whose tensors are in paged memory is recorded like any other.
TEST(PagedMemory, ARecordedStepIsTheSame) {
  const test::TemporaryFolder folder;
  at::Tensor weight = at::full({256, 256}, 0.5F);
  const auto step = [&] {
    const at::Tensor x = weight.mm(weight).relu();
    weight.add_(x, 1e-6);
    return std::vector{x.sum()};
  };
  const StepTensors tensors{.parameters = {{"weight", weight}}};
  const CapturedStep plain = record_step(step, tensors);
  const PagedAllocations paged(folder.path());
  CapturedStep again = record_step(step, tensors);
  EXPECT_NO_THROW(check_steady(plain, again));
}

TEST(PagedMemory, SaysWhereNoFileCanBe) { EXPECT_THROW(PagedMemory("/nowhere"), UserError); }

}  // namespace
}  // namespace dovetail::plan::paged_memory_test
