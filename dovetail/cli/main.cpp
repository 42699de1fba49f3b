#include <unistd.h>

#include <cstdio>

#include "dovetail/cli/command_line.h"

// Ends without static destructors. Torch's take 0.2 s to unregister operators one by one, a third
// of the time of a short command.
int main(int argc, char** argv) {
  const int exit_code = dovetail::cli::run_command_line(argc, argv);
  std::fflush(nullptr);
  ::_exit(exit_code);
}
