#include "dovetail/plan/device/host_tier.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "dovetail/plan/device/planned_allocator.h"
#include "dovetail/plan/model/packing.h"
#include "tests/base/temporary_folder.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::host_tier_test {
namespace {

/// Writes and reads slots and the mapping in random order, and compares with a plain array of the
/// same bytes.
void compare_with_an_array(const std::filesystem::path& folder) {
  constexpr int kPages = 32, kRounds = 4000;
  Random random(3);
  HostTier tier(folder, kPages * kPage);
  ::testing::Test::RecordProperty(folder.empty() ? "memory" : "direct", tier.direct() ? 1 : 0);
  const Arena buffer(kPages * kPage);
  std::vector<std::byte> array(kPages * kPage);
  for (int round = 0; round < kRounds; ++round) {
    const int first = draw(random, 0, kPages - 1), pages = draw(random, 1, kPages - first);
    const int64_t offset = first * kPage, bytes = pages * kPage;
    const auto value = static_cast<std::byte>(draw(random, 0, 255));
    switch (draw(random, 0, 3)) {
      case 0:
        std::fill_n(buffer.data(), bytes, value);
        tier.write(offset, buffer.data(), bytes);
        std::fill_n(array.begin() + offset, bytes, value);
        break;
      case 1: {  // some bytes, as a change between two steps
        const int64_t at = draw(random, 0, kPages * kPage - 1),
                      some = std::min<int64_t>(100, kPages * kPage - at);
        std::fill_n(tier.data() + at, some, value);
        std::fill_n(array.begin() + at, some, value);
        break;
      }
      case 2:
        tier.read(offset, buffer.data(), bytes);
        ASSERT_TRUE(std::equal(buffer.data(), buffer.data() + bytes, array.begin() + offset))
            << "read " << round;
        break;
      default:
        ASSERT_TRUE(std::equal(array.begin(), array.end(), tier.data())) << "mapping " << round;
    }
  }
}

TEST(HostTier, SlotsAndTheMappingAreTheSameBytes) {
  compare_with_an_array({});
  const test::TemporaryFolder folder;
  compare_with_an_array(folder.path());
}

}  // namespace
}  // namespace dovetail::plan::host_tier_test
