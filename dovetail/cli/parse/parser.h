#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/cli/parse/command.h"

namespace dovetail::cli {

/// Result of parsing a command line: a command to run, or a text (`--help`, `--version`) to print.
struct Parsed {
  Command* command = nullptr;
  std::string text;
};

/// Parses `words` (without the program's name) into the members of one of `commands`. Throws
/// UserError that names the nearest option or command. Only parser.cpp includes CLI11, which costs
/// ten seconds of compilation.
Parsed parse_command_line(const std::vector<std::unique_ptr<Command>>& commands,
                          const std::vector<std::string>& words);

/// Returns "dovetail 0.1.0 (torch 2.11.0)".
std::string version_line();

}  // namespace dovetail::cli
