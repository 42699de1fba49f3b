#include "dovetail/plan/record/operation_call.h"

#include <ATen/core/grad_mode.h>
#include <c10/core/TensorImpl.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <optional>
#include <utility>

namespace dovetail::plan {

at::Tensor tensor_of(const TensorUse& use, c10::Storage storage) {
  const auto key = storage.device().is_cuda() ? c10::DispatchKey::CUDA : c10::DispatchKey::CPU;
  at::Tensor tensor = at::detail::make_tensor<c10::TensorImpl>(
      std::move(storage), c10::DispatchKeySet(key), c10::scalarTypeToTypeMeta(use.dtype));
  tensor.unsafeGetTensorImpl()->set_sizes_and_strides(use.sizes, use.strides, use.offset);
  return tensor;
}

torch::jit::Stack call(const CapturedOperation& operation,
                       const std::function<c10::Storage(int)>& storage_of) {
  const auto tensor = [&](const TensorUse& use) {
    return use.storage < 0 ? at::Tensor() : tensor_of(use, storage_of(use.storage));
  };
  torch::jit::Stack stack;
  stack.reserve(operation.arguments.size());
  for (const CapturedArgument& argument : operation.arguments) {
    switch (argument.kind) {
      case CapturedArgument::Kind::kValue:
        stack.push_back(argument.value);
        break;
      case CapturedArgument::Kind::kTensor:
        stack.emplace_back(tensor(argument.uses[0]));
        break;
      case CapturedArgument::Kind::kTensorList: {
        c10::List<at::Tensor> list;
        for (const TensorUse& use : argument.uses) list.push_back(tensor(use));
        stack.emplace_back(std::move(list));
        break;
      }
      case CapturedArgument::Kind::kOptionalTensorList: {
        c10::List<std::optional<at::Tensor>> list;
        for (const TensorUse& use : argument.uses)
          list.push_back(use.storage < 0 ? std::nullopt : std::optional<at::Tensor>(tensor(use)));
        stack.emplace_back(std::move(list));
        break;
      }
    }
  }
  const c10::impl::ExcludeDispatchKeyGuard below(
      c10::autograd_dispatch_keyset_with_ADInplaceOrView | c10::autocast_dispatch_keyset);
  const at::AutoGradMode as_recorded(operation.grad_mode);
  operation.handle.callBoxed(stack);
  return stack;
}

void for_each_tensor(const torch::jit::Stack& stack,
                     const std::function<void(const at::Tensor&)>& visit) {
  for (const c10::IValue& value : stack) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (value.isTensorList())
      for (const at::Tensor& tensor : value.toTensorVector())
        if (tensor.defined()) visit(tensor);
  }
}

}  // namespace dovetail::plan
