#include "dovetail/models/huggingface_folder.h"

#include <c10/core/ScalarType.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/base/log.h"

namespace dovetail::models {
namespace {

constexpr const char* kWholeFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

}  // namespace

nlohmann::json read_json_file(const std::filesystem::path& path) {
  const std::string text = read_file(path);
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& error) {
    const auto* parse_error = dynamic_cast<const nlohmann::json::parse_error*>(&error);
    const std::string_view rest = std::string_view(text).substr(
        parse_error == nullptr ? text.size() : std::min(parse_error->byte - 1, text.size()));
    const bool python = rest.starts_with("NaN") || rest.starts_with("Infinity");
    throw UserError(
        fmt::format("{} is not valid JSON: {}", path.string(), json_fault(error)),
        python
            ? "Python wrote NaN or Infinity, which JSON does not have: write a number or null there"
            : "get the file again, or mend it");
  }
}

TensorFolder::TensorFolder(const std::filesystem::path& folder) : folder_(folder) {
  const bool has_index = std::filesystem::exists(folder / kIndexFile);
  if (std::filesystem::exists(folder / kWholeFile)) {
    for (const auto& name : open(kWholeFile).names()) file_of_[name] = {kWholeFile, name};
    if (has_index)
      log_warning("{}: {} is read, as transformers does; {} and the shards that it names are not",
                  folder.string(), kWholeFile, kIndexFile);
  } else if (has_index) {
    read_index(folder / kIndexFile);
  } else if (const auto shards = shards_by_name(); !shards.empty()) {
    read_shards(shards);
  } else {
    refuse_without_tensors();
  }
  remove_wrappers();
  for (const auto& [name, place] : file_of_) unread_.insert(name);
}

void TensorFolder::read_index(const std::filesystem::path& path) {
  const auto index = read_json_file(path);
  user_check(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
             "{}: weight_map is missing", path.string());
  std::set<std::string> shards, missing;
  for (const auto& [name, file] : index["weight_map"].items()) {
    user_check(file.is_string() && std::filesystem::path(file.get<std::string>()).filename() ==
                                       file.get<std::string>(),
               "{}: weight_map.{} = {} is not the name of a file in this folder", path.string(),
               name, file.dump());
    std::error_code unusable;  // set for a name that no file can have
    const bool exists = std::filesystem::exists(folder_ / file.get<std::string>(), unusable);
    (exists ? shards : missing).insert(file.get<std::string>());
  }
  if (!missing.empty())
    throw UserError(
        fmt::format("{} names {} file{} that {} missing: {}", path.string(), missing.size(),
                    missing.size() == 1 ? "" : "s", missing.size() == 1 ? "is" : "are",
                    fmt::join(missing, ", ")),
        fmt::format("put the shards beside the index, or the whole model as {}", kWholeFile));
  // transformers reads all tensors of each shard under their own names, even if the index has
  // others.
  read_shards(shards);
}

void TensorFolder::read_shards(const std::set<std::string>& shards) {
  for (const auto& shard : shards)
    for (const auto& name : open(shard).names())
      if (!file_of_.try_emplace(name, Place{shard, name}).second)
        throw UserError(
            fmt::format("{}: tensor {} is in {} and in {}", folder_.string(), name,
                        file_of_[name].file, shard),
            "take one of the files away, or save the model again with save_pretrained(...)");
}

std::set<std::string> TensorFolder::shards_by_name() const {
  std::set<std::string> found, missing;
  if (!std::filesystem::is_directory(folder_)) return found;
  std::string first;
  int last = 0;
  const auto name_of = [](int number, int of) {
    return fmt::format("model-{:05}-of-{:05}.safetensors", number, of);
  };
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const std::string name = entry.path().filename().string();
    int number = 0, of = 0;
    if (std::sscanf(name.c_str(), "model-%5d-of-%5d.safetensors", &number, &of) != 2 ||
        name != name_of(number, of))
      continue;
    if (!found.empty() && of != last)
      throw UserError(fmt::format("{}: {} and {} are of two models", folder_.string(), first, name),
                      fmt::format("take the files of one away, or add {}", kIndexFile));
    found.insert(name);
    first = name;
    last = of;
  }
  for (int number = 1; number <= last; ++number)
    if (!found.contains(name_of(number, last))) missing.insert(name_of(number, last));
  if (!missing.empty())
    throw UserError(fmt::format("{} has {} of {} files of the model; missing: {}", folder_.string(),
                                found.size(), last, fmt::join(missing, ", ")),
                    "get all files of the model");
  return found;
}

void TensorFolder::remove_wrappers() {
  constexpr std::array<std::pair<std::string_view, const char*>, 2> kWrappers = {
      {{"module.", "DistributedDataParallel"}, {"_orig_mod.", "torch.compile"}}};
  for (size_t i = 0; i < kWrappers.size();) {
    const auto& [prefix, wrapper] = kWrappers[i];
    const auto has = [&](const auto& tensor) { return tensor.first.starts_with(prefix); };
    const auto with = std::ranges::find_if(file_of_, has),
               without = std::ranges::find_if_not(file_of_, has);
    if (with == file_of_.end()) {
      ++i;
      continue;
    }
    if (without != file_of_.end())
      throw UserError(
          fmt::format("{}: tensor {} has the prefix {} of {}, but {} has not", folder_.string(),
                      with->first, prefix, wrapper, without->first),
          fmt::format("save the model inside the wrapper: model.{}state_dict()", prefix));
    log_warning("{}: the prefix {} of {} is removed from the names of all tensors",
                folder_.string(), prefix, wrapper);
    std::map<std::string, Place> renamed;
    for (const auto& [name, place] : file_of_) renamed.emplace(name.substr(prefix.size()), place);
    file_of_ = std::move(renamed);
    i = 0;
  }
}

void TensorFolder::refuse_without_tensors() const {
  user_check(std::filesystem::is_directory(folder_), "{} is not a folder", folder_.string());
  std::set<std::string> others;
  for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
    const auto extension = entry.path().extension();
    for (const auto* known :
         {".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx", ".safetensors"})
      if (extension == known) others.insert(entry.path().filename().string());
  }
  throw UserError(
      fmt::format("{} holds neither {} nor {}{}", folder_.string(), kWholeFile, kIndexFile,
                  others.empty() ? "" : fmt::format(", only {}", fmt::join(others, ", "))),
      others.empty() ? "give the folder that save_pretrained(...) has written"
                     : "save the model as safetensors with transformers: "
                       "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)");
}

const io::SafetensorsFile& TensorFolder::open(const std::string& file_name) {
  auto& file = files_[file_name];
  if (!file) file = std::make_unique<io::SafetensorsFile>(folder_ / file_name);
  return *file;
}

const TensorFolder::Place& TensorFolder::place_of(const std::string& name) const {
  if (!contains(name))
    throw UserError(
        fmt::format("{}: tensor {} is missing", folder_.string(), name),
        name == "lm_head.weight"
            ? "if the head is the embedding, give config.json \"tie_word_embeddings\": true"
            : "config.json describes a model with this tensor: mend it, or get all files of the "
              "model");
  return file_of_.at(name);
}

at::Tensor TensorFolder::read(const std::string& name) {
  const Place& place = place_of(name);
  unread_.erase(name);
  return open(place.file).read(place.name);
}

std::vector<int64_t> TensorFolder::weight_shape(const std::string& name) {
  const Place& place = place_of(name);
  const io::SafetensorsFile& file = open(place.file);
  const auto dtype = file.dtype(place.name);
  if (dtype != at::kFloat && dtype != at::kDouble && dtype != at::kBFloat16 && dtype != at::kHalf)
    throw UserError(
        fmt::format("{}: tensor {} holds {}, not float32, bfloat16 or float16", folder_.string(),
                    name, c10::toString(dtype)),
        "the weights are quantized: dequantize them with transformers and save them as bfloat16");
  return file.shape(place.name);
}

at::Tensor TensorFolder::read_weight(const std::string& name) {
  weight_shape(name);
  const auto tensor = read(name);
  if (!at::isfinite(tensor).all().item<bool>())
    throw UserError(fmt::format("{}: tensor {} has a NaN or an infinity", folder_.string(), name),
                    "such a model predicts nothing; get the file again");
  auto weight = tensor.to(at::kFloat);
  if (tensor.scalar_type() == at::kDouble && !at::equal(weight.to(at::kDouble), tensor))
    rounded_.push_back(name);
  return weight;
}

void TensorFolder::rename(const std::string& from, const std::string& to) {
  file_of_[to] = file_of_.at(from);
  file_of_.erase(from);
  unread_.erase(from);
  unread_.insert(to);
}

void TensorFolder::warn_of_rounding() const {
  if (rounded_.empty()) return;
  log_warning("{}: {} float64 tensors are rounded to float32, the first is {}", folder_.string(),
              rounded_.size(), rounded_[0]);
}

}  // namespace dovetail::models
