#include "dovetail/plan/record/argument_values.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/item.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace dovetail::plan {

bool same_value(const c10::IValue& a, const c10::IValue& b) {
  if (a.isTensor() && b.isTensor()) {  // wrapped numbers
    const at::Tensor &x = a.toTensor(), &y = b.toTensor();
    if (x.defined() != y.defined()) return false;
    return !x.defined() || (x.scalar_type() == y.scalar_type() && same_value(x.item(), y.item()));
  }
  if (a.isGenerator() || b.isGenerator()) return a.isGenerator() && b.isGenerator();
  if (a.isCapsule() || b.isCapsule()) return a.isCapsule() && b.isCapsule();
  if (a.isDouble() && b.isDouble() && std::isnan(a.toDouble()) && std::isnan(b.toDouble()))
    return true;
  return a == b;
}

bool is_number(const c10::IValue& value) {
  if (value.isTensor()) return value.toTensor().defined() && is_number(value.toTensor().item());
  if (value.isList() && !value.isIntList() && !value.isTensorList())
    return std::ranges::all_of(value.toListRef(), is_number);
  return value.isInt() || value.isDouble() || value.isComplexDouble();
}

std::string text_of(const c10::IValue& value) {
  if (value.isTensor() && value.toTensor().defined()) return text_of(value.toTensor().item());
  if (value.isDouble()) return fmt::format("{}", value.toDouble());
  std::ostringstream out;
  out << value;
  return out.str();
}

}  // namespace dovetail::plan
