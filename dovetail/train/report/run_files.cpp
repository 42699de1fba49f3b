#include "dovetail/train/report/run_files.h"

#include <fmt/format.h>

#include <limits>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"

namespace dovetail::train {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

Json parse_json(std::string_view text, const std::string& place) {
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded())
    throw UserError(fmt::format("{} is not JSON", place),
                    "a file of the run is damaged; the others are not used either");
  return json;
}

Json read_json_if_present(const fs::path& path) {
  return fs::exists(path) ? parse_json(read_file(path), path.string()) : Json();
}

constexpr int64_t kMostSteps = int64_t{1} << 53;  ///< doubles are exact up to here

/// Returns the lines of a .jsonl file, by rising step. A last line without a newline is still being
/// written, so it is left out.
std::vector<Json> read_lines(const fs::path& path) {
  std::vector<Json> lines;
  int64_t last_step = 0;
  const std::string text = read_file(path);
  std::string_view rest = text;
  for (size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
    const std::string place = fmt::format("{}:{}", path.string(), lines.size() + 1);
    Json line = parse_json(rest.substr(0, end), place);
    user_check(line.is_object() && line.contains("step") && line["step"].is_number_integer(),
               "{} has no step", place);
    const auto step = line["step"].get<int64_t>();
    user_check(step >= last_step && step <= kMostSteps, "{}: step {} follows step {}", place,
               line["step"].dump(), last_step);
    last_step = step;
    lines.push_back(std::move(line));
    rest.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

RunFiles read_run(const fs::path& folder) {
  if (!fs::exists(folder / "config.toml") || !fs::exists(folder / "metrics.jsonl")) {
    throw UserError(
        fmt::format("{} is not the folder of a run: it has no {}", folder.string(),
                    fs::exists(folder / "config.toml") ? "metrics.jsonl" : "config.toml"),
        "give the folder that `dovetail train` made, such as runs/<name>");
  }
  RunFiles files{.folder = folder, .config_text = read_file(folder / "config.toml")};
  parse_config([&](Section& s) { files.config.describe(s); }, files.config_text,
               (folder / "config.toml").string());
  files.metrics = read_lines(folder / "metrics.jsonl");
  if (fs::exists(folder / "timings.jsonl")) files.timings = read_lines(folder / "timings.jsonl");
  if (fs::exists(folder / "quantization.jsonl"))
    files.quantization = read_lines(folder / "quantization.jsonl");
  if (fs::exists(folder / "experts.jsonl")) files.experts = read_lines(folder / "experts.jsonl");
  if (fs::exists(folder / "balance.jsonl")) files.balance = read_lines(folder / "balance.jsonl");
  files.machine = read_json_if_present(folder / "machine.json");
  files.samples = read_json_if_present(folder / "samples.json");
  if (!files.config.memory.budget.empty())
    files.memory_plan = read_json_if_present(folder / "memory_plan.json");
  return files;
}

double number_of(const Json& line, const char* key) {
  const auto found = line.find(key);
  return found != line.end() && found->is_number() ? found->get<double>()
                                                   : std::numeric_limits<double>::quiet_NaN();
}

Json value_at(const Json& json, std::initializer_list<const char*> keys) {
  const Json* at = &json;
  for (const char* key : keys) {
    if (!at->is_object() || !at->contains(key)) return nullptr;
    at = &(*at)[key];
  }
  return *at;
}

}  // namespace dovetail::train
