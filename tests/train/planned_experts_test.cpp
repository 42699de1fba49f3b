#include <gtest/gtest.h>

#include "tests/train/planned_training.h"

namespace dovetail {
namespace {

using test::Case;
using test::mixture;

class PlannedExperts : public testing::TestWithParam<Case> {};

TEST_P(PlannedExperts, GiveTheSameBitsWithinTheirBudget) { test::gives_the_same_bits_within_its_budget(GetParam()); }

INSTANTIATE_TEST_SUITE_P(
    Mixtures, PlannedExperts,
    testing::Values(mixture("experts", [](auto& moe) { moe.z_loss = 0.01; }),
                    mixture("drawn",
                            [](auto& moe) {
                              moe.second_expert = "random";
                              moe.bias_update_rate = 0.01;
                              moe.score = "sigmoid";
                            }),
                    mixture("noisy",
                            [](auto& moe) {
                              moe.router = "noisy_top_k";
                              moe.importance_loss = moe.smooth_load_loss = 0.01;
                            }),
                    mixture(
                        "whole_batch", [](auto& moe) { moe.load_scope = "global_batch"; }, "fp32", 4),
                    mixture("sinkhorn", [](auto& moe) { moe.router = "sinkhorn"; }),
                    mixture("base", [](auto& moe) { moe.router = "base", moe.k = 1; }),
                    mixture("hash", [](auto& moe) { moe.router = "hash"; }),
                    mixture(
                        "mxfp8_experts", [](auto& moe) { moe.shared_experts = 1; }, "mxfp8"),
                    mixture(
                        "bfloat16_experts", [](auto& moe) { moe.drop = "probability"; }, "bf16", 8)),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace dovetail
