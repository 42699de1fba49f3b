#pragma once

#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "dovetail/models/gpt.h"
#include "dovetail/mx/linear.h"
#include "oracle.h"
#include "tests/base/temporary_folder.h"
#include "tests/ops/testing.h"

/// Small models in every variant of the config. Sizes are odd on purpose.
namespace dovetail::testing {

struct Variant {
  std::string name;
  models::ModelConfig config;
};

inline models::ModelConfig llama_variant() {
  models::ModelConfig c;
  c.layers = 2;
  c.width = 48;
  c.heads = 6;
  c.kv_heads = 2;
  c.ffn_width = 40;
  c.context = 19;
  c.vocab_size = 67;
  c.tied = false;
  c.init_std = 0.2;
  return c;
}

inline models::ModelConfig gpt2_variant() {
  models::ModelConfig c;
  c.layers = 2;
  c.width = 40;
  c.heads = 4;
  c.context = 17;
  c.vocab_size = 61;
  c.norm = "layernorm";
  c.activation = "gelu";
  c.positions = "learned";
  c.bias = true;
  c.init_std = 0.2;
  return c;
}

inline models::ModelConfig nemotron_variant() {
  models::ModelConfig c;
  c.layers = 3;
  c.width = 36;
  c.heads = 4;
  c.kv_heads = 2;
  c.head_dim = 12;  // heads * head_dim is not the width
  c.context = 22;
  c.vocab_size = 53;
  c.norm = "layernorm";
  c.activation = "relu2";
  c.rotary_fraction = 0.5;
  c.tied = false;
  c.init_std = 0.2;
  return c;
}

inline models::ModelConfig mixed_variant() {
  models::ModelConfig c;
  c.layers = 1;
  c.width = 33;
  c.heads = 3;
  c.kv_heads = 1;
  c.head_dim = 10;
  c.ffn_width = 31;
  c.context = 13;
  c.vocab_size = 41;
  c.norm_eps = 1e-3;
  c.rotary_fraction = 0.4;
  c.rotary_theta = 500;
  c.bias = true;
  c.init_std = 0.2;
  return c;
}

inline std::vector<Variant> variants() {
  return {{"llama", llama_variant()},
          {"gpt2", gpt2_variant()},
          {"nemotron", nemotron_variant()},
          {"mixed", mixed_variant()}};
}

/// Returns an initialised model. Norms and biases are shifted away from 1 and 0, so that each of
/// them matters.
inline std::shared_ptr<models::GPT> make_model(const models::ModelConfig& config, uint64_t seed = 1,
                                               at::ScalarType dtype = at::kFloat) {
  auto model = std::make_shared<models::GPT>(models::resolve_model_config(config, 0));
  initialize(*model, seed);
  const torch::NoGradGuard no_grad;
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  for (auto& parameter : model->parameters()) {
    if (parameter.dim() == 1) parameter.add_(at::empty_like(parameter).normal_(0, 0.3, generator));
  }
  model->set_compute_dtype(dtype);
  return model;
}

/// Sets the recipe of every Linear in the blocks.
inline void set_recipe(models::GPT& model, const mx::LinearRecipe& recipe) {
  for (const auto& linear : mx::quantizable_linears(model)) linear->set_recipe(recipe);
}

inline at::Tensor random_tokens(int64_t batch, int64_t tokens, int64_t vocab, uint64_t seed = 7) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randint(vocab, {batch, tokens}, generator, torch::dtype(torch::kLong));
}

}  // namespace dovetail::testing
