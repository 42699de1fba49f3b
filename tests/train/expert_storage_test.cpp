// Experts whose weights share one storage, as the trainer lays them out for a GPU.
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/models/gpt.h"
#include "dovetail/moe/expert_weights.h"
#include "dovetail/moe/layer.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/optimizer/optimizer.h"

namespace dovetail::train::expert_storage_test {
namespace {

models::ModelConfig mixture() {
  models::ModelConfig config;
  config.layers = 2;
  config.width = 32;
  config.heads = 2;
  config.context = 16;
  config.vocab_size = 64;
  config.moe.experts = 4;
  return models::resolve_model_config(config, 0);
}

/// Moves the weights of each layer's experts into one storage.
void share(const models::GPT& model) {
  for (const auto& [name, layer] : moe::layers_of(model)) {
    const auto parameters = layer->named_parameters();
    for (const char* part : {"up", "down"}) {
      std::vector<at::Tensor> weights;
      for (int64_t e = 0; e < layer->experts(); ++e)
        weights.push_back(parameters["experts." + std::to_string(e) + "." + part + ".weight"]);
      moe::share_storage(weights);
      ASSERT_TRUE(weights[0].is_alias_of(weights[3]));
    }
  }
}

/// Returns the parameters and the optimizer's tensors after three steps in bfloat16, by name.
std::map<std::string, at::Tensor> trained(bool shares) {
  auto model = std::make_shared<models::GPT>(mixture());
  initialize(*model, 3);
  Optimizer optimizer(*model, {});
  model->set_compute_dtype(at::kBFloat16);
  if (shares) share(*model);
  optimizer.bind(*model);
  TrainStep step(model, optimizer, comm::local_groups(1)[0], {.micro_batch = 2, .clip = 1.0});
  for (int64_t i = 0; i < 3; ++i)
    step.run(at::arange(4 * 17, at::kLong).remainder(61 - i).view({4, 17}), 1e-2, false);
  std::map<std::string, at::Tensor> all = optimizer.tensors();
  for (const auto& item : model->named_parameters()) all[item.key()] = item.value().detach();
  return all;
}

TEST(ExpertStorage, TrainsToTheSameBits) {
  const auto apart = trained(false), together = trained(true);
  ASSERT_EQ(apart.size(), together.size());
  for (const auto& [name, tensor] : apart)
    EXPECT_TRUE(at::equal(tensor, together.at(name))) << name;
}

}  // namespace
}  // namespace dovetail::train::expert_storage_test
