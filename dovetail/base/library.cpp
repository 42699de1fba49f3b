#include "dovetail/base/library.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

/// Returns true if the tensor's elements have memory, or if it needs no memory.
bool has_memory(const at::Tensor& tensor) {
  if (tensor.is_meta()) return true;
  if (!tensor.has_storage()) return false;
  if (tensor.key_set().has(c10::DispatchKey::Python)) return false;
  return tensor.numel() == 0 ||
         tensor.storage().unsafeGetStorageImpl()->_mutable_data_ptr_no_checks().get() != nullptr;
}

}  // namespace

at::Tensor readable(std::string_view schema, const at::Tensor& tensor) {
  if (!tensor.defined()) return tensor;
  const std::string_view name = schema.substr(0, schema.find('('));
  if (tensor.layout() != at::kStrided || tensor.is_nested() || tensor.is_quantized())
    throw UserError(fmt::format("{}: a tensor is {}, not dense", name,
                                tensor.is_nested()      ? "nested"
                                : tensor.is_quantized() ? "quantized"
                                                        : "sparse or of another layout"),
                    "give a dense strided tensor, such as x.to_dense() or x.dequantize()");
  if (!has_memory(tensor))
    throw UserError(
        fmt::format("{}: a tensor has no readable memory. It is a DTensor or another wrapper, is "
                    "traced by torch.compile or torch.func, or its storage was freed",
                    name),
        "give plain tensors, such as DTensor.to_local(); keep the call out of the compiled "
        "function with torch.compiler.disable");
  return tensor.is_neg() ? tensor.resolve_neg() : tensor;
}

}  // namespace dovetail
