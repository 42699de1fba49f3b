#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <string>
#include <vector>

#include "dovetail/moe/experts.h"
#include "dovetail/moe/routing.h"
#include "dovetail/mx/feed_forward.h"
#include "tests/ops/testing.h"

/// Experts with tokens and their routing, and the definition of their result.
namespace dovetail::moe::expert_case {

constexpr int64_t kWidth = 40;  // elements of a token

/// Tokens, their routing and experts.
struct Case {
  at::Tensor x, weight;
  Routing routing;
  ExpertWeights experts;

  Dispatch to() const { return dispatch(routing.expert, routing.slot, std::ssize(experts.up)); }
  std::vector<at::Tensor> leaves() const {
    std::vector<at::Tensor> all = {x, weight};
    for (const auto* list : {&experts.up, &experts.down, &experts.up_bias, &experts.down_bias})
      all.insert(all.end(), list->begin(), list->end());
    return all;
  }

  /// Returns the same numbers in another dtype, as leaves.
  Case in(at::ScalarType dtype, at::ScalarType weight_dtype) const {
    const auto leaf = [](const at::Tensor& t, at::ScalarType to) {
      return t.detach().to(to, false, true).requires_grad_();
    };
    Case out = *this;
    out.x = leaf(x, dtype);
    out.weight = leaf(weight, weight_dtype);
    for (auto* list :
         {&out.experts.up, &out.experts.down, &out.experts.up_bias, &out.experts.down_bias}) {
      for (at::Tensor& tensor : *list) tensor = leaf(tensor, dtype);
    }
    return out;
  }
};

/// Returns a case with experts of the given widths. No width is a multiple of an AVX-512 vector
/// (16 floats).
inline Case make(const std::string& activation, const std::vector<int64_t>& widths, bool bias,
                 const RoutingSpec& spec, int64_t tokens = 203) {
  Case c{.x = testing::normal({tokens, kWidth}, 1), .experts = {.activation = activation}};
  const auto experts = static_cast<int64_t>(widths.size());
  c.routing = route(testing::normal({tokens, experts}, 2), spec);
  c.weight = c.routing.weight.detach();
  for (uint64_t e = 0; e < widths.size(); ++e) {
    const int64_t rows = mx::up_width(activation, widths[e]);
    c.experts.up.push_back(0.3 * testing::normal({rows, kWidth}, 10 + e));
    c.experts.down.push_back(0.3 * testing::normal({kWidth, widths[e]}, 30 + e));
    if (!bias) continue;
    c.experts.up_bias.push_back(testing::normal({rows}, 50 + e));
    c.experts.down_bias.push_back(testing::normal({kWidth}, 70 + e));
  }
  return c;
}

inline at::Tensor activate(const std::string& activation, const at::Tensor& h) {
  if (activation == "gelu") return at::gelu(h, "tanh");
  if (activation == "relu2") return at::relu(h).square();
  const auto halves = h.chunk(2, -1);
  return at::silu(halves[0]) * halves[1];
}

/// Reference by definition: choice by choice, token by token.
inline at::Tensor by_loops(const Case& c) {
  std::vector<at::Tensor> rows;
  const auto bias = [](const std::vector<at::Tensor>& inputs, size_t e) {
    return inputs.empty() ? at::Tensor() : inputs[e];
  };
  for (int64_t t = 0; t < c.x.size(0); ++t) {
    at::Tensor y = at::zeros({kWidth}, c.x.options());
    for (int64_t j = 0; j < c.weight.size(1); ++j) {
      if (c.routing.slot[t][j].item<int>() < 0) continue;
      const auto e = static_cast<size_t>(c.routing.expert[t][j].item<int>());
      const at::Tensor h = at::linear(c.x[t], c.experts.up[e], bias(c.experts.up_bias, e));
      const at::Tensor a = activate(c.experts.activation, h);
      y = y + c.weight[t][j] * at::linear(a, c.experts.down[e], bias(c.experts.down_bias, e));
    }
    rows.push_back(y);
  }
  return at::stack(rows);
}

inline std::vector<at::Tensor> gradients(const at::Tensor& y, const Case& c) {
  const at::Tensor dy = testing::normal(y.sizes(), 99).to(y.scalar_type());
  auto found =
      torch::autograd::grad({y}, c.leaves(), {dy}, std::nullopt, false, /*allow_unused=*/true);
  const auto leaves = c.leaves();
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = at::zeros_like(leaves[i]);
  }
  return found;
}

}  // namespace dovetail::moe::expert_case
