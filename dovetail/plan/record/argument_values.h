#pragma once

#include <ATen/core/ivalue.h>

#include <string>

namespace dovetail::plan {

/// Compares two values of an argument that is not a tensor. Returns true if they are equal. Bodies
/// of operations (base/operation.h) and random generators always count as equal.
bool same_value(const c10::IValue& a, const c10::IValue& b);
/// Returns true if the argument is a number, which may differ in the next step. Returns false for a
/// flag, list or text.
bool is_number(const c10::IValue& value);
/// Returns an argument as text, for error messages.
std::string text_of(const c10::IValue& value);

}  // namespace dovetail::plan
