#include "dovetail/cli/commands/inspect.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cstdint>
#include <functional>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/text/token_store.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/io/checkpoint_manifest.h"
#include "dovetail/io/safetensors.h"

namespace dovetail::cli {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// Adds the tensors of a file to `list`. Returns their total number of elements.
int64_t add_tensors(const io::SafetensorsFile& file, Json& list) {
  int64_t elements = 0;
  for (const std::string& name : file.names()) {
    const std::vector<int64_t> shape = file.shape(name);
    elements += std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
    list.push_back(
        {{"tensor", name}, {"dtype", c10::toString(file.dtype(name))}, {"shape", shape}});
  }
  return elements;
}

Inspection inspect_safetensors(const fs::path& path) {
  const io::SafetensorsFile file(path);
  Json tensors = Json::array();
  const int64_t elements = add_tensors(file, tensors);
  Inspection result{.kind = "safetensors file",
                    .facts = {{"elements", elements},
                              {"bytes", fs::file_size(path)},
                              {"sha256", sha256_of_file(path)}}};
  for (const auto& [key, value] : file.metadata()) result.facts["metadata"][key] = value;
  result.facts["tensors"] = tensors;
  return result;
}

Json tokenizer_facts(const data::Tokenizer& tokenizer) {
  return {{"tokenizer", tokenizer.kind()},
          {"vocab_size", tokenizer.vocab_size()},
          {"end_of_document", tokenizer.end_of_document()}};
}

Inspection inspect_tokenizer(const fs::path& path) {
  const auto tokenizer = data::load_tokenizer(path);
  Inspection result{.kind = "tokenizer", .facts = tokenizer_facts(*tokenizer)};
  result.facts["bytes"] = fs::file_size(path);
  result.facts["sha256"] = sha256_of_file(path);
  return result;
}

/// Returns the checkpoints on which a delta depends, the full one first.
std::string bases_of(const io::StoredCheckpoint& checkpoint) {
  std::vector<std::string> names;
  for (const io::StoredCheckpoint::Link& link : checkpoint.links())
    if (link.step != checkpoint.step()) names.push_back(io::step_name(link.step));
  return fmt::format("{}", fmt::join(names, ", "));
}

Inspection inspect_checkpoint(const fs::path& path) {
  const io::CheckpointManifest manifest = io::read_manifest(path);
  const io::StoredCheckpoint checkpoint(
      path);  // verifies the checkpoint and those on which it depends
  Json tensors = Json::array();
  int64_t elements = 0;
  uint64_t bytes = 0;
  for (const io::ManifestFile& file : manifest.files) {
    elements += add_tensors(io::SafetensorsFile(path / file.name), tensors);
    bytes += file.bytes;
  }
  Inspection result{.kind = "checkpoint",
                    .facts = {{"step", manifest.step},
                              {"files", manifest.files.size()},
                              {"elements", elements},
                              {"bytes", bytes},
                              {"checksums", "verified"}}};
  if (manifest.base) {
    result.kind = "delta checkpoint";
    result.facts["builds_on"] = bases_of(checkpoint);
  }
  if (manifest.state.contains("config"))
    result.facts["run"] = manifest.state["config"]["run"]["name"];
  result.facts["tensors"] = tensors;
  return result;
}

Inspection inspect_data(const fs::path& path) {
  const data::TokenStore store(path, data::TokenStore::Verify::kChecksums);
  Inspection result{.kind = "prepared data",
                    .facts = {{"train_tokens", store.num_tokens(data::Split::kTrain)},
                              {"train_bytes", store.num_bytes(data::Split::kTrain)},
                              {"validation_tokens", store.num_tokens(data::Split::kValidation)},
                              {"validation_bytes", store.num_bytes(data::Split::kValidation)}}};
  result.facts.update(tokenizer_facts(store.tokenizer()));
  result.facts["sha256"] = store.sha256();
  result.facts["checksums"] = "verified";
  return result;
}

/// Returns the last line of metrics.jsonl; null if there is none.
nlohmann::json last_metrics(const fs::path& run) {
  if (!fs::exists(run / "metrics.jsonl")) return nullptr;
  const std::string text = read_file(run / "metrics.jsonl");
  const size_t end = text.rfind('\n');
  if (end == std::string::npos) return nullptr;
  const size_t begin = end == 0 ? std::string::npos : text.rfind('\n', end - 1);
  return nlohmann::json::parse(text.substr(begin + 1, end - begin - 1), nullptr,
                               false);  // npos + 1 == 0
}

Inspection inspect_run(const fs::path& path) {
  Inspection result{.kind = "run"};
  const nlohmann::json last = last_metrics(path);
  if (last.is_object()) {
    for (const char* key : {"step", "tokens", "loss"})
      result.facts[key] = last.value(key, nlohmann::json());
  }
  Json checkpoints = Json::array();
  for (const int64_t step : io::steps_in(path / "checkpoints")) {
    const fs::path checkpoint = path / "checkpoints" / io::step_name(step);
    std::string state = "verified";
    try {
      const io::StoredCheckpoint verified(checkpoint);
      if (verified.links().size() > 1)
        state = fmt::format("verified delta on {}", bases_of(verified));
    } catch (const UserError& error) {
      state = error.what();
    }
    checkpoints.push_back({{"checkpoint", io::step_name(step)}, {"step", step}, {"state", state}});
  }
  result.facts["report"] = fs::exists(path / "report.html");
  result.facts["checkpoints"] = checkpoints;
  return result;
}

Inspection inspect_huggingface(const fs::path& path) {
  const auto config = nlohmann::json::parse(read_file(path / "config.json"), nullptr, false);
  if (!config.is_object())
    throw UserError(fmt::format("{} is not JSON", (path / "config.json").string()));
  std::set<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() == ".safetensors") files.insert(entry.path());
  }
  int64_t elements = 0;
  Json tensors = Json::array();
  for (const fs::path& file : files) elements += add_tensors(io::SafetensorsFile(file), tensors);
  return {.kind = "Hugging Face model",
          .facts = {{"model_type", config.value("model_type", nlohmann::json(""))},
                    {"files", files.size()},
                    {"elements", elements},
                    {"tensors", tensors}}};
}

Inspection inspect_folder(const fs::path& path) {
  if (fs::exists(path / "manifest.json")) {
    const auto manifest = nlohmann::json::parse(read_file(path / "manifest.json"), nullptr, false);
    const bool checkpoint =
        io::step_of_name((fs::absolute(path) / "").parent_path().filename().string()).has_value() ||
        (manifest.is_object() &&
         manifest.value("format", nlohmann::json()) == "dovetail.checkpoint");
    return checkpoint ? inspect_checkpoint(path) : inspect_data(path);
  }
  if (fs::exists(path / "config.toml")) return inspect_run(path);
  if (fs::exists(path / "config.json")) return inspect_huggingface(path);
  throw UserError(fmt::format("{} is no folder that Dovetail knows", path.string()),
                  "a run, a checkpoint, prepared data and a Hugging Face model can be inspected");
}

}  // namespace

Inspection inspect(const fs::path& path) {
  if (!fs::exists(path)) throw UserError(fmt::format("{} does not exist", path.string()));
  if (fs::is_directory(path)) return inspect_folder(path);
  const std::string extension = path.extension().string();
  if (extension == ".safetensors") return inspect_safetensors(path);
  if (extension == ".json" || extension == ".model") return inspect_tokenizer(path);
  throw UserError(
      fmt::format("{} is no file that Dovetail knows", path.string()),
      "a .safetensors file, a tokenizer.json or a SentencePiece .model can be inspected");
}

}  // namespace dovetail::cli
