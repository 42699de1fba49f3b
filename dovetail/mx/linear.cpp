#include "dovetail/mx/linear.h"

#include <torch/types.h>

#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/ops/functions.h"

namespace dovetail::mx {

Linear::Linear(Options options) : options_(std::move(options)) {
  DOVETAIL_CHECK(options_.in > 0 && options_.out > 0, "{} would be {} x {}", options_.name,
                 options_.out, options_.in);
  const auto tensor_options = torch::dtype(torch::kFloat32).device(options_.device);
  weight = register_parameter("weight", torch::empty({options_.out, options_.in}, tensor_options));
  if (options_.bias)
    bias = register_parameter("bias", torch::empty({options_.out}, tensor_options));
}

at::Tensor Linear::forward(const at::Tensor& x, const QuantizedLinear::Prologue& prologue) {
  if (quantized_) return quantized_->forward(x, weight, bias, prologue);
  return dovetail::ops::linear(prologue != nullptr ? prologue->apply(x) : x, weight, bias);
}

void Linear::set_recipe(const LinearRecipe& recipe, Gemm gemm) {
  quantized_ = recipe.quantizes() ? std::make_shared<QuantizedLinear>(recipe, options_.name, gemm,
                                                                      options_.input_stays)
                                  : nullptr;
}

std::shared_ptr<Linear> make_linear(Linear::Options options) {
  return std::make_shared<Linear>(std::move(options));
}

std::vector<std::shared_ptr<Linear>> quantizable_linears(const torch::nn::Module& model) {
  std::vector<std::shared_ptr<Linear>> found;
  for (const auto& module : model.modules(/*include_self=*/false)) {
    auto linear = std::dynamic_pointer_cast<Linear>(module);
    if (linear && !linear->options().is_head) found.push_back(std::move(linear));
  }
  return found;
}

}  // namespace dovetail::mx
