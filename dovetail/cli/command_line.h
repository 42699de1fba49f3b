#pragma once

namespace dovetail::cli {

/// The `dovetail` command: parses, runs, reports errors; returns the exit code (0 done, 1 failed, 2
/// the input was wrong).
int run_command_line(int argc, char** argv);

}  // namespace dovetail::cli
