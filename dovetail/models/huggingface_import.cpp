#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/types.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/models/huggingface.h"
#include "dovetail/models/huggingface_layout.h"

namespace dovetail {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

Json read_json(const fs::path& path) {
  auto json = Json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  user_check(!json.is_discarded(), "{} is not valid JSON", path.string());
  return json;
}

/// The tensors of a folder, in one file or in shards that an index names.
class TensorFolder {
 public:
  explicit TensorFolder(const fs::path& folder) : folder_(folder) {
    const auto index_path = folder / "model.safetensors.index.json";
    if (!fs::exists(index_path)) {
      for (const auto& name : open("model.safetensors").names()) file_of_[name] = "model.safetensors";
    } else {
      read_index(index_path);
    }
    for (const auto& [name, file] : file_of_) unread_.insert(name);
  }

  bool contains(const std::string& name) const { return file_of_.count(name) > 0; }

  at::Tensor read(const std::string& name) {
    user_check(contains(name), "{}: tensor {} is missing", folder_.string(), name);
    unread_.erase(name);
    return open(file_of_[name]).read(name);
  }

  const std::set<std::string>& unread() const { return unread_; }

 private:
  void read_index(const fs::path& path) {
    const auto index = read_json(path);
    user_check(index.is_object() && index.contains("weight_map") && index["weight_map"].is_object(),
               "{}: weight_map is missing", path.string());
    for (const auto& [name, file] : index["weight_map"].items()) {
      user_check(file.is_string() && fs::path(file.get<std::string>()).filename() == file.get<std::string>(),
                 "{}: weight_map.{} = {} is not the name of a file in this folder", path.string(), name, file.dump());
      file_of_[name] = file.get<std::string>();
    }
  }

  const SafetensorsFile& open(const std::string& file_name) {
    auto& file = files_[file_name];
    if (!file) file = std::make_unique<SafetensorsFile>(folder_ / file_name);
    return *file;
  }

  fs::path folder_;
  std::map<std::string, std::unique_ptr<SafetensorsFile>> files_;
  std::map<std::string, std::string> file_of_;
  std::set<std::string> unread_;
};

/// Files saved from the bare transformer, such as GPT-2's own, leave out "transformer." or "model.".
std::string name_in(const TensorFolder& source, const std::string& name) {
  const auto bare = name.substr(name.find('.') + 1);
  return !source.contains(name) && source.contains(bare) ? bare : name;
}

void import_parameter(at::Tensor& parameter, const TensorLayout& layout, TensorFolder& source) {
  std::vector<at::Tensor> parts;
  for (const auto& part : layout.parts) {
    auto tensor = source.read(name_in(source, part.name));
    auto shape = parameter.sizes().vec();
    shape[0] = part.rows;
    if (layout.transposed) std::swap(shape[0], shape[1]);
    user_check(tensor.sizes() == at::IntArrayRef(shape), "tensor {} is [{}], but config.json asks for [{}]", part.name,
               fmt::join(tensor.sizes(), ", "), fmt::join(shape, ", "));
    parts.push_back(layout.transposed ? tensor.t() : tensor);
  }
  parameter.copy_(parts.size() == 1 ? parts[0] : at::cat(parts));
}

/// Constants that older versions stored with the weights, and the second name of a tied matrix.
bool is_redundant(std::string_view name, const ModelConfig& config) {
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") || (config.tied && name == "lm_head.weight");
}

}  // namespace

std::shared_ptr<GPT> import_huggingface(const fs::path& folder) {
  const torch::NoGradGuard no_grad;
  const auto config_path = folder / "config.json";
  const auto described = from_huggingface_config(read_json(config_path), config_path.string());
  TensorFolder source(folder);
  auto model = std::make_shared<GPT>(described.config);
  auto parameters = model->named_parameters();
  for (const auto& layout : huggingface_tensors(described.architecture, described.config)) {
    import_parameter(parameters[layout.ours], layout, source);
  }
  for (const auto& name : source.unread()) {
    user_check(is_redundant(name, described.config),
               "{}: tensor {} is not part of the model that config.json describes", folder.string(), name);
  }
  return model;
}

}  // namespace dovetail
