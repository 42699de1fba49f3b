#include "dovetail/plan/record/tracked_storages.h"

#include <algorithm>

namespace dovetail::plan {

bool is_number_as_tensor(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

TensorUse use_of(const at::Tensor& tensor, int storage) {
  return {storage, tensor.sizes().vec(), tensor.strides().vec(), tensor.storage_offset(),
          tensor.scalar_type()};
}

CapturedArgument captured_argument(const c10::IValue& value,
                                   const std::function<TensorUse(const at::Tensor&)>& visit) {
  CapturedArgument out;
  if (value.isTensor() && !is_number_as_tensor(value.toTensor())) {
    out.kind = CapturedArgument::Kind::kTensor;
    out.uses.push_back(visit(value.toTensor()));
  } else if (value.isTensorList()) {
    out.kind = CapturedArgument::Kind::kTensorList;
    for (const at::Tensor& tensor : value.toTensorVector()) out.uses.push_back(visit(tensor));
  } else if (value.isList() &&
             std::any_of(value.toListRef().begin(), value.toListRef().end(),
                         [](const c10::IValue& element) { return element.isTensor(); })) {
    out.kind = CapturedArgument::Kind::kOptionalTensorList;
    for (const c10::IValue& element : value.toListRef())
      out.uses.push_back(visit(element.isTensor() ? element.toTensor() : at::Tensor()));
  } else {
    out.value = value;
  }
  return out;
}

void drop_gradients(const CapturedStep& step, const TrackedStorages& storages) {
  for (const at::Tensor& parameter : step.parameters) {
    at::Tensor& gradient = parameter.mutable_grad();
    if (!gradient.defined()) continue;
    const int storage = storages.find(gradient);
    if (storage >= 0 && !step.storages[storage].external.defined()) gradient.reset();
  }
}

}  // namespace dovetail::plan
