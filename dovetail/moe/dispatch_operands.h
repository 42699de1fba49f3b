#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "dovetail/moe/dispatch.h"

/// Conversion of a Dispatch (moe/dispatch.h) to operands of an `operation` (base/operation.h) and
/// back. An operation reads tensors and captures numbers.
namespace dovetail::moe {

inline constexpr size_t kDispatchTensors = 4;

/// Returns `tensors` with the kDispatchTensors tensors of the dispatch appended. Some of them may
/// be undefined.
inline torch::autograd::variable_list with_dispatch(torch::autograd::variable_list tensors,
                                                    const Dispatch& dispatch) {
  const bool recorded = dispatch.is_recorded();
  tensors.insert(tensors.end(), {dispatch.choice(), dispatch.token(),
                                 recorded ? at::Tensor() : dispatch.rows().rows_of_token,
                                 recorded ? dispatch.recorded().offsets : at::Tensor()});
  return tensors;
}

/// Numbers of a dispatch that an operation captures.
struct DispatchNumbers {
  std::vector<int64_t> offsets;  ///< empty if recorded: an operation reads them from a tensor
  int64_t capacity;
};
inline DispatchNumbers numbers_of(const Dispatch& dispatch) {
  return {dispatch.is_recorded() ? std::vector<int64_t>() : dispatch.rows().offsets,
          dispatch.capacity()};
}

/// Returns the Dispatch from the kDispatchTensors tensors that begin at inputs[first], where
/// `with_dispatch` put them.
inline Dispatch dispatch_at(const torch::autograd::variable_list& inputs, size_t first,
                            const DispatchNumbers& numbers) {
  const at::Tensor &choice = inputs[first], &token = inputs[first + 1],
                   &rows_of_token = inputs[first + 2], &offsets = inputs[first + 3];
  if (offsets.defined()) return RecordedRows{choice, token, offsets, numbers.capacity};
  return DispatchedRows{numbers.offsets, choice, token, numbers.capacity, rows_of_token};
}

/// Saves `tensors`, followed by the dispatch, for backward, which then need not sort the choices
/// again.
inline void save_with_dispatch(torch::autograd::AutogradContext* context,
                               torch::autograd::variable_list tensors, const Dispatch& dispatch) {
  context->save_for_backward(with_dispatch(std::move(tensors), dispatch));
  DispatchNumbers numbers = numbers_of(dispatch);
  context->saved_data["offsets"] = std::move(numbers.offsets);
  context->saved_data["capacity"] = numbers.capacity;
}

/// Returns the dispatch that `save_with_dispatch` saved. `saved` are all saved tensors.
inline Dispatch saved_dispatch(torch::autograd::AutogradContext* context,
                               const torch::autograd::variable_list& saved) {
  return dispatch_at(
      saved, saved.size() - kDispatchTensors,
      {context->saved_data["offsets"].toIntVector(), context->saved_data["capacity"].toInt()});
}

}  // namespace dovetail::moe
