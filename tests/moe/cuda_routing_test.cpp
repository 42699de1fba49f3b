// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <string>
#include <tuple>
#include <vector>

#include "dovetail/moe/choose.h"
#include "dovetail/moe/cuda_kernels.h"
#include "dovetail/moe/routing.h"
#include "tests/moe/random.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::moe::cuda_routing_test {
namespace {

using testing::expect_close;
using testing::user_error;

class CudaRouting : public dovetail::testing::NeedsGpuKernels {};

at::Tensor on_gpu(const at::Tensor& x) { return x.defined() ? x.to(at::kCUDA) : x; }

// Numbers of tokens and experts: none, one, fewer than a warp, full and partial tiles.
const std::vector<std::pair<int64_t, int64_t>> kSizes = {{0, 4},    {1, 4},   {37, 12},
                                                         {128, 40}, {700, 8}, {1031, 260}};

/// Scores: typical ones, ties only, one expert for all, and values that are not numbers.
std::vector<at::Tensor> score_cases(int64_t tokens, int64_t experts) {
  at::Tensor one_expert = at::zeros({tokens, experts}, at::kDouble),
             broken = random({tokens, experts}, 5);
  one_expert.select(1, experts - 1).fill_(1);
  broken.masked_fill_(random({tokens, experts}, 6) > 1, std::numeric_limits<double>::quiet_NaN());
  broken.masked_fill_(random({tokens, experts}, 7) > 1, -std::numeric_limits<double>::infinity());
  return {at::softmax(random({tokens, experts}, 3), 1),
          (random({tokens, experts}, 4) * 2).round() / 8, at::zeros({tokens, experts}, at::kDouble),
          one_expert, broken};
}

TEST_F(CudaRouting, ExpertsAreThoseThatTheCpuChooses) {
  for (const auto& [tokens, experts] : kSizes) {
    for (const at::Tensor& wide : score_cases(tokens, experts)) {
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        const at::Tensor scores = wide.to(dtype),
                         bias = (random({experts}, 8).to(dtype) * 4).round() / 8;
        for (const auto& spec :
             {RoutingSpec{.k = 1},
              {.k = 4},
              {.k = 2, .groups = 4, .top_groups = 2},
              {.k = 2, .groups = 4, .top_groups = 3, .group_score = GroupScore::kMax},
              {.k = 1, .groups = experts, .top_groups = 2}}) {
          for (const at::Tensor& added : {at::Tensor(), bias}) {
            const at::Tensor expected = choose_experts(scores, added, spec);
            EXPECT_TRUE(
                at::equal(choose_experts(on_gpu(scores), on_gpu(added), spec).cpu(), expected))
                << tokens << " tokens, " << experts << " experts, k " << spec.k << ", groups "
                << spec.groups;
          }
        }
      }
    }
  }
}

TEST_F(CudaRouting, SlotsAndCountsAreThoseOfTheCpu) {
  for (const auto& [tokens, experts] : kSizes) {
    for (const at::Tensor& wide : score_cases(tokens, experts)) {
      const at::Tensor scores = wide.to(at::kFloat), expert = choose_experts(scores, {}, {.k = 2});
      const at::Tensor weight = scores.gather(1, expert.to(at::kLong)),
                       drawn = random({tokens}, 9) > 0;
      EXPECT_TRUE(
          at::equal(count_choices(on_gpu(expert), experts).cpu(), count_choices(expert, experts)));
      const at::Tensor first = expert.narrow(1, 0, 1);
      EXPECT_TRUE(at::equal(count_choices(on_gpu(expert).narrow(1, 0, 1), experts).cpu(),
                            count_choices(first, experts)));
      for (const auto slot_order : {SlotOrder::kChoice, SlotOrder::kToken}) {
        for (const auto drop : {Drop::kPosition, Drop::kProbability, Drop::kNone}) {
          for (const auto& [prioritized, frees, capacity] :
               {std::tuple<bool, bool, int64_t>(false, false, 0),
                {true, false, 3},
                {false, true, 17}}) {
            const RoutingSpec spec = {.slot_order = slot_order,
                                      .batch_prioritized = prioritized,
                                      .drop = drop,
                                      .draw_frees_slot = frees};
            for (const at::Tensor& drawn_out : {at::Tensor(), drawn}) {
              const at::Tensor expected = assign_slots(expert, weight, visiting_order(scores, spec),
                                                       drawn_out, experts, capacity, spec);
              const at::Tensor found =
                  assign_slots(on_gpu(expert), on_gpu(weight), visiting_order(on_gpu(scores), spec),
                               on_gpu(drawn_out), experts, capacity, spec);
              EXPECT_TRUE(at::equal(found.cpu(), expected))
                  << tokens << " tokens, " << experts << " experts, capacity " << capacity
                  << ", drop " << static_cast<int>(drop) << ", order "
                  << static_cast<int>(slot_order);
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaRouting, RowsOfExpertsThatChooseAreThoseOfTheCpu) {
  for (const at::Tensor& scores : score_cases(61, 12))
    EXPECT_TRUE(at::equal(choose_rows(on_gpu(scores), 7).cpu(), choose_rows(scores, 7)));
}

/// Logits in steps of 1/8, so that a processor's own exp cannot change the order.
at::Tensor steps(int64_t tokens, int64_t experts) {
  return (random({tokens, experts}, 10) * 8).round() / 8;
}

TEST_F(CudaRouting, RoutesAndGradientsAreThoseOfTheCpu) {
  for (const auto& [tokens, experts] : kSizes) {
    for (const auto& base : {RoutingSpec{.k = 1},
                             {.k = 1, .drop = Drop::kNone},
                             {.k = 3, .scale = 2.5, .drop = Drop::kNone},
                             {.k = 4, .score = Score::kSigmoid, .drop = Drop::kNone},
                             {.k = 2, .normalize = Normalize::kNone, .capacity_factor = 0.5},
                             {.k = 1,
                              .drop = Drop::kNone,
                              .groups = 4,
                              .top_groups = 2,
                              .group_score = GroupScore::kMax},
                             {.k = 3, .score = Score::kSigmoid, .drop = Drop::kProbability},
                             {.k = 2, .normalize = Normalize::kAfter, .capacity_factor = 0.5},
                             {.k = 2, .capacity_factor = 0},
                             {.k = 2, .selection = Selection::kBalanced, .drop = Drop::kNone}}) {
      RoutingSpec spec = base;
      spec.load_count = LoadCount::kAllChoices;
      const auto run = [&](at::Device device, at::ScalarType dtype) {
        const at::Tensor logits = steps(tokens, experts).to(device, dtype).requires_grad_();
        const at::Tensor draw = random({tokens}, 11).abs().to(device);
        const Routing routing = route(logits, spec, {.draw = spec.k == 2 ? draw : at::Tensor()});
        const at::Tensor upstream = random(routing.weight.sizes(), 12).to(device, dtype);
        ((routing.weight * upstream).sum() + routing.load_loss + routing.z_loss).backward();
        return std::pair(routing, logits.grad());
      };
      for (const auto dtype : {at::kFloat, at::kDouble}) {
        const double tolerance = dtype == at::kFloat ? 2e-6 : 1e-13;
        const auto [cpu, cpu_gradient] = run(at::kCPU, dtype);
        const auto [gpu, gpu_gradient] = run(at::kCUDA, dtype);
        EXPECT_TRUE(at::equal(gpu.expert.cpu(), cpu.expert));
        EXPECT_TRUE(at::equal(gpu.slot.cpu(), cpu.slot));
        EXPECT_TRUE(at::equal(gpu.count.cpu(), cpu.count));
        EXPECT_EQ(gpu.capacity, cpu.capacity);
        expect_close(gpu.weight.cpu(), cpu.weight, tolerance, "weight");
        expect_close(gpu.load_loss.cpu(), cpu.load_loss, tolerance, "load_loss");
        expect_close(gpu.z_loss.cpu(), cpu.z_loss, tolerance, "z_loss");
        expect_close(gpu_gradient.cpu(), cpu_gradient, tolerance, "gradient");
      }
    }
  }
}

/// Each size of a team of lanes, and sums over many blocks (cuda/route.cu). Scores and biases have
/// few values, so that no rounding changes the order.
TEST_F(CudaRouting, FewKernelsAreThoseOfTheCpuInEachPart) {
  for (const int64_t experts : {1, 7, 16, 31, 64, 99, 128, 256, 300, 512, 1000, 1024})
    for (const int64_t tokens : {1, 33, 4099})
      for (const Score score : {Score::kSoftmax, Score::kSigmoid})
        for (const int64_t groups : {1, 2}) {
          if (experts % groups != 0) continue;
          const RoutingSpec spec = {.k = std::min<int64_t>(3, experts / groups),
                                    .score = score,
                                    .drop = Drop::kNone,
                                    .groups = groups,
                                    .group_score = GroupScore::kMax,
                                    .load_count = LoadCount::kAllChoices};
          const auto run = [&](at::Device device) {
            const at::Tensor x = steps(tokens, experts).to(device, at::kFloat).requires_grad_(),
                             bias = (random({experts}, 8) > 0).to(device, at::kFloat) / 4;
            const Routing r = route(x, spec, {.bias = bias});
            const at::Tensor upstream = random(r.weight.sizes(), 12).to(device, at::kFloat),
                             of_mean = random({experts}, 13).to(device, at::kFloat);
            ((r.weight * upstream).sum() +
             ((r.mean_score * of_mean).sum() + r.load_loss + 0.3 * r.z_loss) * tokens)
                .backward();
            return std::pair(r, x.grad());
          };
          const auto [cpu, cpu_gradient] = run(at::kCPU);
          const auto [gpu, gpu_gradient] = run(at::kCUDA);
          SCOPED_TRACE(std::to_string(tokens) + " tokens, " + std::to_string(experts) + " experts");
          EXPECT_TRUE(at::equal(gpu.expert.cpu(), cpu.expert));
          EXPECT_TRUE(at::equal(gpu.slot.cpu(), cpu.slot));
          EXPECT_TRUE(at::equal(gpu.kept.cpu(), cpu.count));
          expect_close(gpu.weight.cpu(), cpu.weight, 4e-6, "weight");
          expect_close(gpu.mean_score.cpu(), cpu.mean_score, 4e-6, "mean_score");
          expect_close(gpu.load_loss.cpu(), cpu.load_loss, 4e-6, "load_loss");
          expect_close(gpu.z_loss.cpu(), cpu.z_loss, 4e-6, "z_loss");
          expect_close(gpu_gradient.cpu(), cpu_gradient, 1e-5, "gradient");
        }
}

/// The CPU assigns the experts of logits on a GPU, so the choices are the same.
TEST_F(CudaRouting, AssignmentsByTheCpuAreThoseOfLogitsThere) {
  const at::Tensor logits = random({300, 8}, 13);
  const auto expect_same = [&](const auto& routed) {
    const Routing want = routed(logits), got = routed(on_gpu(logits));
    EXPECT_TRUE(got.expert.is_cuda());
    EXPECT_TRUE(at::equal(got.expert.cpu(), want.expert));
    EXPECT_TRUE(at::equal(got.slot.cpu(), want.slot));
    EXPECT_TRUE(at::allclose(got.weight.cpu(), want.weight, 1e-5, 1e-6));
  };
  for (const auto selection : {Selection::kSinkhorn, Selection::kBase})
    expect_same([&](const at::Tensor& x) { return route(x, {.k = 1, .selection = selection}); });
  expect_same([](const at::Tensor& x) { return route_by_experts(x, 2, 1); });
}

TEST_F(CudaRouting, TheSameBitsTwice) {
  const at::Tensor logits = on_gpu(random({4099, 64}, 14));
  const Routing a = route(logits, {.k = 8}), b = route(logits, {.k = 8});
  EXPECT_TRUE(at::equal(a.expert, b.expert) && at::equal(a.slot, b.slot) &&
              at::equal(a.weight, b.weight) && at::equal(a.mean_score, b.mean_score) &&
              at::equal(a.load_loss, b.load_loss) && at::equal(a.z_loss, b.z_loss));
}

}  // namespace
}  // namespace dovetail::moe::cuda_routing_test
