#include "dovetail/train/optimizer/gradient_clipping.h"

#include <ATen/ops/cat.h>

#include <numeric>

#include "dovetail/base/operation.h"
#include "dovetail/ops/adamw.h"

namespace dovetail::train {

std::vector<at::Tensor> squares_of(const std::vector<at::Tensor>& gradients) {
  if (!operations_are_recorded()) return {ops::squares_of_pieces(gradients)};
  std::vector<at::Tensor> out;
  out.reserve(gradients.size());
  for (const at::Tensor& gradient : gradients)
    out.push_back(operation("dovetail::squares", {.reads = {gradient}}, [](const Operands& inputs) {
      return std::vector{ops::squares_of_pieces(inputs.reads)};
    })[0]);
  return out;
}

std::vector<at::Tensor> read_together(std::span<const at::Tensor> values) {
  std::vector<at::Tensor> out(values.begin(), values.end()), parts;
  for (const at::Tensor& value : values)
    if (value.defined() && !value.is_cpu()) parts.push_back(value.reshape({-1}));
  if (parts.empty()) return out;
  const at::Tensor all = at::cat(parts).cpu();
  int64_t first = 0;
  for (at::Tensor& value : out) {
    if (!value.defined() || value.is_cpu()) continue;
    const int64_t count = value.numel();
    value = all.narrow(0, first, count).reshape(value.sizes());
    first += count;
  }
  return out;
}

double sum_of_pieces(std::span<const at::Tensor> squares) {
  double sum = 0;
  for (const at::Tensor& of_some : squares) {
    const auto* piece = of_some.const_data_ptr<double>();
    sum = std::accumulate(piece, piece + of_some.numel(), sum);
  }
  return sum;
}

double clip_factor(double norm, double max_norm) {
  return max_norm > 0 && norm > max_norm ? max_norm / norm : 1.0;
}

}  // namespace dovetail::train
