#include "dovetail/ops/meta.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/csrc/autograd/custom_function.h>

namespace dovetail::ops {
namespace {

class EmptyOnMeta : public torch::autograd::Function<EmptyOnMeta> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, at::TensorList inputs,
                            const std::vector<int64_t>& sizes, at::ScalarType dtype) {
    context->save_for_backward(inputs.vec());
    return at::empty(sizes, inputs.front().options().dtype(dtype));
  }

  static torch::autograd::variable_list backward(
      torch::autograd::AutogradContext* context,
      const torch::autograd::variable_list& /*gradients*/) {
    torch::autograd::variable_list made;
    for (const at::Tensor& input : context->get_saved_variables())
      made.push_back(at::isFloatingType(input.scalar_type()) ? at::empty_like(input)
                                                             : at::Tensor());
    made.resize(made.size() + 2);  // no gradients for sizes and dtype
    return made;
  }
};

}  // namespace

at::Tensor empty_on_meta(at::TensorList inputs, at::IntArrayRef sizes, at::ScalarType dtype) {
  return EmptyOnMeta::apply(inputs, sizes.vec(), dtype);
}

}  // namespace dovetail::ops
