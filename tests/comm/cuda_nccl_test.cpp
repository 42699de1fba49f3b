// ctest-labels: cuda
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "dovetail/base/gpu.h"
#include "dovetail/comm/nccl_group.h"
#include "ranks.h"

namespace dovetail::comm::cuda_nccl_test {
namespace {

/// A tensor that differs by rank, of small whole numbers.
at::Tensor of_rank(int rank, at::ScalarType dtype, int rows) {
  return (torch::arange(rows * 2003).remainder(5) + rank).reshape({rows, 2003}).to(dtype);
}

/// Compares each collective on a GPU with sums and copies made on the CPU.
void expect_collectives(Group& group) {
  const int n = group.size(), rank = group.rank();
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kInt}) {
    at::Tensor expected = torch::zeros({n, 2003}, at::kDouble);
    for (int r = 0; r < n; ++r) expected += of_rank(r, dtype, n).to(at::kDouble) + 1;
    at::Tensor sum = of_rank(rank, dtype, n).to(at::kCUDA);
    sum.add_(1);  // queued before the sum
    group.all_reduce(sum);
    EXPECT_TRUE(torch::equal(sum.cpu(), expected.to(dtype)));
    const at::Tensor parts = of_rank(rank, dtype, n).to(at::kCUDA).add_(1);
    group.reduce_scatter_async(parts)->wait();
    EXPECT_TRUE(torch::equal(parts[rank].cpu(), expected.to(dtype)[rank]));
    at::Tensor shared = of_rank(rank, dtype, n).to(at::kCUDA);
    group.broadcast(shared, n - 1);
    EXPECT_TRUE(torch::equal(shared.cpu(), of_rank(n - 1, dtype, n)));
    const auto all = group.all_gather(of_rank(rank, dtype, n).to(at::kCUDA));
    ASSERT_EQ(static_cast<int>(all.size()), n);
    for (int r = 0; r < n; ++r)
      EXPECT_TRUE(torch::equal(all[static_cast<size_t>(r)].cpu(), of_rank(r, dtype, n)));
  }
  const at::Tensor rows = of_rank(rank, at::kFloat, n).to(at::kCUDA);
  const at::Tensor received = torch::empty_like(rows);
  const std::vector<int64_t> one_each(static_cast<size_t>(n), 1);
  group.all_to_all_async(received, rows, one_each, one_each)->wait();
  for (int r = 0; r < n; ++r)
    EXPECT_TRUE(torch::equal(received[r].cpu(), of_rank(r, at::kFloat, n)[rank]));
  group.barrier();
}

TEST(CudaNccl, OneRankCopies) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const auto group =
      make_nccl_group(local_groups(1)[0], c10::make_intrusive<c10d::HashStore>(), 60);
  EXPECT_EQ(group->gpu_library(), "NCCL");
  expect_collectives(*group);
}

TEST(CudaNccl, RanksThatShareACardUseGloo) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  expect_all_succeed(2, [](std::shared_ptr<Group> group) {
    use_gpu(0);
    EXPECT_EQ(on_gpus(group)->gpu_library(), "Gloo");
  });
}

TEST(CudaNccl, RanksWithCardsOfTheirOwnUseNccl) {
  if (const std::string reason = load_gpu(); !reason.empty()) GTEST_SKIP() << reason;
  const int cards = std::min(count_gpus(), 4);
  if (cards < 2) GTEST_SKIP() << "needs 2 cards";
  expect_all_succeed(cards, [](std::shared_ptr<Group> group) {
    use_gpu(group->rank());
    const auto nccl = on_gpus(group);
    EXPECT_EQ(nccl->gpu_library(), "NCCL");
    expect_collectives(*nccl);
    std::vector<std::vector<int>> parts(2);
    for (int r = 0; r < group->size(); ++r) parts[static_cast<size_t>(r % 2)].push_back(r);
    const auto part = nccl->split(parts);
    at::Tensor count = torch::ones({1}, at::kCUDA);
    part->all_reduce(count);
    EXPECT_EQ(count.item<float>(), static_cast<float>(part->size()));
  });
}

}  // namespace
}  // namespace dovetail::comm::cuda_nccl_test
