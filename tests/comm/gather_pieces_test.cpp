#include "dovetail/comm/gather_pieces.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <memory>
#include <random>
#include <vector>

#include "ranks.h"

namespace dovetail::comm::gather_pieces_test {
namespace {

/// Tensor cut into pieces.
struct Cut {
  at::Tensor whole;
  std::vector<int64_t> sizes;
  int owner = -1;

  at::Tensor piece(int rank) const { return whole.split_with_sizes(sizes)[rank]; }
};

std::vector<Cut> random_cuts(int ranks, at::ScalarType dtype, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<Cut> cuts(12);
  double first = 0;
  for (Cut& cut : cuts) {
    int64_t all = 0;
    for (int r = 0; r < ranks; ++r) {
      constexpr int64_t kSizes[] = {0, 0, 1, 31, 33, 257};
      all += cut.sizes.emplace_back(kSizes[random() % std::size(kSizes)]);
    }
    cut.owner = static_cast<int>(random() % static_cast<uint64_t>(ranks + 1)) - 1;
    cut.whole = at::arange(all, at::kDouble).add_(first).to(dtype);
    first += 1000;
  }
  return cuts;
}

class GatherPieces : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, GatherPieces, ::testing::Values(1, 2, 3, 4));

TEST_P(GatherPieces, EachOwnerGetsItsTensorsWholeAndNobodyElse) {
  const int n = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (uint64_t seed = 0; seed < 4; ++seed) {
      const std::vector<Cut> cuts = random_cuts(n, dtype, seed);
      expect_all_succeed(n, [&](const std::shared_ptr<Group>& group) {
        const int rank = group->rank();
        std::vector<Pieces> tensors;
        int64_t sent = 0, received = 0;
        for (const Cut& cut : cuts) {
          const at::Tensor mine = cut.piece(rank);
          tensors.push_back({.sizes = cut.sizes,
                             .owner = cut.owner,
                             .mine = mine.numel() > 0 ? mine : at::Tensor()});
          if (cut.owner >= 0 && cut.owner != rank) sent += static_cast<int64_t>(mine.nbytes());
          if (cut.owner == rank)
            received += static_cast<int64_t>(cut.whole.nbytes() - mine.nbytes());
        }
        const auto found = gather_pieces(*group, tensors, at::dtype(dtype));
        ASSERT_EQ(found.size(), cuts.size());
        for (size_t i = 0; i < cuts.size(); ++i) {
          ASSERT_EQ(found[i].defined(), cuts[i].owner == rank) << i;
          if (found[i].defined()) {
            EXPECT_TRUE(at::equal(found[i], cuts[i].whole)) << i;
          }
        }
        EXPECT_EQ(group->all_to_all_traffic().bytes_sent, sent);
        EXPECT_EQ(group->all_to_all_traffic().bytes_received, received);
      });
    }
  }
}

TEST_P(GatherPieces, TheOnlyPieceStaysWhereItIs) {
  const int n = GetParam();
  expect_all_succeed(n, [&](const std::shared_ptr<Group>& group) {
    std::vector<Pieces> tensors;
    for (int owner = 0; owner < n; ++owner) {
      Pieces& one = tensors.emplace_back();
      one.sizes.assign(static_cast<size_t>(n), 0);
      one.sizes[static_cast<size_t>(owner)] = 7;
      one.owner = owner;
      if (owner == group->rank()) one.mine = at::arange(7, at::kFloat);
    }
    const auto found = gather_pieces(*group, tensors, at::kFloat);
    const auto own = static_cast<size_t>(group->rank());
    EXPECT_TRUE(found[own].is_alias_of(tensors[own].mine));
    EXPECT_EQ(group->all_to_all_traffic().calls, 0);
  });
}

}  // namespace
}  // namespace dovetail::comm::gather_pieces_test
