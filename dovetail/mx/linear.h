#pragma once

#include <c10/core/Device.h>
#include <torch/nn/module.h>

#include <memory>
#include <string>

namespace dovetail {

/// What a Linear is for; later recipes choose its precision by role.
enum class LinearRole { kQkv, kAttentionOut, kFeedForwardUp, kFeedForwardDown, kHead };
/// "qkv", "attention_out", "ffn_up", "ffn_down", "head".
const char* role_name(LinearRole role);

/// A Linear layer that knows its role and full name ("blocks.3.ffn.up"). weight (out, in); bias (out) or undefined.
class Linear : public torch::nn::Module {
 public:
  struct Options {
    int64_t in = 0, out = 0;
    bool bias = false;
    LinearRole role = LinearRole::kHead;
    std::string name;
    c10::Device device = c10::kCPU;  ///< meta: sizes only
  };
  explicit Linear(Options options);

  at::Tensor forward(const at::Tensor& x);  ///< (..., in) -> (..., out)
  const Options& options() const { return options_; }

  at::Tensor weight, bias;

 private:
  Options options_;
};

/// The only way to make a Linear. Parameters are float32 and uninitialised; `initialize` of the model fills them.
std::shared_ptr<Linear> make_linear(Linear::Options options);

}  // namespace dovetail
