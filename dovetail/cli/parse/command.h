#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace dovetail::cli {

/// What a shell offers when it completes the value of an argument.
enum class Completion { kNone, kFile, kFolder };

/// One option, flag or positional argument. The command line is declared as data: the parser,
/// `--help` and the shell completions are all made from it.
struct Argument {
  enum class Kind { kPositional, kOption, kFlag, kRemainder };
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*>;

  Kind kind = Kind::kOption;
  std::string name;        ///< "--tokens", "-n,--ranks", or a positional's "config"
  std::string value_name;  ///< "N", "FILE"; empty for flags and positionals
  std::string help;
  Target target;  ///< a flag sets a bool; a vector takes every occurrence
  bool required = false;
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices;
  Completion completion = Completion::kNone;
  /// Values of the command's first positional, with any other of which it is refused; empty: it
  /// goes with all.
  std::vector<std::string> only_for = {};

  Argument& is_required() { return required = true, *this; }
  Argument& range(double lowest, double highest) { return low = lowest, high = highest, *this; }
  Argument& one_of(std::vector<std::string> values) { return choices = std::move(values), *this; }
  Argument& completes(Completion what) { return completion = what, *this; }
  Argument& goes_with(std::vector<std::string> firsts) {
    return only_for = std::move(firsts), *this;
  }
  bool goes_with_only(const std::string& first) const {
    return std::ranges::find(only_for, first) != only_for.end();
  }
};

/// The arguments of one command, in the order in which `--help` shows them.
class Arguments {
 public:
  Argument& positional(std::string name, Argument::Target target, std::string help);
  Argument& option(std::string name, std::string value_name, Argument::Target target,
                   std::string help);
  Argument& flag(std::string name, bool& target, std::string help);
  /// Those of `others`, which go with one value of the first positional alone.
  void add_only_for(const std::string& first, const Arguments& others);
  /// Everything from the first word that is no option of this command, unparsed.
  Argument& remainder(std::string name, std::vector<std::string>& target, std::string help);

  const std::vector<Argument>& list() const { return list_; }

 private:
  std::vector<Argument> list_;
};

/// A subcommand: declared, parsed into its members, then run once.
class Command {
 public:
  virtual ~Command() = default;
  virtual std::string name() const = 0;
  virtual std::string summary() const = 0;
  virtual std::string example() const = 0;
  virtual void declare(Arguments& arguments) = 0;
  /// Whatever can be refused before `run`: `launch` calls it once instead of letting every rank
  /// fail.
  virtual void check() {}
  /// Throws UserError (exit 2) or anything else (exit 1).
  virtual void run() = 0;
};

/// All subcommands in the order of `dovetail --help`.
std::vector<std::unique_ptr<Command>> all_commands();

std::unique_ptr<Command> make_train_command();
std::unique_ptr<Command> make_eval_command();
std::unique_ptr<Command> make_generate_command();
std::unique_ptr<Command> make_prepare_command();
std::unique_ptr<Command> make_inspect_command();
std::unique_ptr<Command> make_report_command();
std::unique_ptr<Command> make_config_command();
std::unique_ptr<Command> make_doctor_command();
std::unique_ptr<Command> make_launch_command();
std::unique_ptr<Command> make_bench_command();
std::unique_ptr<Command> make_simulate_command();
std::unique_ptr<Command> make_plan_command();
std::unique_ptr<Command> make_kmeans_command();
std::unique_ptr<Command> make_fit_command();
std::unique_ptr<Command> make_export_command();
std::unique_ptr<Command> make_import_command();
std::unique_ptr<Command> make_completions_command();

}  // namespace dovetail::cli
