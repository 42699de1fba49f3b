#pragma once

#include <memory>
#include <string>
#include <vector>

#include "dovetail/cli/parse/command.h"

namespace dovetail::cli {

/// Returns a completion script for "bash", "zsh" or "fish". It is made from the declarations of
/// `commands`, so it offers exactly the words that the parser takes.
std::string completion_script(const std::string& shell,
                              const std::vector<std::unique_ptr<Command>>& commands);

}  // namespace dovetail::cli
