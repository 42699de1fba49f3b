#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/cli/parse/command.h"

namespace dovetail::cli {

/// Returns a script with which a shell completes `dovetail` command lines. `shell` is "bash", "zsh"
/// or "fish". The script follows the declarations of `commands`, so it offers exactly the words
/// that the parser accepts.
std::string completion_script(const std::string& shell,
                              const std::vector<std::unique_ptr<Command>>& commands);

}  // namespace dovetail::cli
