#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/mx/operand.h"
#include "dovetail/plan/solve/memory_floor.h"
#include "tests/train/planned_training.h"

namespace dovetail::train::memory_allow_test {
namespace {

using test::Case;
using test::kSteps;
using test::llama;
using test::mixture;
using test::narrow;
using test::Trained;

/// Options that allow these techniques alone.
plan::PlannedStep::Options allowing(const std::vector<std::string_view>& names) {
  plan::PlannedStep::Options out{.solve_s = 1, .curve_budgets = 0, .prefix = "memory."};
  for (const auto& [name, allowed] : plan::PlannedStep::kTechniques)
    out.*allowed = std::find(names.begin(), names.end(), name) != names.end();
  return out;
}

/// Sets a budget partway from the floor, which plans seldom reach, to the peak with everything
/// kept.
plan::PlannedStep::Options with_budget(const Case& of, plan::PlannedStep::Options options,
                                       double share) {
  options.budget = "1x";
  Trained looked(of);
  looked.step->plan_memory(options);
  for (int i = 1; i <= 3; ++i) looked.run(i);
  const plan::Graph& graph = looked.step->memory_plan()->graph();
  const int64_t floor =
      plan::floor_of(graph, plan::PlannedStep::solve_options(options, c10::kCPU)).bytes;
  const int64_t kept = plan::keep_all_bytes(graph);
  options.budget =
      std::to_string(floor + static_cast<int64_t>(share * static_cast<double>(kept - floor)));
  return options;
}

/// Counts how often a plan uses each technique that is visible in its actions.
std::map<std::string_view, int> used(const plan::PlannedStep& step) {
  std::map<std::string_view, int> out = {{"offload", 0}, {"recompute", 0}, {"compress_mxfp8", 0}};
  // Moments that an update changes in the slow tier need no copies.
  out["offload"] += static_cast<int>(step.view().plan.starts_on_host.size());
  std::vector<int> runs(step.graph().nodes.size());
  for (const plan::Action& action : step.view().plan.actions) {
    out["offload"] += action.op == plan::Op::kOffload || action.op == plan::Op::kPrefetch;
    out["compress_mxfp8"] += action.op == plan::Op::kCompress;
    if (action.op == plan::Op::kCompute) out["recompute"] += runs[action.node]++ > 0;
  }
  return out;
}

TEST(MemoryAllow, DoesWhatItIsAllowedAndNothingElse) {
  const Case of{"llama", llama()};
  for (const std::string_view only : {"offload", "recompute", "compress_mxfp8"}) {
    SCOPED_TRACE(only);
    Trained trained(of);
    trained.step->plan_memory(with_budget(of, allowing({only}), 0.85));
    for (int i = 1; i <= 8; ++i) trained.run(i);
    for (const auto& [technique, times] : used(*trained.step->memory_plan()))
      EXPECT_EQ(times > 0, technique == only) << technique << ": " << times;
  }
}

TEST(MemoryAllow, SaysWhichTechniquesWouldLowerTheFloor) {
  const Case of{"llama", llama()};
  const auto said = [&](const std::vector<std::string_view>& names) {
    Trained trained(of);
    plan::PlannedStep::Options options = allowing(names);
    options.budget = "1x";
    trained.step->plan_memory(options);
    for (int i = 1; i <= 3; ++i) trained.run(i);
    return trained.step->memory_plan()->what_would_lower_the_floor();
  };
  EXPECT_EQ(said({}),
            "; memory.folder or memory.allow = [\"recompute\"] or memory.allow = "
            "[\"compress_mxfp8\"] would lower the floor");
  EXPECT_EQ(said({"offload", "recompute", "compress_mxfp8"}), "");
}

TEST(MemoryAllow, WithLossTrainsWithinABoundOfTheSameTraining) {
  for (const auto& [dtype, recipe] :
       {std::pair(at::kFloat, "fp32"), std::pair(at::kBFloat16, "mxfp8")}) {
    SCOPED_TRACE(recipe);
    const Case of{"lossy", narrow(), dtype, 16, "", recipe, 16};
    Trained plain(of), lossy(of);
    lossy.step->plan_memory(with_budget(of, allowing({"compress_mxfp8"}), 0.5));
    int other = 0, after = 0;
    bool compressed = false;  // in an earlier step
    for (int i = 1; i <= kSteps; ++i) {
      const double expected = plain.run(i).loss, loss = lossy.run(i).loss;
      if (i == 12) continue;
      EXPECT_NEAR(loss, expected, 0.01 * expected) << "step " << i;
      other += loss != expected;
      after += compressed;
      const auto& report = lossy.step->memory_plan()->report();
      compressed = compressed || (report && report->compressed_bytes > 0);
    }
    EXPECT_GT(after, 0);
    EXPECT_GT(other, after / 2);
    const plan::MemoryPlanReport& report = *lossy.step->memory_plan()->report();
    EXPECT_LE(report.step_bytes, report.budget_bytes);
    EXPECT_GT(report.compressed_bytes, 0);
    EXPECT_NEAR(
        static_cast<double>(report.packed_bytes) / static_cast<double>(report.compressed_bytes),
        dtype == at::kFloat ? 33.0 / 128 : 33.0 / 64, 1e-4);
  }
}

// The Linears of experts let the plan decide in which form their rows wait.
TEST(MemoryAllow, InCodesThatAllReadersMakeGivesTheSameBits) {
  Case of = mixture(
      "codes", [](moe::Config& moe) { moe.experts = 4, moe.every = 1, moe.ffn_width = 32; },
      "mxfp8");
  // Rows and their codes are interchangeable in the dtype in which products are emulated.
  of.dtype = mx::emulates_in_bfloat16() ? at::kBFloat16 : at::kFloat;
  Trained plain(of), planned(of);
  planned.step->plan_memory(with_budget(of, allowing({"compress"}), 0.5));
  for (int i = 1; i <= kSteps; ++i) {
    const StepOutcome expected = plain.run(i), outcome = planned.run(i);
    if (i != 12) {
      EXPECT_EQ(outcome.loss, expected.loss) << "step " << i;
      EXPECT_EQ(outcome.grad_norm, expected.grad_norm) << "step " << i;
    }
    EXPECT_EQ(planned.told(i), plain.told(i)) << "step " << i;
  }
  const auto a = plain.tensors(), b = planned.tensors();
  for (const auto& [name, tensor] : a) EXPECT_TRUE(torch::equal(tensor, b.at(name))) << name;
  const plan::MemoryPlanReport& report = *planned.step->memory_plan()->report();
  EXPECT_LE(report.step_bytes, report.budget_bytes);
  EXPECT_GT(report.compressed_bytes, 0);
  EXPECT_EQ(report.packed_bytes * 32 * static_cast<int64_t>(c10::elementSize(of.dtype)),
            report.compressed_bytes * 33);
  for (const plan::Codec& codec : planned.step->memory_plan()->graph().codecs)
    EXPECT_EQ(codec.max_error, 0);
}

}  // namespace
}  // namespace dovetail::train::memory_allow_test
