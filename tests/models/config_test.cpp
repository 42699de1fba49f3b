#include "dovetail/models/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "dovetail/base/error.h"
#include "dovetail/models/gpt.h"
#include "dovetail/models/size.h"
#include "small_models.h"

namespace dovetail::models::config_test {
namespace {

using ::testing::HasSubstr;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

TEST(ModelConfig, PresetsHaveTheParametersOfTheirNames) {
  const std::pair<const char*, double> expected[] = {
      {"gpt2-124m", 124e6},     {"llama-160m", 160e6},  {"llama-1b", 1.24e9},
      {"nemotron-843m", 843e6}, {"nemotron-2b", 2.0e9}, {"nemotron-8b", 8.0e9}};
  for (const auto& [name, parameters] : expected) {
    const auto config = resolve_model_config(model_preset(name).config, 0);
    EXPECT_EQ(config.preset, name);
    EXPECT_NEAR(static_cast<double>(model_size(config).parameters), parameters, 0.01 * parameters)
        << name;
    EXPECT_EQ(config.vocab_size % 64, 0) << name;
  }
}

TEST(ModelConfig, TheEightBillionPresetIsTheOneOfThePaper) {
  const auto c = model_preset("nemotron-8b").config;
  EXPECT_EQ(c.layers, 32);
  EXPECT_EQ(c.heads, 32);
  EXPECT_EQ(c.width, 4096);
  EXPECT_EQ(c.kv_heads, 8);
  EXPECT_EQ(c.head_dim, 128);
  EXPECT_EQ(c.context, 8192);
}

TEST(ModelConfig, AnUnknownPresetNamesTheNearest) {
  try {
    model_preset("llama-1bn");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("model.preset = \"llama-1bn\""));
    EXPECT_THAT(error.help(), HasSubstr("llama-1b"));
  }
}

TEST(ModelConfig, ParsesItsKeysFromToml) {
  ModelConfig config;
  const auto describe = [&](Section& s) { config.describe(s); };
  parse_config(describe, "layers = 3\nnorm = \"layernorm\"\nrotary_fraction = 0.25\ntied = false\n",
               "x.toml");
  EXPECT_EQ(config.layers, 3);
  EXPECT_EQ(config.norm, "layernorm");
  EXPECT_EQ(config.rotary_fraction, 0.25);
  EXPECT_FALSE(config.tied);
  EXPECT_THROW(parse_config(describe, "activation = \"relu\"\n", "x.toml"), UserError);
  EXPECT_THROW(parse_config(describe, "preset = \"gpt3\"\n", "x.toml"), UserError);
  EXPECT_THROW(parse_config(describe, "layers = 0\n", "x.toml"), UserError);
}

TEST(ModelConfig, EveryPresetSurvivesTheStoredForm) {
  for (const auto& preset : model_presets()) {
    auto config = resolve_model_config(preset.config, 257);
    const auto toml = config_to_toml([&](Section& s) { config.describe(s); });
    ModelConfig again;
    parse_config([&](Section& s) { again.describe(s); }, toml, "stored.toml");
    EXPECT_EQ(config_to_toml([&](Section& s) { again.describe(s); }), toml) << preset.name;
  }
}

TEST(ModelConfig, ResolvesWhatDependsOnOtherKeys) {
  ModelConfig c;
  c.width = 96;
  c.heads = 6;
  auto r = resolve_model_config(c, 257);
  EXPECT_EQ(r.kv_heads, 6);
  EXPECT_EQ(r.head_dim, 16);
  EXPECT_EQ(r.ffn_width, 256);  // 8/3 * 96
  EXPECT_EQ(r.vocab_size, 320);
  c.width = 108;
  EXPECT_EQ(resolve_model_config(c, 64).ffn_width, 320);  // 288 rounded up
  EXPECT_EQ(resolve_model_config(c, 64).vocab_size, 64);
  c.activation = "relu2";
  EXPECT_EQ(resolve_model_config(c, 64).ffn_width, 432);
  c.vocab_size = 300;
  c.ffn_width = 7;
  c.head_dim = 10;
  c.kv_heads = 3;
  r = resolve_model_config(c, 257);
  EXPECT_EQ(r.vocab_size, 300);
  EXPECT_EQ(r.ffn_width, 7);
  EXPECT_EQ(r.head_dim, 10);
  EXPECT_EQ(r.kv_heads, 3);
}

TEST(ModelConfig, ResolvingTwiceChangesNothing) {
  for (const auto& variant : testing::variants()) {
    auto once = resolve_model_config(variant.config, 0);
    auto twice = resolve_model_config(once, 0);
    EXPECT_EQ(config_to_toml([&](Section& s) { once.describe(s); }),
              config_to_toml([&](Section& s) { twice.describe(s); }));
  }
}

struct Mistake {
  const char* key;
  std::function<void(ModelConfig&)> make;
};

TEST(ModelConfig, ErrorsNameTheKey) {
  const std::vector<Mistake> mistakes = {
      {"model.layers", [](auto& c) { c.layers = 0; }},
      {"model.width", [](auto& c) { c.width = -1; }},
      {"model.width", [](auto& c) { c.width = 130; }},  // not a multiple of the heads
      {"model.heads", [](auto& c) { c.heads = 0; }},
      {"model.kv_heads", [](auto& c) { c.kv_heads = -1; }},
      {"model.kv_heads", [](auto& c) { c.kv_heads = 3; }},
      {"model.head_dim", [](auto& c) { c.head_dim = -2; }},
      {"model.ffn_width", [](auto& c) { c.ffn_width = -2; }},
      {"model.context", [](auto& c) { c.context = 0; }},
      {"model.vocab_size", [](auto& c) { c.vocab_size = 256; }},  // the tokenizer has 257
      {"model.norm", [](auto& c) { c.norm = "batchnorm"; }},
      {"model.norm_eps", [](auto& c) { c.norm_eps = 0; }},
      {"model.activation", [](auto& c) { c.activation = "relu"; }},
      {"model.positions", [](auto& c) { c.positions = "alibi"; }},
      {"model.rotary_fraction", [](auto& c) { c.rotary_fraction = 0; }},
      {"model.rotary_fraction", [](auto& c) { c.rotary_fraction = 1.5; }},
      {"model.rotary_fraction", [](auto& c) { c.rotary_fraction = 0.3; }},  // 9.6 elements of 32
      {"model.rotary_fraction", [](auto& c) { c.head_dim = 31; }},          // odd
      {"model.rotary_theta", [](auto& c) { c.rotary_theta = -1; }},
      {"model.rotary_theta",
       [](auto& c) {
         c.positions = "learned";
         c.rotary_theta = 500;
       }},
      {"model.init_std", [](auto& c) { c.init_std = 0; }},
  };
  for (const auto& mistake : mistakes) {
    ModelConfig config;
    EXPECT_NO_THROW(resolve_model_config(config, 257));
    mistake.make(config);
    EXPECT_THAT(error_of([&] { resolve_model_config(config, 257); }), HasSubstr(mistake.key));
  }
  EXPECT_THAT(error_of([] { resolve_model_config({}, 0); }), HasSubstr("model.vocab_size"));
}

}  // namespace
}  // namespace dovetail::models::config_test
