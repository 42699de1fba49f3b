// The source of the GPU's routing kernels runs on the CPU (cuda_on_cpu.h), behind the GPU's
// functions. Results are compared with `route` on the CPU and with autograd.
#include "tests/fit/cuda_on_cpu.h"
// The kernels need the definitions above.
#include "dovetail/moe/cuda/route.cu"
#include "dovetail/moe/cuda/route_gradient.cu"
#include "dovetail/moe/cuda/slots.cu"
#undef __host__
#undef __global__
#undef __device__
#undef __shared__
#undef __align__
#undef __launch_bounds__

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <limits>

#include "dovetail/moe/choose.h"
#include "dovetail/moe/choose_gpu.h"
#include "dovetail/moe/device_rows.h"
#include "dovetail/moe/route_gpu.h"
#include "tests/moe/random.h"

namespace dovetail::moe::route_kernels_test {
namespace {

using testing::expect_close;
using ::testing::HasSubstr;

class RouteKernels : public ::testing::Test {
 protected:
  RouteKernels() {
    static const CudaKernels kOnCpu = {
        .route = [](const RouteProblem& p) { cuda::route(p, nullptr); },
        .route_gradient = [](const RouteGradientProblem& p) { cuda::route_gradient(p, nullptr); },
        .assign_slots = [](const SlotProblem& p) { cuda::assign_slots(p, nullptr); }};
    use_cuda_kernels(kOnCpu);
  }
};

/// Both have NaN and infinities at the same places, and other elements are close.
void expect_same(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  EXPECT_TRUE(at::equal(found.isnan(), expected.isnan())) << what;
  EXPECT_TRUE(at::equal(found.isinf(), expected.isinf())) << what;
  const auto finite = [](const at::Tensor& x) { return x.detach().nan_to_num(0, 1, -1); };
  expect_close(finite(found), finite(expected), 4e-6, what);
}

struct Result {
  Routing routing;
  at::Tensor gradient;
};

/// Results, and the gradient of the logits of a sum of all of them with factors. `only`: the result
/// that has a gradient; negative: all.
template <class Route>
Result run(const at::Tensor& logits, int only, const Route& route) {
  const at::Tensor x = logits.clone().requires_grad_();
  const Routing r = route(x);
  const auto tokens = static_cast<double>(x.size(0));
  const std::vector<at::Tensor> parts = {
      (r.weight * random(r.weight.sizes(), 12).to(at::kFloat)).sum(),
      (r.mean_score * random(r.mean_score.sizes(), 13).to(at::kFloat)).sum() * tokens,
      r.load_loss * tokens, r.z_loss * (0.3 * tokens)};
  at::Tensor sum = at::zeros({});
  for (int i = 0; i < 4; ++i)
    if (only < 0 || only == i) sum = sum + parts[static_cast<size_t>(i)];
  sum.backward();
  return {r, x.grad()};
}

void compare(const at::Tensor& logits, const RoutingSpec& spec, const at::Tensor& bias = {},
             int only = -1) {
  ASSERT_EQ(gpu::fused_route_obstacle(logits, spec, {.bias = bias}), "");
  const Result ours =
      run(logits, only, [&](const at::Tensor& x) { return gpu::route(x, spec, bias); });
  const Result expected =
      run(logits, only, [&](const at::Tensor& x) { return route(x, spec, {.bias = bias}); });
  const Routing &a = ours.routing, &b = expected.routing;
  EXPECT_TRUE(at::equal(a.expert, b.expert));
  EXPECT_TRUE(at::equal(a.slot, b.slot));
  EXPECT_TRUE(at::equal(a.count, b.count));
  EXPECT_EQ(a.capacity, b.capacity);
  EXPECT_TRUE(
      at::equal(a.kept, count_choices(b.expert.masked_select(b.slot >= 0), logits.size(1))));
  expect_same(a.weight, b.weight, "weight");
  expect_same(a.mean_score, b.mean_score, "mean_score");
  expect_same(a.load_loss, b.load_loss, "load_loss");
  expect_same(a.z_loss, b.z_loss, "z_loss");
  expect_same(ours.gradient, expected.gradient, "gradient");
}

at::Tensor logits_of(int64_t tokens, int64_t experts, uint64_t seed = 1) {
  return (2 * random({tokens, experts}, seed)).to(at::kFloat);
}

/// Logits of few values: most tokens have equal scores.
at::Tensor ties_of(int64_t tokens, int64_t experts) {
  return random({tokens, experts}, 3).round().to(at::kFloat);
}

/// Tokens and experts: one of each, fewer and more than a team, a block and a part hold.
const std::vector<std::pair<int64_t, int64_t>> kSizes = {
    {1, 1},   {1, 4},  {37, 12}, {33, 5},  {64, 16}, {131, 17}, {35, 31},
    {18, 63}, {9, 99}, {5, 128}, {3, 129}, {3, 256}, {2, 513},  {1, 1024}};

TEST_F(RouteKernels, GiveResultsAndGradientsOfTheCpu) {
  for (const auto& [tokens, experts] : kSizes)
    for (const RoutingSpec& base :
         {RoutingSpec{.k = 1, .drop = Drop::kNone},
          {.k = 2, .drop = Drop::kNone},
          {.k = 3, .normalize = Normalize::kNone, .scale = 2.5, .drop = Drop::kNone},
          {.k = 4,
           .normalize = Normalize::kAfter,
           .slot_order = SlotOrder::kToken,
           .drop = Drop::kNone,
           .load_count = LoadCount::kAllChoices}})
      for (const Score score : {Score::kSoftmax, Score::kSigmoid}) {
        // k = 1 by softmax, k = 3 by sigmoid.
        if (base.k % 2 == 1 && (score == Score::kSigmoid) == (base.k == 1)) continue;
        RoutingSpec spec = base;
        spec.score = score;
        spec.k = std::min(spec.k, experts);
        SCOPED_TRACE(fmt::format("{} x {}, k = {}, score {}", tokens, experts, spec.k,
                                 static_cast<int>(score)));
        compare(logits_of(tokens, experts), spec);
        if (base.k != 2) continue;
        compare(ties_of(tokens, experts), spec);
        compare(logits_of(tokens, experts), spec, random({experts}, 8).to(at::kFloat));
      }
}

TEST_F(RouteKernels, TakeTokensInAnyNumber) {
  for (const int64_t tokens : {255, 256, 257, 20000})
    compare(logits_of(tokens, 6), {.k = 2, .score = Score::kSigmoid, .drop = Drop::kNone});
  compare(logits_of(1500, 40), {.k = 2, .drop = Drop::kNone});
}

TEST_F(RouteKernels, ChooseAsManyExpertsAsThereAre) {
  for (const int64_t experts : {3, 16, 50})
    compare(logits_of(40, experts), {.k = experts, .drop = Drop::kNone});
}

TEST_F(RouteKernels, LimitChoicesToGroups) {
  struct Case {
    int64_t tokens, experts, groups, top_groups, k;
  };
  for (const auto& [tokens, experts, groups, top_groups, k] :
       {Case{37, 12, 4, 2, 2}, Case{33, 16, 16, 3, 2}, Case{35, 30, 3, 1, 4}, Case{19, 64, 8, 4, 6},
        Case{6, 130, 13, 3, 5}, Case{6, 256, 8, 4, 8}, Case{3, 1024, 32, 2, 3},
        Case{2, 1000, 500, 4, 3}})
    for (const GroupScore group_score : {GroupScore::kTop2, GroupScore::kMax})
      for (const Score score : {Score::kSoftmax, Score::kSigmoid}) {
        if (experts > 64 && (score == Score::kSigmoid) != (group_score == GroupScore::kTop2))
          continue;
        SCOPED_TRACE(fmt::format("{} x {}, {} of {} groups", tokens, experts, top_groups, groups));
        const RoutingSpec spec = {.k = k,
                                  .score = score,
                                  .drop = Drop::kNone,
                                  .groups = groups,
                                  .top_groups = top_groups,
                                  .group_score = group_score};
        compare(logits_of(tokens, experts), spec);
        compare(ties_of(tokens, experts), spec);
        compare(logits_of(tokens, experts), spec, random({experts}, 8).to(at::kFloat) / 4);
      }
}

TEST_F(RouteKernels, DropChoicesByPosition) {
  for (const SlotOrder order : {SlotOrder::kChoice, SlotOrder::kToken})
    for (const Normalize normalize : {Normalize::kBefore, Normalize::kNone})
      for (const double factor : {0.4, 1.0, 3.0})
        compare(logits_of(333, 7),
                {.k = 2, .normalize = normalize, .slot_order = order, .capacity_factor = factor});
}

TEST_F(RouteKernels, CountNaNAsMinusInfinity) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity(),
                  kNaN = std::numeric_limits<float>::quiet_NaN();
  for (const int64_t experts : {6, 70, 200})
    for (const Score score : {Score::kSoftmax, Score::kSigmoid})
      for (const int64_t top_groups : {1, 2}) {
        at::Tensor logits = logits_of(40, experts);
        logits[3][1] = kNaN;
        logits[4].fill_(kNaN);
        logits[11].fill_(-kInfinity);
        logits[12][experts - 1] = kInfinity;
        logits.narrow(0, 20, 9).narrow(1, 1, experts - 2).fill_(-kInfinity);
        compare(logits, {.k = 2,
                         .score = score,
                         .drop = Drop::kNone,
                         .groups = 2,
                         .top_groups = top_groups,
                         .group_score = GroupScore::kMax});
      }
}

TEST_F(RouteKernels, ReplaceSumsThatVanish) {
  // exp(-100) is below 1e-20: sums of sigmoid scores and of chosen scores are replaced.
  const at::Tensor logits = logits_of(40, 9) - 100;
  for (const Normalize normalize : {Normalize::kBefore, Normalize::kNone})
    compare(logits,
            {.k = 2, .score = Score::kSigmoid, .normalize = normalize, .drop = Drop::kNone});
}

TEST_F(RouteKernels, DifferentiateEachResultAlone) {
  for (const Score score : {Score::kSoftmax, Score::kSigmoid})
    for (int only = 0; only < 4; ++only) {
      SCOPED_TRACE(only);
      compare(logits_of(77, 20), {.k = 2, .score = score, .drop = Drop::kNone}, {}, only);
    }
}

TEST_F(RouteKernels, HaveNoSecondDerivative) {
  const at::Tensor x = logits_of(4, 6).requires_grad_();
  const Routing r = gpu::route(x, {.k = 2, .drop = Drop::kNone}, {});
  const at::Tensor dx = torch::autograd::grad({r.z_loss}, {x}, {}, true, true)[0];
  std::string error;
  try {
    dx.sum().backward();
  } catch (const std::exception& e) {
    error = e.what();
  }
  EXPECT_THAT(error, HasSubstr("moe_route has no second derivative"));
}

/// Draws, drops and another order: slots are as on the CPU.
TEST_F(RouteKernels, AssignSlotsOfTheCpu) {
  for (const auto& [tokens, experts] :
       {std::pair<int64_t, int64_t>(0, 4), {1, 4}, {37, 12}, {300, 8}, {140, 40}})
    for (const SlotOrder slot_order : {SlotOrder::kChoice, SlotOrder::kToken})
      for (const Drop drop : {Drop::kPosition, Drop::kProbability, Drop::kNone})
        for (const bool draws : {false, true})
          for (const bool other : {false, true}) {
            const RoutingSpec spec = {.slot_order = slot_order,
                                      .batch_prioritized = other,
                                      .drop = drop,
                                      .draw_frees_slot = other};
            const at::Tensor scores = at::softmax(ties_of(tokens, experts), 1),
                             expert = choose_experts(scores, {}, {.k = 2}),
                             weight = scores.gather(1, expert.to(at::kLong)),
                             order = visiting_order(scores, spec),
                             drawn = draws ? random({tokens}, 9) > 0 : at::Tensor();
            EXPECT_TRUE(at::equal(gpu::assign_slots(expert, weight, order, drawn, experts, 9, spec),
                                  assign_slots(expert, weight, order, drawn, experts, 9, spec)));
            EXPECT_TRUE(
                at::equal(gpu::count_choices(expert, experts), count_choices(expert, experts)));
          }
}

DeviceRows place_by_kernel(const at::Tensor& expert, const at::Tensor& rank,
                           const at::Tensor& count, int64_t places, int64_t capacity) {
  at::Tensor begin = at::empty_like(count);
  DeviceRows to = {.choice = at::full({places}, -7, at::kLong),
                   .token = at::full({places}, -7, at::kInt),
                   .places_of_token = at::full_like(expert, -7),
                   .ends = at::full(count.sizes(), -7, at::kInt)};
  cuda::place_rows({.tokens = expert.size(0),
                    .k = expert.size(1),
                    .experts = count.size(0),
                    .places = places,
                    .capacity = capacity,
                    .spare = 1,
                    .multiple = 1,
                    .expert = expert.const_data_ptr<int32_t>(),
                    .rank = rank.const_data_ptr<int32_t>(),
                    .count = count.const_data_ptr<int64_t>(),
                    .begin = begin.mutable_data_ptr<int64_t>(),
                    .ends = to.ends.mutable_data_ptr<int32_t>(),
                    .choice = to.choice.mutable_data_ptr<int64_t>(),
                    .token = to.token.mutable_data_ptr<int32_t>(),
                    .places_of_token = to.places_of_token.mutable_data_ptr<int32_t>()},
                   nullptr);
  return to;
}

void expect_same_rows(const DeviceRows& found, const DeviceRows& expected) {
  EXPECT_TRUE(at::equal(found.choice, expected.choice));
  EXPECT_TRUE(at::equal(found.token, expected.token));
  EXPECT_TRUE(at::equal(found.places_of_token, expected.places_of_token));
  EXPECT_TRUE(at::equal(found.ends, expected.ends));
}

/// The rows of device_rows, which ranks the slots itself. Slots without gaps are the ranks.
TEST_F(RouteKernels, PlaceRowsOfTheCpu) {
  for (const auto& [tokens, experts] :
       {std::pair<int64_t, int64_t>(0, 3), {1, 4}, {37, 12}, {300, 7}, {61, 600}})
    for (const RoutingSpec& spec : {RoutingSpec{.k = 1, .drop = Drop::kNone},
                                    {.k = 3, .drop = Drop::kNone},
                                    {.k = 2, .capacity_factor = 0.6}}) {
      SCOPED_TRACE(fmt::format("{} x {}, k = {}", tokens, experts, spec.k));
      const Routing r = route(logits_of(tokens, experts), spec);
      const at::Tensor kept = count_choices(r.expert.masked_select(r.slot >= 0), experts);
      for (const int64_t capacity : {int64_t{0}, int64_t{2}, r.capacity + 3}) {
        const DeviceRows expected = device_rows(r.expert, r.slot, experts, capacity);
        expect_same_rows(device_rows(r.expert, r.slot, experts, capacity, kept), expected);
        expect_same_rows(place_by_kernel(r.expert, r.slot, kept, expected.places(), capacity),
                         expected);
      }
    }
}

TEST_F(RouteKernels, RefuseWhatTheyDoNotCover) {
  const at::Tensor x = logits_of(8, 4), none = x.narrow(0, 0, 0);
  const auto obstacle = [](const at::Tensor& logits, const RoutingSpec& spec,
                           const RoutingInputs& inputs = {}) {
    return gpu::fused_route_obstacle(logits, spec, inputs);
  };
  EXPECT_EQ(obstacle(x, {}), "");
  EXPECT_NE(obstacle(x.to(at::kDouble), {}), "");
  EXPECT_NE(obstacle(none, {}), "");
  EXPECT_NE(obstacle(logits_of(2, 1025), {}), "");
  EXPECT_NE(obstacle(x, {.selection = Selection::kBalanced}), "");
  EXPECT_NE(obstacle(x, {}, {.draw = at::rand({8})}), "");
  EXPECT_NE(obstacle(x, {}, {.chosen = at::zeros({8, 2}, at::kInt)}), "");
  EXPECT_NE(obstacle(x, {.sequence = 4}), "");
  EXPECT_NE(obstacle(x, {.drop = Drop::kProbability}), "");
  EXPECT_NE(obstacle(x, {.batch_prioritized = true}), "");
  EXPECT_NE(obstacle(x, {.batch_prioritized = true, .drop = Drop::kNone}), "");
  EXPECT_NE(obstacle(x, {.normalize = Normalize::kAfter}), "");
  EXPECT_NE(obstacle(x, {.capacity_factor = 0}), "");
}

}  // namespace
}  // namespace dovetail::moe::route_kernels_test
