#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/cli/parse/command.h"

namespace dovetail::cli {

/// What a command line asks for: a command to run, or a text (`--help`, `--version`) to print.
struct Parsed {
  Command* command = nullptr;
  std::string text;
};

/// Parse `words` (without the program's name) into the members of one of `commands`. Throws
/// UserError that names the nearest option or command. The only file that includes CLI11, which
/// costs ten seconds of compilation.
Parsed parse_command_line(const std::vector<std::unique_ptr<Command>>& commands,
                          const std::vector<std::string>& words);

/// "dovetail 0.1.0 (torch 2.11.0)".
std::string version_line();

}  // namespace dovetail::cli
