#include <gtest/gtest.h>
#include <torch/types.h>

#include <chrono>
#include <thread>

#include "dovetail/comm/group.h"
#include "dovetail/moe/parallel_experts.h"
#include "tests/comm/world.h"

namespace dovetail::moe::world_test {
namespace {

/// Every rank has two experts, and every token uses one expert of each rank. While a rank's experts
/// run, all others wait for their results in the layer's second all-to-all. In the third layer one
/// rank dies there, once all others wait.
TEST(Rank, LosesOneAmongItsExperts) {
  if (!is_rank()) GTEST_SKIP() << "runs only as a rank of World.*";
  const Deaths deaths;
  ExpertRanks ranks;
  ranks.group = comm::world_from_environment();
  const int rank = ranks.group->rank(), size = ranks.group->size();
  ranks.placement = make_placement(2 * size, size, 1, 8, false);
  int layers = 0;
  const LocalExperts local{.weights = {}, .modules = [&](int64_t, const at::Tensor& rows) {
                             if (rank == deaths.dead && layers == 2) {
                               std::this_thread::sleep_for(std::chrono::milliseconds(300));
                               deaths.die();
                             }
                             return rows * 2;
                           }};
  const at::Tensor x = torch::ones({6, 8}).requires_grad_(), weight = torch::full({6, size}, 0.5);
  const at::Tensor expert = at::arange(0, 2 * size, 2, at::kInt).expand({6, size}).contiguous(),
                   slot = at::arange(6, at::kInt).unsqueeze(1).expand({6, size}).contiguous();
  try {
    for (; layers < 100; ++layers)
      parallel_feed_forward(x, weight, expert, slot, local, ranks, {}).sum().backward();
    FAIL() << "nobody died";
  } catch (const comm::CommError& error) {
    deaths.known(rank, error);
  }
}

TEST(World, ARankKilledInALayerIsNamedByAllOthersWithinASecond) {
  if (is_rank()) GTEST_SKIP() << "this is a rank";
  const World world(4);
  for (int dead = 0; dead < world.size(); ++dead)
    world.expect_death_is_known("LosesOneAmongItsExperts", dead, dead);
}

}  // namespace
}  // namespace dovetail::moe::world_test
