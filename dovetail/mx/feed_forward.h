#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "dovetail/mx/linear.h"

namespace dovetail::mx {

/// Returns the operation for "swiglu", "gelu" or "relu2".
std::shared_ptr<const ops::RowOperation> activation_operation(const std::string& name);

/// Returns the number of rows of the up weight: 2 * width for swiglu (gate, then up), otherwise
/// width.
int64_t up_width(const std::string& activation, int64_t width);

/// Computes down(activation(up(x))), in a transformer block or in one expert. `up.weight` is
/// (width, in), for swiglu (2 * width, in) with gate rows first. `down.weight` is (in, width).
class FeedForward : public torch::nn::Module {
 public:
  struct Options {
    int64_t in = 0, width = 0;
    std::string activation;
    bool bias = false;
    std::string name;  ///< prefix of its Linears' names: "blocks.3.ffn"
    c10::Device device = c10::kCPU;
  };
  explicit FeedForward(const Options& options);

  /// Maps (..., in) to (..., in). `prologue`, if not null, is applied to x first.
  at::Tensor forward(const at::Tensor& x, const mx::QuantizedLinear::Prologue& prologue = nullptr);

  const Linear& up() const { return *up_; }
  const Linear& down() const { return *down_; }

 private:
  mx::QuantizedLinear::Prologue activation_;
  std::shared_ptr<Linear> up_, down_;
};

}  // namespace dovetail::mx
