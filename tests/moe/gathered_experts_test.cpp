// ctest-labels: threads
#include "dovetail/moe/gathered_experts.h"

#include <ATen/ATen.h>
#include <c10/core/Allocator.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/moe/dispatch.h"
#include "dovetail/moe/parallel_experts.h"
#include "random.h"
#include "tests/comm/ranks.h"
#include "tests/ops/testing.h"

namespace dovetail::moe {
namespace {

/// Counts the bytes of all CPU tensors that are allocated while it exists.
class CountedMemory final : public c10::Allocator {
 public:
  CountedMemory() : below_(c10::GetAllocator(c10::kCPU)) {
    c10::SetAllocator(c10::kCPU, this, kPriority);
  }
  ~CountedMemory() override { c10::SetAllocator(c10::kCPU, below_, kPriority); }

  int64_t peak() const { return count_->peak; }

  c10::DataPtr allocate(size_t bytes) override {
    auto* block = new Block{below_->allocate(bytes), static_cast<int64_t>(bytes), count_};
    const int64_t now = count_->live += block->bytes;
    int64_t before = count_->peak;
    while (before < now && !count_->peak.compare_exchange_weak(before, now)) {
    }
    return {block->memory.get(), block, &free, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

 private:
  static constexpr uint8_t kPriority = 255;
  struct Count {
    std::atomic<int64_t> live = 0, peak = 0;
  };
  struct Block {
    c10::DataPtr memory;
    int64_t bytes;
    std::shared_ptr<Count> count;  // a tensor may outlive the allocator
  };
  static void free(void* block) {
    const std::unique_ptr<Block> freed(static_cast<Block*>(block));
    freed->count->live -= freed->bytes;
  }

  c10::Allocator* below_;
  std::shared_ptr<Count> count_ = std::make_shared<Count>();
};

constexpr int64_t kWidth = 10, kFfnWidth = 12;

/// The storage of gathered experts is empty between forward and backward, and after backward.
TEST(AllExperts, AreFreedBetweenForwardAndBackward) {
  expect_all_succeed(3, [&](const std::shared_ptr<comm::Group>& group) {
    ExpertRanks ranks{.placement = make_placement(5, 3, 1, kFfnWidth, false), .group = group};
    ExpertWeights own{.activation = "gelu"};
    for (int64_t e = 0; e < ranks.placement.count(group->rank()); ++e) {
      own.up.push_back(random({kFfnWidth, kWidth}, static_cast<uint64_t>(e)).requires_grad_());
      own.down.push_back(random({kWidth, kFfnWidth}, 9).requires_grad_());
    }
    const at::Tensor x = random({4, kWidth}, 98).requires_grad_();
    at::Tensor gathered;
    size_t in_backward = 0;
    const at::Tensor y = with_all_experts(own, ranks, [&](const ExpertWeights& all) {
      EXPECT_EQ(all.experts(), 5);
      gathered = all.up[4];
      const at::Tensor h = x.mm(all.up[4].t());
      h.register_hook([&](const at::Tensor&) { in_backward = gathered.storage().nbytes(); });
      return h.mm(all.down[4].t());
    });
    EXPECT_EQ(gathered.storage().nbytes(), 0);
    y.sum().backward();
    EXPECT_EQ(in_backward, kFfnWidth * kWidth * 8);
    EXPECT_EQ(gathered.storage().nbytes(), 0);
    if (group->rank() < 2) return;
    // Expert 4 is the last rank's second. All three ranks used it.
    EXPECT_TRUE(at::allclose(own.down[1].grad(), 3 * at::ones({kWidth, 1}, at::kDouble) *
                                                     x.mm(own.up[1].t()).sum(0).unsqueeze(0)));
    EXPECT_EQ(own.up[0].grad().abs().max().item<double>(), 0);
  });
}

/// Sizes of a model of expert layers alone, on two ranks.
constexpr int64_t kLayers = 6, kExperts = 16, kTokens = 32, kModelWidth = 256, kHidden = 512;
constexpr int64_t kLayerBytes = kExperts * 2 * kModelWidth * kHidden * 4;

/// Returns the peak memory of forward and backward of the model, gradients included, over both
/// ranks. shards: ExpertLayout::shards.
int64_t peak_of_a_step(int shards) {
  const CountedMemory memory;
  expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
    at::set_num_threads(1);
    const ExpertRanks ranks{.placement = make_placement(kExperts, 2, 1, kHidden, false),
                            .group = group};
    std::vector<LocalExperts> layers(kLayers);
    for (LocalExperts& layer : layers) {
      layer.weights.activation = "gelu";
      for (int64_t e = 0; e < kExperts / 2; ++e) {
        layer.weights.up.push_back(at::full({kHidden, kModelWidth}, 0.01).requires_grad_());
        layer.weights.down.push_back(at::full({kModelWidth, kHidden}, 0.01).requires_grad_());
      }
    }
    const Routing routing =
        route(random({kTokens, kExperts}, 97).to(at::kFloat), {.k = 2, .drop = Drop::kNone});
    at::Tensor x = at::ones({kTokens, kModelWidth});
    for (const LocalExperts& layer : layers)
      x = x + parallel_feed_forward(x, routing.weight, routing.expert, routing.slot, layer, ranks,
                                    {.shards = shards});
    x.sum().backward();
    for (const LocalExperts& layer : layers)
      for (const at::Tensor& weight : layer.weights.up) EXPECT_TRUE(weight.grad().defined());
  });
  return memory.peak();
}

/// Each rank holds the weights and the gradients of one gathered layer at a time.
TEST(AllExperts, TakeTheMemoryOfOneLayerMore) {
  const int64_t spread = peak_of_a_step(1), gathered = peak_of_a_step(0);
  EXPECT_GT(spread, 2 * kLayers * kLayerBytes);
  EXPECT_LE(static_cast<double>(gathered),
            1.05 * static_cast<double>(spread) + 2 * 2 * static_cast<double>(kLayerBytes));
  RecordProperty("spread", std::to_string(spread));
  RecordProperty("gathered", std::to_string(gathered));
}

}  // namespace
}  // namespace dovetail::moe
