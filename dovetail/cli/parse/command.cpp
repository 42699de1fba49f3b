#include "dovetail/cli/parse/command.h"

#include <utility>

namespace dovetail::cli {

Argument& Arguments::positional(std::string name, Argument::Target target, std::string help) {
  list_.push_back({.kind = Argument::Kind::kPositional,
                   .name = std::move(name),
                   .help = std::move(help),
                   .target = target});
  return list_.back();
}

Argument& Arguments::option(std::string name, std::string value_name, Argument::Target target,
                            std::string help) {
  list_.push_back({.kind = Argument::Kind::kOption,
                   .name = std::move(name),
                   .value_name = std::move(value_name),
                   .help = std::move(help),
                   .target = target});
  return list_.back();
}

Argument& Arguments::flag(std::string name, bool& target, std::string help) {
  list_.push_back({.kind = Argument::Kind::kFlag,
                   .name = std::move(name),
                   .help = std::move(help),
                   .target = &target});
  return list_.back();
}

void Arguments::add_only_for(const std::vector<std::string>& firsts, const Arguments& others) {
  for (const Argument& argument : others.list()) {
    list_.push_back(argument);
    list_.back().only_for = firsts;
  }
}

Argument& Arguments::remainder(std::string name, std::vector<std::string>& target,
                               std::string help) {
  list_.push_back({.kind = Argument::Kind::kRemainder,
                   .name = std::move(name),
                   .help = std::move(help),
                   .target = &target});
  return list_.back();
}

std::vector<std::unique_ptr<Command>> all_commands() {
  std::vector<std::unique_ptr<Command>> commands;
  for (const auto make :
       {make_train_command, make_eval_command, make_generate_command, make_prepare_command,
        make_inspect_command, make_report_command, make_config_command, make_doctor_command,
        make_launch_command, make_bench_command, make_simulate_command, make_plan_command,
        make_kmeans_command, make_fit_command, make_export_command, make_import_command,
        make_completions_command}) {
    commands.push_back(make());
  }
  return commands;
}

}  // namespace dovetail::cli
