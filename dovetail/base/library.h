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

/// Registration of operators in torch.ops.dovetail. `define` and `implement` wrap each operator:
/// the wrapper checks tensor arguments first, so that no kernel reads a tensor without memory.
namespace dovetail {

/// String literal as a template argument.
template <size_t N>
struct Literal {
  char text[N];
  constexpr Literal(const char (&literal)[N]) {
    std::copy_n(literal, N, text);
  }  // NOLINT: implicit by intent
  constexpr std::string_view view() const { return {text, N - 1}; }
};

/// Returns an argument of an operator in a form that a kernel can read. A view with torch's lazy
/// negation is copied; any other tensor is returned as it is. `schema` begins with the operator's
/// name, which errors report. Throws UserError if the tensor is not strided, or if its elements
/// have no memory. Examples are a DTensor, a tensor traced by torch.compile or torch.func, and
/// freed storage. Tensors on the meta device are accepted, since kernels infer shapes from them.
at::Tensor readable(std::string_view schema, const at::Tensor& tensor);

/// Returns arguments that are not tensors unchanged.
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

/// Wrapper: `call` passes each argument through `readable`, then calls kFunction.
template <Literal kSchema, auto kFunction, class Pointer>
struct CheckedOperator;
template <Literal kSchema, auto kFunction, class Result, class... Arguments>
struct CheckedOperator<kSchema, kFunction, Result (*)(Arguments...)> {
  static Result call(Arguments... arguments) {
    return kFunction(readable(kSchema.view(), std::forward<Arguments>(arguments))...);
  }
};

/// Defines an operator that calls `kFunction`, a function or a lambda without captures. `kSchema`
/// is the operator's schema, or only its name. With a name alone, torch infers the schema from the
/// function.
template <Literal kSchema, auto kFunction>
void define(torch::Library& library) {
  library.def(kSchema.text, &CheckedOperator<kSchema, kFunction, decltype(+kFunction)>::call);
}

/// Implements an operator that is already defined, for the dispatch key of `library`.
template <Literal kName, auto kFunction>
void implement(torch::Library& library) {
  library.impl(kName.text, &CheckedOperator<kName, kFunction, decltype(+kFunction)>::call);
}

}  // namespace dovetail
