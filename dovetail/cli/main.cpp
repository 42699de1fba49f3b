#include "dovetail/cli/command_line.h"

int main(int argc, char** argv) { return dovetail::cli::run_command_line(argc, argv); }
