#pragma once

namespace dovetail::cli {

/// Runs the `dovetail` command: parses the arguments, runs and reports errors. Returns the exit
/// code: 0 done, 1 failed, 2 wrong input.
int run_command_line(int argc, char** argv);

}  // namespace dovetail::cli
