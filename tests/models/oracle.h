#pragma once

#include <ATen/ATen.h>

#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/folder.h"

/// Comparison with a reference in Python next to this file.
namespace dovetail::testing {

inline double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  return (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

/// Runs a script of tests/models/ with the environment's Python. Returns its exit status, or -1 if
/// DOVETAIL_PYTHON is not set.
inline int run_oracle(const std::string& script, const std::string& arguments) {
  const char* python = std::getenv("DOVETAIL_PYTHON");
  if (python == nullptr) return -1;
  const auto path = test::tests_folder() / "models" / script;
  return std::system(
      ("'" + std::string(python) + "' '" + path.string() + "' " + arguments).c_str());
}

}  // namespace dovetail::testing
