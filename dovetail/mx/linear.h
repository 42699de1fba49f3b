#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "dovetail/mx/quantized_linear.h"

namespace dovetail::mx {

/// Linear layer that knows its full name (example: "blocks.3.ffn.up"). `weight` is (out, in).
/// `bias` is (out) or undefined.
class Linear : public torch::nn::Module {
 public:
  struct Options {
    int64_t in = 0, out = 0;  ///< sizes of the last dimension of input and output
    bool bias = false;
    bool is_head = false;  ///< true for the head, which recipes leave in high precision
    std::string name;
    c10::Device device = c10::kCPU;  ///< device of the parameters; meta: without memory
    /// True if the operation that makes the input keeps it in memory anyway (QuantizedLinear).
    bool input_stays = false;
  };
  explicit Linear(Options options);

  /// Maps (..., in) to (..., out). `prologue`, an activation or norm, is applied to x first if it
  /// is not null.
  at::Tensor forward(const at::Tensor& x, const QuantizedLinear::Prologue& prologue = nullptr);
  const Options& options() const { return options_; }

  /// Sets the recipe of the products. If it quantizes no operand, products are in high precision.
  void set_recipe(const LinearRecipe& recipe, Gemm gemm = Gemm::kEmulated);
  /// Returns the object that computes quantized products; null if products are in high precision.
  QuantizedLinear* quantized() const { return quantized_.get(); }

  at::Tensor weight, bias;

 private:
  Options options_;
  std::shared_ptr<QuantizedLinear> quantized_;
};

/// Makes a Linear; do not call its constructor directly. Parameters are float32 and uninitialised;
/// the model's `initialize` fills them.
std::shared_ptr<Linear> make_linear(Linear::Options options);

/// Returns the Linears in `model` that a recipe may quantize: all except the head. They are in the
/// order of the model's modules.
std::vector<std::shared_ptr<Linear>> quantizable_linears(const torch::nn::Module& model);

}  // namespace dovetail::mx
