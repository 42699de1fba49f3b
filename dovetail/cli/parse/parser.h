#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/cli/parse/command.h"

namespace dovetail::cli {

/// Result of parsing a command line: a command to run, or a text (`--help`, `--version`) to print.
struct Parsed {
  Command* command = nullptr;  ///< null if there is only a text to print
  std::string text;
};

/// Parses `words`, the command line without the program's name. The first word selects one of
/// `commands`; its options are written into the variables that it declared (Argument::target). For
/// an unknown option or command, throws UserError that names the nearest valid one. Only parser.cpp
/// includes CLI11, which costs ten seconds of compilation.
Parsed parse_command_line(const std::vector<std::unique_ptr<Command>>& commands,
                          const std::vector<std::string>& words);

/// Returns the version with a line break. Example: "dovetail 0.1.0 (torch 2.11.0)\n".
std::string version_line();

}  // namespace dovetail::cli
