#include "dovetail/train/ranks/router_bias.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/comm/group.h"
#include "dovetail/models/gpt.h"
#include "dovetail/moe/layer.h"
#include "dovetail/train/ranks/expert_load.h"

namespace dovetail::train {

RouterBias::RouterBias(const models::GPT& model) {
  layers_ = moe::layers_of(model);
  std::erase_if(layers_, [](const auto& item) { return !item.second->router().bias.defined(); });
}

void RouterBias::end_step(comm::Group& group) {
  if (layers_.empty()) return;
  if (group.size() == 1) {  // a GPU updates the biases without the host
    for (const auto& [name, layer] : layers_) layer->router().update_bias(layer->counts());
    return;
  }
  auto layer = layers_.begin();
  for (const LayerChoices& load : sum_loads(layers_, group))
    (layer++)->second->router().update_bias(at::tensor(load.count, at::kDouble));
}

std::map<std::string, at::Tensor> RouterBias::tensors() const {
  std::map<std::string, at::Tensor> found;
  for (const auto& [name, layer] : layers_)
    found[fmt::format("{}bias.{}", kTensorPrefix, name)] = layer->router().bias;
  return found;
}

void RouterBias::load(const std::map<std::string, at::Tensor>& tensors) {
  std::map<std::string, at::Tensor> own = this->tensors();
  for (auto& [name, tensor] : own) {
    const auto found = tensors.find(name);
    user_check(found != tensors.end() && found->second.sizes() == tensor.sizes(),
               "the checkpoint has no {} of {} experts, which model.moe.bias_update_rate asks for",
               name, tensor.size(0));
    tensor.copy_(found->second);
  }
  for (const auto& [name, tensor] : tensors)
    user_check(!name.starts_with(kTensorPrefix) || own.contains(name),
               "the checkpoint holds {}, which this model does not read", name);
}

void RouterBias::load(const std::map<std::string, at::Tensor>& tensors, comm::Group& group) {
  comm::on_rank_zero(group, "restoring the checkpoint", [&] { load(tensors); });
  for (auto& [name, tensor] : this->tensors()) group.broadcast(tensor, 0);
}

}  // namespace dovetail::train
