// ctest-labels: cuda
#include <gtest/gtest.h>
#include <torch/types.h>

#include "dovetail/comm/group.h"
#include "ranks.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::comm::cuda_group_test {
namespace {

class CudaGroup : public dovetail::testing::NeedsGpu {};

/// A tensor that differs by rank, of small whole numbers.
at::Tensor of_rank(int rank, at::ScalarType dtype) {
  return (torch::arange(3 * 2003).remainder(5) + rank).reshape({3, 2003}).to(dtype);
}

TEST_F(CudaGroup, MovesTensorsOfAGpuAsThoseOfACpu) {
  expect_all_succeed(3, [](std::shared_ptr<Group> group) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      at::Tensor sum = of_rank(group->rank(), dtype).to(at::kCUDA);
      // Work that is still queued on the stream comes before the sum.
      sum.add_(1);
      group->all_reduce(sum);
      EXPECT_TRUE(torch::equal(sum.cpu(), of_rank(2, dtype).to(at::kDouble).mul(3).to(dtype)));
      const at::Tensor parts = of_rank(group->rank(), dtype).to(at::kCUDA);
      group->reduce_scatter_async(parts)->wait();
      EXPECT_TRUE(torch::equal(parts[group->rank()].cpu(),
                               of_rank(1, dtype).to(at::kDouble).mul(3).to(dtype)[group->rank()]));
      at::Tensor shared = of_rank(group->rank(), dtype).to(at::kCUDA);
      group->broadcast(shared, 1);
      EXPECT_TRUE(torch::equal(shared.cpu(), of_rank(1, dtype)));
      const auto all = group->all_gather(of_rank(group->rank(), dtype).to(at::kCUDA));
      for (int r = 0; r < group->size(); ++r)
        EXPECT_TRUE(torch::equal(all[static_cast<size_t>(r)].cpu(), of_rank(r, dtype)));
    }
    const at::Tensor rows = of_rank(group->rank(), at::kFloat).to(at::kCUDA);
    const at::Tensor received = torch::empty_like(rows);
    group->all_to_all_async(received, rows, {1, 1, 1}, {1, 1, 1})->wait();
    for (int r = 0; r < 3; ++r)
      EXPECT_TRUE(torch::equal(received[r].cpu(), of_rank(r, at::kFloat)[group->rank()]));
  });
}

}  // namespace
}  // namespace dovetail::comm::cuda_group_test
