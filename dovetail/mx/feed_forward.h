#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "dovetail/mx/linear.h"

namespace dovetail {

/// "swiglu", "gelu" or "relu2".
std::shared_ptr<const RowOperation> activation_operation(const std::string& name);

/// Rows of `up`: gate, then up for swiglu.
int64_t up_width(const std::string& activation, int64_t width);

/// down(activation(up(x))): a block's, or one expert's. up.weight (width or, gate then up for
/// swiglu, 2 width, in), down.weight (in, width).
class FeedForward : public torch::nn::Module {
 public:
  struct Options {
    int64_t in = 0, width = 0;
    std::string activation;
    bool bias = false;
    std::string name;  ///< of its Linears' beginning: "blocks.3.ffn"
    c10::Device device = c10::kCPU;
  };
  explicit FeedForward(const Options& options);

  /// (..., in), or what `prologue` (none if null) turns into that -> (..., in).
  at::Tensor forward(const at::Tensor& x, const mx::QuantizedLinear::Prologue& prologue = nullptr);

  const Linear& up() const { return *up_; }
  const Linear& down() const { return *down_; }

 private:
  mx::QuantizedLinear::Prologue activation_;
  std::shared_ptr<Linear> up_, down_;
};

}  // namespace dovetail
