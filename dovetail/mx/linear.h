#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>
#include <vector>

#include "dovetail/mx/quantized_linear.h"

namespace dovetail {

/// What a Linear is for; later recipes choose its precision by role.
enum class LinearRole { kQkv, kAttentionOut, kFeedForwardUp, kFeedForwardDown, kTower, kHead };
/// "qkv", "attention_out", "ffn_up", "ffn_down", "tower", "head".
const char* role_name(LinearRole role);

/// A Linear layer that knows its role and full name ("blocks.3.ffn.up"). weight (out, in); bias
/// (out) or undefined.
class Linear : public torch::nn::Module {
 public:
  struct Options {
    int64_t in = 0, out = 0;
    bool bias = false;
    LinearRole role = LinearRole::kHead;
    std::string name;
    c10::Device device = c10::kCPU;  ///< meta: sizes only
    bool input_stays = false;        ///< as in QuantizedLinear
  };
  explicit Linear(Options options);

  /// (..., in), or what `prologue` (none if null) turns into that -> (..., out).
  at::Tensor forward(const at::Tensor& x, const mx::QuantizedLinear::Prologue& prologue = nullptr);
  const Options& options() const { return options_; }

  /// From now on products are of quantized operands, or no more if the recipe quantizes nothing.
  void set_recipe(const mx::LinearRecipe& recipe, mx::Gemm gemm = mx::Gemm::kEmulated);
  /// Null: in high precision.
  mx::QuantizedLinear* quantized() const { return quantized_.get(); }

  at::Tensor weight, bias;

 private:
  Options options_;
  std::shared_ptr<mx::QuantizedLinear> quantized_;
};

/// The only way to make a Linear. Parameters are float32 and uninitialised; `initialize` of the
/// model fills them.
std::shared_ptr<Linear> make_linear(Linear::Options options);

/// The Linears within `model` that a recipe may quantize: all but the head, in the order of the
/// model.
std::vector<std::shared_ptr<Linear>> quantizable_linears(const torch::nn::Module& model);

}  // namespace dovetail
