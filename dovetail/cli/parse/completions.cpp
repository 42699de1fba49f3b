#include "dovetail/cli/parse/completions.h"

#include <fmt/ranges.h>

#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::cli {
namespace {

struct CommandEntry {
  std::string name, summary;
  std::vector<Argument> arguments;
};

std::vector<CommandEntry> entries_of(const std::vector<std::unique_ptr<Command>>& commands) {
  std::vector<CommandEntry> entries;
  for (const auto& command : commands) {
    Arguments arguments;
    command->declare(arguments);
    entries.push_back({command->name(), command->summary(), arguments.list()});
  }
  return entries;
}

/// Splits names: "-n,--ranks" has two spellings.
std::vector<std::string> spellings(const Argument& argument) {
  std::vector<std::string> names;
  size_t begin = 0;
  while (begin <= argument.name.size()) {
    const size_t end = std::min(argument.name.find(',', begin), argument.name.size());
    names.push_back(argument.name.substr(begin, end - begin));
    begin = end + 1;
  }
  return names;
}

bool is_option(const Argument& argument) {
  return argument.kind == Argument::Kind::kOption || argument.kind == Argument::Kind::kFlag;
}

std::vector<std::string> option_words(const CommandEntry& entry) {
  std::vector<std::string> words = {"--help"};
  for (const Argument& argument : entry.arguments) {
    if (!is_option(argument)) continue;
    for (const std::string& name : spellings(argument)) words.push_back(name);
  }
  return words;
}

std::string single_quoted(const std::string& text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

/// Returns the bash code that completes a value: words, files, folders or nothing.
std::string bash_reply(const Argument& argument) {
  if (!argument.choices.empty())
    return fmt::format("COMPREPLY=($(compgen -W \"{}\" -- \"$word\"))",
                       fmt::join(argument.choices, " "));
  if (argument.completion == Completion::kFile)
    return "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$word\"))";
  if (argument.completion == Completion::kFolder)
    return "compopt -o filenames; COMPREPLY=($(compgen -d -- \"$word\"))";
  return "COMPREPLY=()";
}

std::string bash_script(const std::vector<CommandEntry>& entries) {
  std::vector<std::string> names = {"--help", "--version"};
  std::string cases;
  for (const CommandEntry& entry : entries) {
    names.push_back(entry.name);
    std::string values, positional = "COMPREPLY=()";
    for (const Argument& argument : entry.arguments) {
      if (argument.kind == Argument::Kind::kPositional) positional = bash_reply(argument);
      if (argument.kind != Argument::Kind::kOption) continue;
      values += fmt::format("        {}) {}; return ;;\n", fmt::join(spellings(argument), "|"),
                            bash_reply(argument));
    }
    cases += fmt::format(
        "    {})\n      case \"$previous\" in\n{}      esac\n"
        "      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); else {}; "
        "fi ;;\n",
        entry.name, values, fmt::join(option_words(entry), " "), positional);
  }
  return fmt::format(
      "# dovetail completion for bash: eval \"$(dovetail completions bash)\"\n"
      "_dovetail() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  if [[ $COMP_CWORD -eq 1 ]]; then COMPREPLY=($(compgen -W \"{}\" -- \"$word\")); return; "
      "fi\n"
      "  case ${{COMP_WORDS[1]}} in\n{}  esac\n"
      "}}\n"
      "complete -F _dovetail dovetail\n",
      fmt::join(names, " "), cases);
}

/// Escapes brackets and colons in a help text for zsh's _arguments: `--name[help]:value:action`.
std::string zsh_text(const std::string& text) {
  std::string escaped;
  for (const char c : text)
    escaped += c == '[' || c == ']' || c == ':' ? std::string("\\") + c : std::string(1, c);
  return escaped;
}

std::string zsh_action(const Argument& argument) {
  if (!argument.choices.empty()) return fmt::format("({})", fmt::join(argument.choices, " "));
  if (argument.completion == Completion::kFile) return "_files";
  if (argument.completion == Completion::kFolder) return "_files -/";
  return " ";
}

std::string zsh_script(const std::vector<CommandEntry>& entries) {
  std::string names, cases;
  for (const CommandEntry& entry : entries) {
    names += fmt::format("    {}\n", single_quoted(entry.name + ":" + zsh_text(entry.summary)));
    cases += fmt::format("    {})\n      _arguments -s '--help[Show help]'", entry.name);
    for (const Argument& argument : entry.arguments) {
      const bool repeats = std::holds_alternative<std::vector<std::string>*>(argument.target);
      if (!is_option(argument)) {
        const std::string action =
            argument.kind == Argument::Kind::kRemainder ? "_normal" : zsh_action(argument);
        cases += " \\\n        " + single_quoted(fmt::format("{}:{}:{}", repeats ? "*" : "",
                                                             zsh_text(argument.name), action));
        continue;
      }
      for (const std::string& name : spellings(argument)) {
        const std::string value =
            argument.kind == Argument::Kind::kOption
                ? fmt::format(":{}:{}", argument.value_name, zsh_action(argument))
                : "";
        cases += " \\\n        " + single_quoted(fmt::format("{}{}[{}]{}", repeats ? "*" : "", name,
                                                             zsh_text(argument.help), value));
      }
    }
    cases += " ;;\n";
  }
  // words: off (a script)
  return fmt::format(
      "#compdef dovetail\n"
      "# dovetail completion for zsh: source <(dovetail completions zsh)\n"
      "_dovetail() {{\n"
      "  local -a commands=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then _describe command commands; _arguments '--help[Show help]' "
      "'--version[Print the version]'; return; fi\n"
      "  local command=$words[2]\n"
      "  shift words; (( CURRENT-- ))\n"
      "  case $command in\n{}  esac\n"
      "}}\n"
      "compdef _dovetail dovetail\n",
      names, cases);
  // words: on
}

std::string fish_script(const std::vector<CommandEntry>& entries) {
  std::string script =
      "# dovetail completion for fish: dovetail completions fish | source\ncomplete -c dovetail "
      "-f\n";
  for (const CommandEntry& entry : entries) {
    script += fmt::format("complete -c dovetail -n __fish_use_subcommand -a {} -d {}\n", entry.name,
                          single_quoted(entry.summary));
    for (const Argument& argument : entry.arguments) {
      std::string line =
          fmt::format("complete -c dovetail -n '__fish_seen_subcommand_from {}'", entry.name);
      if (is_option(argument)) {
        for (const std::string& name : spellings(argument))
          line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
        if (argument.kind == Argument::Kind::kOption) line += " -r";
      } else if (argument.completion == Completion::kNone && argument.choices.empty()) {
        continue;
      }
      if (!argument.choices.empty())
        line += fmt::format(" -a '{}'", fmt::join(argument.choices, " "));
      if (argument.completion == Completion::kFile) line += " -F";
      if (argument.completion == Completion::kFolder) line += " -a '(__fish_complete_directories)'";
      script += line + " -d " + single_quoted(argument.help) + "\n";
    }
  }
  return script;
}

}  // namespace

std::string completion_script(const std::string& shell,
                              const std::vector<std::unique_ptr<Command>>& commands) {
  const std::vector<CommandEntry> entries = entries_of(commands);
  if (shell == "bash") return bash_script(entries);
  if (shell == "zsh") return zsh_script(entries);
  DOVETAIL_CHECK(shell == "fish", "no completions for {}", shell);
  return fish_script(entries);
}

}  // namespace dovetail::cli
