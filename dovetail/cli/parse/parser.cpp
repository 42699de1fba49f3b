#include "dovetail/cli/parse/parser.h"

#include <fmt/ranges.h>
#include <torch/version.h>

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/schema.h"

namespace dovetail::cli {
namespace {

constexpr const char* kFooter =
    "`dovetail COMMAND --help` shows a command's options and an example.\n"
    "Exit codes: 0 done, 1 failed, 2 the input was wrong. With --json, results and errors are one "
    "JSON object on\n"
    "standard output. Progress and messages for people always go to standard error.";

double parse_number(const Argument& argument, const std::string& word) {
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  if (error != std::errc{} || end != word.data() + word.size()) {
    throw UserError(fmt::format("{}: \"{}\" is not a number", argument.name, word));
  }
  if (std::holds_alternative<int64_t*>(argument.target) &&
      (value != std::floor(value) || std::abs(value) > 9e15)) {
    throw UserError(fmt::format("{}: {} is not a whole number", argument.name, word));
  }
  if (!(value >= argument.low && value <= argument.high)) {
    throw UserError(std::isinf(argument.high)
                        ? fmt::format("{}: {} is below {}", argument.name, word, argument.low)
                        : fmt::format("{}: {} is outside {} to {}", argument.name, word,
                                      argument.low, argument.high));
  }
  return value;
}

void check_choice(const Argument& argument, const std::string& word) {
  if (argument.choices.empty() ||
      std::find(argument.choices.begin(), argument.choices.end(), word) != argument.choices.end()) {
    return;
  }
  const std::string nearest = nearest_word(word, argument.choices);
  throw UserError(fmt::format("{}: \"{}\" is not one of {}", argument.name, word,
                              fmt::join(argument.choices, ", ")),
                  nearest.empty() ? "" : fmt::format("did you mean `{}`?", nearest));
}

void assign(const Argument& argument, const std::vector<std::string>& words) {
  for (const std::string& word : words) {
    check_choice(argument, word);
    if (auto* const* target = std::get_if<int64_t*>(&argument.target)) {
      **target = static_cast<int64_t>(parse_number(argument, word));
    } else if (auto* const* target = std::get_if<double*>(&argument.target)) {
      **target = parse_number(argument, word);
    } else if (auto* const* target = std::get_if<std::string*>(&argument.target)) {
      if (word.empty() && argument.value_name != "TEXT")
        throw UserError(fmt::format("{} is empty", argument.name),
                        "give it a value, or leave it out");
      **target = word;
    } else if (auto* const* target = std::get_if<std::vector<std::string>*>(&argument.target)) {
      (*target)->push_back(word);
    }
  }
}

void declare_to(CLI::App& app, const Argument& argument) {
  using Kind = Argument::Kind;
  if (argument.kind == Kind::kRemainder) {
    app.prefix_command();
    return;
  }
  if (argument.kind == Kind::kFlag) {
    app.add_flag(argument.name, *std::get<bool*>(argument.target), argument.help);
    return;
  }
  const CLI::callback_t callback = [&argument](const CLI::results_t& words) {
    assign(argument, words);
    return true;
  };
  const std::string help =
      argument.only_for.empty() || argument.goes_with_only("")
          ? argument.help
          : fmt::format("{}: {}", fmt::join(argument.only_for, ", "), argument.help);
  CLI::Option* option = app.add_option(argument.name, callback, help);
  option->type_name(argument.value_name)->required(argument.required && argument.only_for.empty());
  if (std::holds_alternative<std::vector<std::string>*>(argument.target)) {
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
    if (argument.kind == Kind::kPositional) option->expected(CLI::detail::expected_max_vector_size);
  }
}

std::vector<std::string> option_names(const Arguments& arguments) {
  std::vector<std::string> names = {"--help"};
  for (const Argument& argument : arguments.list()) {
    if (argument.name.starts_with("-"))
      names.push_back(argument.name.substr(argument.name.rfind(',') + 1));
  }
  return names;
}

/// Returns the error for an unexpected word, with the nearest valid word.
UserError unexpected_word(const std::string& word, const std::string& command,
                          const std::vector<std::string>& known) {
  const std::string plain = word.substr(0, word.find('='));
  const std::string nearest = nearest_word(plain, known);
  const bool is_option = plain.starts_with("-");
  const std::string what = is_option ? "option" : command.empty() ? "command" : "argument";
  const std::string help = nearest.empty() ? fmt::format("see `dovetail {}{}--help`", command,
                                                         command.empty() ? "" : " ")
                                           : fmt::format("did you mean `{}`?", nearest);
  return UserError(command.empty()
                       ? fmt::format("unknown {} `{}`", what, plain)
                       : fmt::format("unknown {} `{}` of `dovetail {}`", what, plain, command),
                   help);
}

/// Returns an error of the parser in the wording of Dovetail.
std::string fault_of(const CLI::ParseError& error) {
  std::string text = error.what();
  const std::string name = text.substr(0, text.find(": "));
  const auto after = [&](std::string_view words) {
    return text.substr(text.rfind(words) + words.size());
  };
  constexpr std::string_view kReceived = " required but received ", kRequired = " required ",
                             kMissing = " missing", kConvert = "Could not convert: ";
  if (text.find(kReceived) != std::string::npos) {
    const std::string times = after(kReceived);
    return fmt::format("{} is given {}", name, times == "2" ? "twice" : times + " times");
  }
  if (text.find(kRequired) != std::string::npos && text.ends_with(kMissing)) {
    const std::string rest = after(kRequired);
    return fmt::format("{} has no value; it needs {}", name,
                       rest.substr(0, rest.size() - kMissing.size()));
  }
  if (text.starts_with(kConvert)) {
    const std::string rest = after(kConvert);
    return fmt::format("{} is a flag and takes no value", rest.substr(0, rest.find(" = ")));
  }
  return text;
}

struct Entry {
  Command* command = nullptr;
  Arguments arguments;
  CLI::App* app = nullptr;
};

void add_command(CLI::App& root, Entry& entry) {
  entry.command->declare(entry.arguments);
  entry.app = root.add_subcommand(entry.command->name(), entry.command->summary());
  entry.app->footer("Example:\n  " + entry.command->example());
  for (const Argument& argument : entry.arguments.list()) declare_to(*entry.app, argument);
}

/// Throws UserError for an option that the value of the first positional does not allow.
void check_only_for(const Entry& entry) {
  const std::string command = entry.command->name();
  const auto words = [&](const std::string& first) {
    return first.empty() ? command : command + " " + first;
  };
  const std::vector<Argument>& list = entry.arguments.list();
  for (const Argument& argument : list) {
    if (argument.only_for.empty()) continue;
    const std::string& first = *std::get<std::string*>(list.front().target);
    const bool given = entry.app->get_option(argument.name)->count() > 0;
    if (given && !argument.goes_with_only(first))
      throw UserError(
          fmt::format("{} is an option of `dovetail {}`, not of `dovetail {}`", argument.name,
                      words(fmt::format("{}", fmt::join(argument.only_for, "`, `"))), words(first)),
          fmt::format("see `dovetail {} --help`", command));
    if (!given && argument.required && argument.goes_with_only(first))
      throw UserError(fmt::format("dovetail {}: {} is required", words(first), argument.name),
                      "for example: " + entry.command->example());
  }
}

void take_remainder(const Entry& entry) {
  for (const Argument& argument : entry.arguments.list()) {
    if (argument.kind != Argument::Kind::kRemainder) continue;
    *std::get<std::vector<std::string>*>(argument.target) = entry.app->remaining();
    if (argument.required && entry.app->remaining().empty()) {
      throw UserError(fmt::format("`dovetail {}` needs {}", entry.command->name(), argument.name),
                      "for example: " + entry.command->example());
    }
  }
}

}  // namespace

std::string version_line() {
  return fmt::format("dovetail {} (torch {})\n", DOVETAIL_VERSION, TORCH_VERSION);
}

Parsed parse_command_line(const std::vector<std::unique_ptr<Command>>& commands,
                          const std::vector<std::string>& words) {
  CLI::App root("Trains language models on one CPU, several ranks or a GPU.", "dovetail");
  root.require_subcommand(0, 1);
  root.footer(kFooter);
  bool version = false;
  root.add_flag("--version", version, "Print the version and exit");
  // Arguments keep addresses of entries, so the vector is never resized.
  std::vector<Entry> entries(commands.size());
  std::vector<std::string> names = {"--help", "--version"};
  for (size_t i = 0; i < commands.size(); ++i) {
    entries[i].command = commands[i].get();
    add_command(root, entries[i]);
    names.push_back(commands[i]->name());
  }
  const auto chosen = [&]() -> Entry* {
    const auto found = std::find_if(entries.begin(), entries.end(),
                                    [](const Entry& e) { return e.app->parsed(); });
    return found == entries.end() ? nullptr : &*found;
  };
  try {
    root.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::CallForHelp&) {
    return {.text = root.help()};
  } catch (const CLI::ExtrasError&) {
    const Entry* entry = chosen();
    if (entry == nullptr) throw unexpected_word(root.remaining(true).at(0), "", names);
    throw unexpected_word(root.remaining(true).at(0), entry->command->name(),
                          option_names(entry->arguments));
  } catch (const CLI::ParseError& error) {
    const Entry* entry = chosen();
    const std::string command = entry == nullptr ? "" : " " + entry->command->name();
    throw UserError(
        fmt::format("dovetail{}: {}", command, fault_of(error)),
        entry == nullptr ? "see `dovetail --help`" : "for example: " + entry->command->example());
  }
  if (version) return {.text = version_line()};
  const Entry* entry = chosen();
  if (entry == nullptr) throw UserError("no command was given", "see `dovetail --help`");
  take_remainder(*entry);
  check_only_for(*entry);
  return {.command = entry->command};
}

}  // namespace dovetail::cli
