#pragma once

namespace dovetail::cli {

/// Runs the program `dovetail`: parses the arguments, runs the command and prints errors. Returns
/// the exit code: 0 done, 1 failed, 2 wrong input. In a rank of a job, returns 0 after a failure
/// that this or another rank announced (JobEnd).
int run_command_line(int argc, char** argv);

}  // namespace dovetail::cli
