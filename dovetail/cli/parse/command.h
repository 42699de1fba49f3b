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

/// Kind of completion that a shell offers for the value of an argument.
enum class Completion { kNone, kFile, kFolder };

/// Declaration of one option, flag or positional argument of a command. The parser, `--help` and
/// the shell completions all use these declarations.
struct Argument {
  /// kRemainder takes all words from the first one that is no option of the command, unparsed.
  enum class Kind { kPositional, kOption, kFlag, kRemainder };
  /// Variable into which the parser writes the value.
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<std::string>*>;

  Kind kind = Kind::kOption;
  std::string name;  ///< examples: "--tokens", "-n,--ranks", or a positional's "config"
  /// Placeholder of the value in `--help`, such as "N" or "FILE"; empty if there is no value.
  std::string value_name;
  std::string help;
  Target target;  ///< a flag sets a bool; a vector collects the values of all occurrences
  bool required = false;
  /// Minimum and maximum of a value that is a number.
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  std::vector<std::string> choices;           ///< allowed texts; empty: any text
  Completion completion = Completion::kNone;  ///< completion of the value in a shell
  /// Values of the command's first positional with which this option is allowed. Empty: all values.
  /// Example: --target only for "linear" and "logistic" in `dovetail fit MODEL`. The value ""
  /// stands for a command line without that positional.
  std::vector<std::string> only_for = {};

  // The members below set one field each and return the argument, to be chained in a declaration.

  Argument& is_required() { return required = true, *this; }
  Argument& range(double lowest, double highest) { return low = lowest, high = highest, *this; }
  Argument& one_of(std::vector<std::string> values) { return choices = std::move(values), *this; }
  Argument& completes(Completion what) { return completion = what, *this; }
  Argument& goes_with(std::vector<std::string> firsts) {
    return only_for = std::move(firsts), *this;
  }
  /// Returns true if `first` is in `only_for`.
  bool goes_with_only(const std::string& first) const {
    return std::ranges::find(only_for, first) != only_for.end();
  }
};

/// Arguments of one command, in the order in which `--help` shows them. Each member below adds an
/// argument. The returned reference is valid until the next argument is added.
class Arguments {
 public:
  Argument& positional(std::string name, Argument::Target target, std::string help);
  Argument& option(std::string name, std::string value_name, Argument::Target target,
                   std::string help);
  Argument& flag(std::string name, bool& target, std::string help);
  /// Adds all arguments of `others`. They are allowed only if the value of the command's first
  /// positional is in `firsts`.
  void add_only_for(const std::vector<std::string>& firsts, const Arguments& others);
  /// Adds an argument that takes all words from the first one that is no option of this command.
  Argument& remainder(std::string name, std::vector<std::string>& target, std::string help);

  const std::vector<Argument>& list() const { return list_; }

 private:
  std::vector<Argument> list_;
};

/// Subcommand of `dovetail`, such as `dovetail train`. The program calls `declare`, parses the
/// command line into the declared variables, then calls `run` once.
class Command {
 public:
  virtual ~Command() = default;
  virtual std::string name() const = 0;
  virtual std::string summary() const = 0;
  virtual std::string example() const = 0;
  virtual void declare(Arguments& arguments) = 0;
  /// Throws UserError for mistakes in the options that can be found before `run`. `dovetail launch`
  /// calls it once, so that not every rank has to fail.
  virtual void check() {}
  /// Runs the command. A UserError means exit code 2, any other exception exit code 1.
  virtual void run() = 0;
};

/// Returns all subcommands in the order of `dovetail --help`.
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
