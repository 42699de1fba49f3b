#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <iostream>

#include "dovetail/base/error.h"

namespace dovetail {

/// main() of a benchmark: reads its options, then `body` gives the exit code; 2, with the reason,
/// after a UserError.
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
