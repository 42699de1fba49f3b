#pragma once

#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "dovetail/plan/step/planned_step.h"

namespace dovetail::plan {

/// Names, shapes and dtypes of a step's inputs, and its constants. A plan is for one of these.
class InputSizes {
 public:
  InputSizes() = default;
  InputSizes(const PlannedStep::Inputs& inputs, PlannedStep::Constants constants)
      : constants_(std::move(constants)) {
    for (const auto& [name, tensor] : inputs)
      inputs_.emplace_back(name, tensor.sizes().vec(), tensor.scalar_type());
  }
  bool operator==(const InputSizes&) const = default;

 private:
  std::vector<std::tuple<std::string, std::vector<int64_t>, at::ScalarType>> inputs_;
  PlannedStep::Constants constants_;
};

}  // namespace dovetail::plan
