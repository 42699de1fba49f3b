#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>
#include <vector>

#include "dovetail/moe/dispatch.h"

namespace dovetail::moe {

/// `tensors` and behind them those of `to`, of which and `numbers_of(to)` `dispatch_behind` makes
/// it again: what an operation reads, and what it captures.
inline torch::autograd::variable_list with_dispatch(torch::autograd::variable_list tensors,
                                                    const Dispatch& to) {
  tensors.insert(tensors.end(), {to.choice, to.token, to.row_of_token, to.first});
  return tensors;
}
inline constexpr size_t kDispatchTensors = 4;
struct DispatchNumbers {
  std::vector<int64_t> begin;
  int64_t capacity;
};
inline DispatchNumbers numbers_of(const Dispatch& to) { return {to.begin, to.capacity}; }
inline Dispatch dispatch_behind(const torch::autograd::variable_list& tensors, size_t count,
                                const DispatchNumbers& numbers) {
  return {.begin = numbers.begin,
          .choice = tensors[count],
          .token = tensors[count + 1],
          .capacity = numbers.capacity,
          .row_of_token = tensors[count + 2],
          .first = tensors[count + 3]};
}

/// Saves `tensors` and, behind them, what `saved_dispatch` makes a Dispatch of again: backward
/// sorts nothing.
inline void save_with_dispatch(torch::autograd::AutogradContext* context,
                               torch::autograd::variable_list tensors, const Dispatch& to) {
  context->save_for_backward(with_dispatch(std::move(tensors), to));
  context->saved_data["begin"] = to.begin;
  context->saved_data["capacity"] = to.capacity;
}

inline Dispatch saved_dispatch(torch::autograd::AutogradContext* context,
                               const torch::autograd::variable_list& saved) {
  return dispatch_behind(
      saved, saved.size() - kDispatchTensors,
      {context->saved_data["begin"].toIntVector(), context->saved_data["capacity"].toInt()});
}

}  // namespace dovetail::moe
