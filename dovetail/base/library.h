#pragma once

#include <ATen/core/Tensor.h>
#include <torch/library.h>

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// Registration of torch.ops.dovetail.*, so that no operator reads a tensor that has no memory.
namespace dovetail {

/// A string literal as a template's argument.
template <size_t N>
struct Literal {
  char text[N];
  constexpr Literal(const char (&literal)[N]) {
    std::copy_n(literal, N, text);
  }  // NOLINT: implicit by intent
  constexpr std::string_view view() const { return {text, N - 1}; }
};

/// `tensor` as an operator's kernel may read it, with a negative view resolved. UserError naming
/// the operator for a tensor that is not strided, or whose elements lie nowhere: a DTensor, a
/// tensor of torch.compile's or torch.func's tracing, freed storage. Tensors of the meta device
/// pass, since kernels give their shapes. `schema` begins with the operator's name.
at::Tensor readable(std::string_view schema, const at::Tensor& tensor);

/// Arguments without tensors pass as they are.
template <class T>
  requires(!std::is_same_v<std::remove_cvref_t<T>, at::Tensor>)
T&& readable(std::string_view, T&& other) {
  return std::forward<T>(other);
}
inline std::optional<at::Tensor> readable(std::string_view schema,
                                          const std::optional<at::Tensor>& tensor) {
  return tensor ? std::optional(readable(schema, *tensor)) : std::nullopt;
}
inline std::vector<at::Tensor> readable(std::string_view schema, at::TensorList tensors) {
  std::vector<at::Tensor> all;
  for (const at::Tensor& tensor : tensors) all.push_back(readable(schema, tensor));
  return all;
}

template <Literal kSchema, auto kFunction, class Pointer>
struct CheckedOperator;
template <Literal kSchema, auto kFunction, class Result, class... Arguments>
struct CheckedOperator<kSchema, kFunction, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    return kFunction(readable(kSchema.view(), std::forward<Arguments>(arguments))...);
  }
};

/// Defines an operator of a function or a lambda without captures by its schema, or by its name
/// alone, which takes the schema from the function.
template <Literal kSchema, auto kFunction>
void define(torch::Library& library) {
  library.def(kSchema.text, &CheckedOperator<kSchema, kFunction, decltype(+kFunction)>::call);
}

/// Implements a defined operator for the library's dispatch key.
template <Literal kName, auto kFunction>
void implement(torch::Library& library) {
  library.impl(kName.text, &CheckedOperator<kName, kFunction, decltype(+kFunction)>::call);
}

}  // namespace dovetail
