#include <nlohmann/json.hpp>

#include "dovetail/base/machine.h"
#include "dovetail/base/table.h"
#include "dovetail/cli/commands/inspect.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"

namespace dovetail::cli {
namespace {

std::string text_of(const nlohmann::ordered_json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_number_integer()) return format_grouped(value.get<int64_t>());
  if (value.is_boolean()) return value.get<bool>() ? "yes" : "no";
  return value.dump();
}

/// Returns a table of objects that have the same keys.
std::vector<std::vector<std::string>> rows_of(const nlohmann::ordered_json& objects) {
  std::vector<std::vector<std::string>> rows(1);
  for (const auto& [key, value] : objects.front().items()) rows[0].push_back(key);
  for (const auto& object : objects) {
    rows.emplace_back();
    for (const auto& value : object) rows.back().push_back(text_of(value));
  }
  return rows;
}

class InspectCommand : public Command {
 public:
  std::string name() const override { return "inspect"; }
  std::string summary() const override {
    return "Describe and verify a run, checkpoint, data folder, safetensors or tokenizer file";
  }
  std::string example() const override {
    return "dovetail inspect runs/quickstart/checkpoints/step-00001000";
  }

  void declare(Arguments& arguments) override {
    arguments.positional("path", &path_, "File or folder")
        .is_required()
        .completes(Completion::kFile);
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    const Inspection inspection = inspect(path_);
    if (json_) {
      nlohmann::ordered_json json = {{"kind", inspection.kind}, {"path", path_}};
      json.update(inspection.facts);
      print_json(json);
      return;
    }
    std::vector<std::vector<std::string>> facts = {{path_, inspection.kind}};
    for (const auto& [key, value] : inspection.facts.items()) {
      if (!value.is_array()) facts.push_back({key, text_of(value)});
    }
    print(format_table(facts));
    for (const auto& value : inspection.facts) {
      if (value.is_array() && !value.empty())
        print("\n" + format_table(rows_of(value), Heading::kFirstRow));
    }
  }

 private:
  std::string path_;
  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_inspect_command() { return std::make_unique<InspectCommand>(); }

}  // namespace dovetail::cli
