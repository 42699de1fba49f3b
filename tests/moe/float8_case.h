#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <vector>

#include "dovetail/moe/device_float8.h"
#include "dovetail/mx/recipe.h"
#include "tests/moe/expert_case.h"

/// Linears of experts in FP8, with rows for them.
namespace dovetail::moe::float8_case {

/// Returns a recipe of E4M3 with one scale for each tensor.
inline mx::LinearRecipe e4m3_recipe(bool float32_scales = true) {
  const mx::OperandRecipe one = {
      .format = mx::Format::kE4M3, .blocks = mx::Blocks::kTensor, .float32_scales = float32_scales};
  return {.weight = one, .activation = one, .gradient = one};
}

/// Rows of one Linear for each expert. Spare rows of x are larger than all others.
struct Linears {
  DeviceRows rows;
  at::Tensor x, dy;
  std::vector<at::Tensor> weight, bias;

  Linears to(at::Device device) const {
    const auto leaf = [&](const at::Tensor& t) { return t.detach().to(device).requires_grad_(); };
    Linears out = {.rows = {.choice = rows.choice.to(device),
                            .token = rows.token.to(device),
                            .places_of_token = rows.places_of_token.to(device),
                            .ends = rows.ends.to(device)},
                   .x = leaf(x),
                   .dy = dy.to(device)};
    for (const at::Tensor& t : weight) out.weight.push_back(leaf(t));
    for (const at::Tensor& t : bias) out.bias.push_back(leaf(t));
    return out;
  }
  /// Returns y and the gradients of x, weights and biases.
  std::vector<at::Tensor> run(const mx::LinearRecipe& recipe) const {
    std::vector<at::Tensor> leaves = {x};
    leaves.insert(leaves.end(), weight.begin(), weight.end());
    leaves.insert(leaves.end(), bias.begin(), bias.end());
    const at::Tensor y = device_float8_linear(x, weight, expert_places(rows), recipe, bias);
    std::vector<at::Tensor> made = torch::autograd::grad({y}, leaves, {dy});
    made.insert(made.begin(), y.detach());
    return made;
  }
};

/// Makes them for `loads` choices of each expert.
inline Linears make_linears(const std::vector<int64_t>& loads, int64_t in, int64_t out, bool bias) {
  std::vector<int32_t> expert, slot;
  for (size_t e = 0; e < loads.size(); ++e)
    for (int64_t i = 0; i < loads[e]; ++i) {
      expert.push_back(static_cast<int32_t>(e));
      slot.push_back(static_cast<int32_t>(i));
    }
  const auto column = [](const std::vector<int32_t>& list) {
    return at::tensor(list, at::kInt).view({-1, 1});
  };
  Linears made = {.rows = device_rows(column(expert), column(slot), std::ssize(loads), 0, {}, true,
                                      kFloat8Multiple)};
  const at::Tensor spare = made.rows.choice.eq(std::ssize(expert)).unsqueeze(1);
  const int64_t places = made.rows.places();
  made.x = testing::normal({places, in}, 1).masked_fill_(spare, 1e4).to(at::kBFloat16);
  made.dy = testing::normal({places, out}, 2).masked_fill_(spare, 0).mul_(1e-3).to(at::kBFloat16);
  for (uint64_t e = 0; e < loads.size(); ++e) {
    const double size = 0.1 * static_cast<double>(e + 1);  // scales of experts differ
    made.weight.push_back((size * testing::normal({out, in}, 10 + e)).to(at::kBFloat16));
    if (bias) made.bias.push_back(testing::normal({out}, 50 + e).to(at::kBFloat16));
  }
  return made.to(at::kCPU);
}

}  // namespace dovetail::moe::float8_case
