#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>

#include "small_models.h"

namespace dovetail::models::initialize_test {
namespace {

ModelConfig wide_config(int64_t layers = 2) {
  ModelConfig c;
  c.layers = layers;
  c.width = 131;  // odd, and larger than one piece of the parallel loop
  c.heads = 1;
  c.head_dim = 128;
  c.ffn_width = 257;
  c.vocab_size = 301;
  c.norm = "layernorm";
  c.bias = true;
  c.tied = false;
  return resolve_model_config(c, 0);
}

std::shared_ptr<GPT> initialized(const ModelConfig& config, uint64_t seed,
                                 at::ScalarType dtype = at::kFloat) {
  auto model = std::make_shared<GPT>(config);
  model->set_compute_dtype(dtype);
  initialize(*model, seed);
  return model;
}

TEST(Initialize, IsTheSameForAnyNumberOfThreads) {
  const auto with_threads = [](int count) {
    const testing::Threads threads(count);
    return initialized(wide_config(), 5);
  };
  const auto one = with_threads(1), three = with_threads(3);
  for (const auto& item : one->named_parameters()) {
    EXPECT_TRUE(at::equal(item.value(), three->named_parameters()[item.key()])) << item.key();
  }
}

TEST(Initialize, DependsOnSeedAndNameAlone) {
  const auto a = initialized(wide_config(2), 5)->named_parameters();
  const auto other_seed = initialized(wide_config(2), 6)->named_parameters();
  const auto deeper = initialized(wide_config(3), 5)->named_parameters();
  EXPECT_FALSE(at::equal(a["embed.weight"], other_seed["embed.weight"]));
  EXPECT_FALSE(at::equal(a["embed.weight"], a["head.weight"]));
  EXPECT_FALSE(at::equal(a["blocks.0.ffn.up.weight"], a["blocks.1.ffn.up.weight"]));
  for (const auto* name :
       {"embed.weight", "blocks.1.ffn.up.weight", "blocks.0.attention.qkv.weight", "head.weight"}) {
    EXPECT_TRUE(at::equal(a[name], deeper[name])) << name;
  }
}

TEST(Initialize, NoiseMovesMatricesByItsShareOfTheirDeviation) {
  const auto exact = initialized(wide_config(), 5)->named_parameters();
  GPT model(wide_config());
  initialize(model, 5, 1e-3);
  for (const auto& item : model.named_parameters()) {
    const at::Tensor original = exact[item.key()], difference = item.value() - original;
    if (original.dim() == 1) {
      EXPECT_TRUE(at::equal(item.value(), original)) << item.key();
    } else {
      EXPECT_NEAR((difference.std() / original.std()).item<double>(), 1e-3, 5e-5) << item.key();
    }
  }
}

TEST(Initialize, RoundsTheSameValuesToEveryDtype) {
  const auto exact = initialized(wide_config(), 5)->named_parameters();
  const auto rounded = initialized(wide_config(), 5, at::kBFloat16)->named_parameters();
  for (const auto& item : rounded) {
    EXPECT_TRUE(at::equal(item.value(), exact[item.key()].to(item.value().scalar_type())))
        << item.key();
  }
}

TEST(Initialize, HasTheStatedDistribution) {
  const auto config = wide_config();
  for (const auto& item : initialized(config, 5)->named_parameters()) {
    const auto& name = item.key();
    const auto values = item.value().detach().to(at::kDouble);
    if (name.ends_with(".bias")) {
      EXPECT_TRUE(values.eq(0).all().item<bool>()) << name;
    } else if (name.ends_with("norm.weight")) {
      EXPECT_TRUE(values.eq(1).all().item<bool>()) << name;
    } else {
      const bool into_residual =
          name.ends_with("attention.out.weight") || name.ends_with("ffn.down.weight");
      const double std =
          into_residual ? config.init_std / 2 : config.init_std;  // sqrt(2 * 2 layers)
      const auto count = static_cast<double>(values.numel());
      // Five standard errors of mean, standard deviation and fourth moment of a normal sample.
      EXPECT_NEAR(values.mean().item<double>(), 0, 5 * std / std::sqrt(count)) << name;
      EXPECT_NEAR(values.std().item<double>(), std, 5 * std / std::sqrt(2 * count)) << name;
      EXPECT_NEAR((values / std).pow(4).mean().item<double>(), 3, 5 * std::sqrt(96 / count))
          << name;
    }
  }
}

}  // namespace
}  // namespace dovetail::models::initialize_test
