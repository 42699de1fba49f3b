#pragma once

namespace dovetail::cli {

/// Runs the program `dovetail`: parses the arguments, runs the command and prints errors. Returns
/// the exit code: 0 done, 1 failed, 2 wrong input. A rank of a job whose failure was already
/// announced (JobEnd) returns 0.
int run_command_line(int argc, char** argv);

}  // namespace dovetail::cli
