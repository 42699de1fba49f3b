// ctest-labels: cuda
// Tables on a GPU, distributed over ranks that share it. Gloo carries their messages.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tests/embedding/layouts.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::embedding::distributed_cuda_test {
namespace {

using dovetail::testing::expect_close;
using testing::kSteps;
using testing::Layout;
using testing::train_distributed;
using testing::Trained;

class DistributedCudaTables : public dovetail::testing::NeedsGpuKernels {};

constexpr Sharding kShardings[] = {Sharding::kRowWise, Sharding::kTableWise, Sharding::kColumnWise,
                                   Sharding::kReplicated};
constexpr Transfer kTransfers[] = {Transfer::kBags, Transfer::kRows};

void expect_the_cpus(const Layout& layout) {
  SCOPED_TRACE(::testing::PrintToString(layout));
  const Trained expected = train_distributed(layout),
                found = train_distributed(layout, SlotMemory::on(at::Device(at::kCUDA, 0)));
  // A last bit of float32 can turn a rounding of rows or of messages.
  const bool rounds = layout.row_dtype != RowDtype::kFloat32;
  const double tolerance = layout.payload == comm::Payload::kMXFP8                 ? 0x1p-4
                           : rounds || layout.payload != comm::Payload::kUnchanged ? 0x1p-7
                                                                                   : 1e-5;
  for (size_t i = 0; i < kSteps; ++i)
    expect_close(found.pooled[i], expected.pooled[i].to(at::kDouble), tolerance, "pooled");
  ASSERT_EQ(found.weights.size(), expected.weights.size());
  for (size_t t = 0; t < expected.weights.size(); ++t) {
    expect_close(found.weights[t], expected.weights[t].to(at::kDouble), tolerance, "weight");
    expect_close(found.states[t], expected.states[t].to(at::kDouble), tolerance, "state");
  }
}

TEST_F(DistributedCudaTables, EveryShardingTrainsAsOnTheCpu) {
  for (const Sharding sharding : kShardings)
    for (const Transfer transfer : kTransfers)
      for (const std::vector<int64_t>& samples :
           {std::vector<int64_t>{12}, std::vector<int64_t>{7, 5}, std::vector<int64_t>{4, 0, 5}})
        expect_the_cpus({.sharding = sharding, .samples = samples, .transfer = transfer});
}

TEST_F(DistributedCudaTables, MeansWeightsGroupsAndMicroBatchesTrainAsOnTheCpu) {
  for (const Sharding sharding : kShardings)
    for (const Transfer transfer : kTransfers)
      expect_the_cpus({.sharding = sharding,
                       .samples = {7, 5},
                       .packing = false,
                       .groups = 3,
                       .micro_batches = 3,
                       .weighted = true,
                       .pooling = Pooling::kMean,
                       .optimizer = OptimizerKind::kAdagrad,
                       .transfer = transfer});
}

TEST_F(DistributedCudaTables, RowsAndMessagesOfLowPrecisionTrainAsOnTheCpu) {
  for (const Transfer transfer : kTransfers) {
    for (const Sharding sharding : {Sharding::kRowWise, Sharding::kTableWise})
      expect_the_cpus({.sharding = sharding,
                       .samples = {7, 5},
                       .row_dtype = RowDtype::kBFloat16,
                       .transfer = transfer});
    for (const comm::Payload payload : {comm::Payload::kBFloat16, comm::Payload::kMXFP8})
      expect_the_cpus({.sharding = Sharding::kRowWise,
                       .samples = {7, 5},
                       .transfer = transfer,
                       .payload = payload});
  }
}

}  // namespace
}  // namespace dovetail::embedding::distributed_cuda_test
