#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace dovetail::plan {

/// Compares arguments that are no tensors. Bodies of operations (base/operation.h) and generators
/// count as alike.
bool same_value(const c10::IValue& a, const c10::IValue& b);
/// True for a number that may be another one in the next step: no flag, list or text.
bool is_number(const c10::IValue& value);
/// For messages.
std::string text_of(const c10::IValue& value);

}  // namespace dovetail::plan
