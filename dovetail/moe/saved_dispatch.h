#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include <utility>

#include "dovetail/moe/dispatch.h"

namespace dovetail::moe {

/// Saves `tensors` and, behind them, what `saved_dispatch` makes a Dispatch of again: backward sorts nothing.
inline void save_with_dispatch(torch::autograd::AutogradContext* context, torch::autograd::variable_list tensors,
                               const Dispatch& to) {
  tensors.insert(tensors.end(), {to.choice, to.token, to.row_of_token});
  context->save_for_backward(std::move(tensors));
  context->saved_data["begin"] = to.begin;
  context->saved_data["capacity"] = to.capacity;
}

inline Dispatch saved_dispatch(torch::autograd::AutogradContext* context, const torch::autograd::variable_list& saved) {
  return {.begin = context->saved_data["begin"].toIntVector(),
          .choice = saved[saved.size() - 3],
          .token = saved[saved.size() - 2],
          .capacity = context->saved_data["capacity"].toInt(),
          .row_of_token = saved.back()};
}

}  // namespace dovetail::moe
