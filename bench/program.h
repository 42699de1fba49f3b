#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>

#include "dovetail/base/error.h"

namespace dovetail {

/// Implements main() of a benchmark: parses its options and returns the exit code of `body`. A
/// UserError prints its reason and returns 2.
inline int run_program(CLI::App& app, int argc, char** argv, const std::function<int()>& body) {
  CLI11_PARSE(app, argc, argv);
  try {
    return body();
  } catch (const UserError& error) {
    std::cerr << describe_error(error) << '\n';
    return 2;
  }
}

}  // namespace dovetail
