#include <fmt/format.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "ranks.h"

// Messages of any length, by collectives that have one size for all.
namespace dovetail::comm::messages_test {
namespace {

class Messages : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Messages, ::testing::Values(1, 2, 3, 4));

std::string message_of(int rank, size_t size) {
  std::string out(size, ' ');
  for (size_t i = 0; i < size; ++i)
    out[i] = static_cast<char>(i * 7 + static_cast<size_t>(rank) * 31);
  return out;
}

TEST_P(Messages, EveryRankHasThoseOfAllWhateverWasExpected) {
  const int n = GetParam();
  for (const int64_t expected : {0, 1, 100, 10000})
    for (const std::vector<size_t>& sizes : {std::vector<size_t>{0, 0, 0, 0},
                                             {0, 1, 99, 100},
                                             {100, 100, 100, 100},
                                             {101, 0, 100, 7},
                                             {5, 70000, 0, 3}})
      expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
        const auto size = [&](int rank) { return sizes[static_cast<size_t>(rank)]; };
        const auto all =
            all_gather_bytes(*group, message_of(group->rank(), size(group->rank())), expected);
        ASSERT_EQ(std::ssize(all), n);
        for (int r = 0; r < n; ++r)
          EXPECT_EQ(all[static_cast<size_t>(r)], message_of(r, size(r))) << expected;
      });
}

TEST_P(Messages, AgreeSaysEveryErrorOnEveryRank) {
  const int n = GetParam();
  expect_all_succeed(n,
                     [&](std::shared_ptr<Group> group) { agree(*group, "reading the data", ""); });
  const auto errors = run_ranks(n, [&](std::shared_ptr<Group> group) {
    const bool bad = group->rank() == 0 || group->rank() == 2;
    agree(*group, "reading the data",
          bad ? fmt::format("no file {}", std::string(static_cast<size_t>(group->rank()) + 1, 'x'))
              : "");
  });
  const std::string all = n < 3 ? "reading the data: rank 0: no file x"
                                : "reading the data: rank 0: no file x; rank 2: no file xxx";
  for (const auto& error : errors) EXPECT_EQ(error, all);
}

}  // namespace
}  // namespace dovetail::comm::messages_test
