#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <string>

#include "dovetail/mx/linear.h"

namespace dovetail::mx {

/// Returns the activation called `name` ("swiglu", "gelu" or "relu2") as an operation on rows
/// (ops/row_operation.h).
std::shared_ptr<const ops::RowOperation> activation_operation(const std::string& name);

/// Returns the gradient of the activation's input h, given the gradient dy of its result.
at::Tensor activation_gradient(const ops::RowOperation& activation, const at::Tensor& h,
                               const at::Tensor& dy);

/// Returns the number of rows of `up.weight`: 2 * width for swiglu (gate rows, then up rows),
/// otherwise width.
int64_t up_width(const std::string& activation, int64_t width);

/// Feed-forward network of a transformer block or of one expert: down(activation(up(x))).
/// `up.weight` is (width, in). For swiglu it is (2 * width, in), with the gate rows first.
/// `down.weight` is (in, width).
class FeedForward : public torch::nn::Module {
 public:
  struct Options {
    /// `in`: size of the last dimension of input and output. `width`: size of the hidden dimension.
    int64_t in = 0, width = 0;
    std::string activation;  ///< name, as for `activation_operation`
    bool bias = false;
    std::string name;  ///< prefix of the names of `up` and `down`; example: "blocks.3.ffn"
    c10::Device device = c10::kCPU;
  };
  explicit FeedForward(const Options& options);

  /// Maps (..., in) to (..., in). `prologue`, an activation or norm, is applied to x first if it is
  /// not null.
  at::Tensor forward(const at::Tensor& x, const QuantizedLinear::Prologue& prologue = nullptr);

  const Linear& up() const { return *up_; }
  const Linear& down() const { return *down_; }

 private:
  QuantizedLinear::Prologue activation_;
  std::shared_ptr<Linear> up_, down_;
};

}  // namespace dovetail::mx
