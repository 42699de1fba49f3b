#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/mx/operand.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/train/trial_step.h"
#include "tests/train/planned_training.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::planned_experts_test {
namespace {

using test::Case;
using test::mixture;

class PlannedExperts : public ::testing::TestWithParam<Case> {};

/// Returns true if products in bfloat16 on this CPU are oneDNN's: it has AMX. Quantized experts
/// then run one after another.
bool multiplies_by_onednn() {
  return mx::emulates_in_bfloat16() && !ops::multiplies_bfloat16_rows();
}

TEST_P(PlannedExperts, GiveTheSameBitsWithinTheirBudget) {
  if (GetParam().recipe != std::string_view("fp32") &&
      !test::model_of(GetParam()).moe.pad_to_capacity && multiplies_by_onednn())
    GTEST_SKIP() << "quantized experts run one after another on a CPU with AMX";
  test::gives_the_same_bits_within_its_budget(GetParam());
}

void dropless(moe::Config& moe) {
  moe.drop = "none";
  moe.pad_to_capacity = false;
}

Case dropless_with_biases(const char* recipe) {
  const bool quantizes = recipe != std::string_view("fp32");
  Case of = mixture(quantizes ? "dropless_with_biases_quantized" : "dropless_with_biases", dropless,
                    recipe);
  of.model.activation = "gelu";
  of.model.bias = true;
  return of;
}

/// Experts as they run on a GPU, whose sizes follow from shapes.
Case with_fixed_sizes(const char* name, void (*experts)(moe::Config&), at::ScalarType dtype) {
  const bool narrow = dtype == at::kBFloat16;
  Case of = mixture(name, experts, narrow ? "bf16" : "fp32", narrow ? 8 : 4);
  of.dtype = dtype;
  of.fixed_sizes = true;
  return of;
}

// Experts that run as one operation have the same sizes in every step. Experts that are separate
// operations, and FP8's tensors of single experts, do not.
TEST(PlannedExperts, WithoutPaddingAreRefusedWhereEachIsAnOperation) {
  const auto message = [](const Case& of) {
    test::Trained t(of);
    t.step->plan_memory({.budget = "1x", .solve_s = 0.1});
    try {
      for (int i = 1; i <= 3; ++i) t.run(i);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(message(mixture("dropless", dropless)), "");
  if (!multiplies_by_onednn()) {
    EXPECT_EQ(message(mixture("quantized", dropless, "mxfp8")), "");
    EXPECT_THAT(message(mixture("float8", dropless, "fp8_block")),
                ::testing::HasSubstr("FP8 has tensors of each expert"));
  }
  EXPECT_THAT(message(mixture("delayed", dropless, "fp8_tensor_delayed")),
              ::testing::HasSubstr("experts that are separate operations"));
  EXPECT_THAT(message(mixture("bfloat16", dropless, "bf16")),
              ::testing::HasSubstr("experts in bfloat16"));
  const auto dropping = [](moe::Config& moe) {
    moe.pad_to_capacity = false;
    moe.capacity_factor = 0.5;
  };
  EXPECT_THAT(message(mixture("dropping", dropping)),
              ::testing::HasSubstr("of 2048 choices were dropped"));

  // Refused while the run is resolved, before it starts.
  const test::TinyRun run;
  RunConfig config = run.config("refused");
  config.model.moe = {.experts = 4, .ffn_width = 24};
  config.memory.budget = "0.8x";
  const auto group = comm::local_groups(1)[0];
  EXPECT_NO_THROW(resolve_trial(config, *group));
  config.precision.recipe = "mxfp8";
  if (!multiplies_by_onednn()) {
    EXPECT_NO_THROW(resolve_trial(config, *group));
  }
  for (const char* recipe : {"bf16", "fp8_block"}) {
    config.precision.recipe = recipe;
    EXPECT_THAT([&] { resolve_trial(config, *group); },
                ::testing::ThrowsMessage<UserError>(
                    ::testing::HasSubstr(fmt::format("the recipe {}", recipe))));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Mixtures, PlannedExperts,
    ::testing::Values(
        mixture("experts", [](auto& moe) { moe.z_loss = 0.01; }), dropless_with_biases("fp32"),
        mixture("noisy",
                [](auto& moe) {
                  moe.router = "noisy_top_k";
                  moe.importance_loss = moe.smooth_load_loss = 0.01;
                }),
        mixture(
            "whole_batch", [](auto& moe) { moe.load_scope = "global_batch"; }, "fp32", 4),
        mixture("sinkhorn", [](auto& moe) { moe.router = "sinkhorn"; }),
        mixture(
            "mxfp8_experts", [](auto& moe) { moe.shared_experts = 1; }, "mxfp8"),
        mixture("dropless_mxfp8", dropless, "mxfp8"),
        mixture(
            "bfloat16_experts", [](auto& moe) { moe.drop = "probability"; }, "bf16", 8)),
    [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(AsOnAGpu, PlannedExperts,
                         ::testing::Values(with_fixed_sizes("dropless", dropless, at::kBFloat16),
                                           with_fixed_sizes(
                                               "noisy_dropping",
                                               [](moe::Config& moe) {
                                                 moe.router = "noisy_top_k";
                                                 moe.pad_to_capacity = false;
                                                 moe.capacity_factor = 0.5;
                                               },
                                               at::kFloat)),
                         [](const auto& info) { return info.param.name; });

INSTANTIATE_TEST_SUITE_P(MoreMixtures, PlannedExperts,
                         ::testing::ValuesIn(test::with_all(
                             {with_fixed_sizes(
                                  "padded_as_on_a_gpu",
                                  [](moe::Config& moe) { moe.drop = "probability"; }, at::kFloat),
                              mixture("dropless", dropless),
                              mixture("dropless_mxfp4_stochastic", dropless, "mxfp4_stochastic"),
                              dropless_with_biases("mxfp8"),
                              mixture("drawn",
                                      [](auto& moe) {
                                        moe.second_expert = "random";
                                        moe.bias_update_rate = 0.01;
                                        moe.score = "sigmoid";
                                      }),
                              mixture("base", [](auto& moe) { moe.router = "base", moe.k = 1; }),
                              mixture("hash", [](auto& moe) { moe.router = "hash"; })})),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dovetail::train::planned_experts_test
