#include "dovetail/train/numerics/quantization.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dovetail/base/error.h"
#include "dovetail/models/gpt.h"
#include "dovetail/mx/linear.h"
#include "dovetail/train/report/run_page.h"
#include "dovetail/train/report/run_report.h"
#include "tests/comm/ranks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::quantization_test {
namespace {

using test::train_alone;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

PrecisionSection section(const std::string& toml) {
  PrecisionSection config;
  parse_config([&](Section& s) { s.section("precision", config, "Precision"); }, toml, "test.toml");
  check_precision(config);
  return config;
}

models::ModelConfig two_blocks() {
  models::ModelConfig config;
  config.layers = 2;
  config.width = 32;
  config.heads = 2;
  config.tied = false;
  config.vocab_size = 64;
  return models::resolve_model_config(config, 0);
}

/// Returns formats by layer, as "blocks.0.ffn.up" -> "e4m3 e4m3 e4m3". These are weight, activation
/// and gradient; "-" is high precision.
std::map<std::string, std::string> formats(const std::string& toml, const std::string& name) {
  models::GPT model(two_blocks());
  const Quantization quantization(model, section(toml), name);
  std::map<std::string, std::string> result;
  for (const auto& linear : quantization.layers()) {
    mx::LinearRecipe recipe = linear->quantized()->recipe();
    std::string& text = result[linear->options().name];
    for (const auto operand :
         {mx::Operand::kWeight, mx::Operand::kActivation, mx::Operand::kGradient}) {
      const auto format = recipe.of(operand).format;
      text += (text.empty() ? "" : " ") + (format ? std::string(mx::name(*format)) : "-");
    }
  }
  return result;
}

std::string refusal(const std::string& toml, const std::string& name = "mxfp8") {
  try {
    formats(toml, name);
  } catch (const UserError& error) {
    return std::string(error.what()) + " | " + error.help();
  }
  return "accepted";
}

TEST(Quantization, IsOfTheFourLinearsOfEveryBlockAndNothingElse) {
  const auto found = formats("[precision]\nrecipe = \"mxfp8_e5m2_grad\"\n", "mxfp8_e5m2_grad");
  EXPECT_EQ(found.size(), 8U);
  for (const char* block : {"blocks.0", "blocks.1"}) {
    for (const char* linear : {".attention.qkv", ".attention.out", ".ffn.up", ".ffn.down"})
      EXPECT_EQ(found.at(std::string(block) + linear), "e4m3 e4m3 e5m2");
  }
  EXPECT_TRUE(formats("", "bf16").empty());
  EXPECT_TRUE(formats("", "fp32").empty());
}

TEST(Quantization, TheLastOverrideThatMatchesDecides) {
  const auto found = formats(R"(
[precision]
recipe = "mxfp8"
[[precision.override]]
layers = "*.ffn.*"
recipe = "mxfp4"
[[precision.override]]
layers = ["blocks.0.*"]
recipe = "bf16"
[[precision.override]]
layers = "blocks.1.ffn.down"
tensors = ["gradient"]
recipe = "mxfp6_e3m2"
)",
                             "mxfp8");
  EXPECT_EQ(found, (std::map<std::string, std::string>{{"blocks.1.attention.qkv", "e4m3 e4m3 e4m3"},
                                                       {"blocks.1.attention.out", "e4m3 e4m3 e4m3"},
                                                       {"blocks.1.ffn.up", "e2m1 e2m1 e2m1"},
                                                       {"blocks.1.ffn.down", "e2m1 e2m1 e3m2"}}));
}

TEST(Quantization, ARecipeMayLeaveTheEndsOfTheModelInHighPrecision) {
  EXPECT_THAT([] { formats("", "fp8_tensor"); },  // with two blocks, both are end blocks
              ::testing::ThrowsMessage<UserError>(::testing::HasSubstr("the model has 2")));
  const std::string mine = "[[precision.recipes]]\nname = \"mine\"\nhigh_precision_ends = ";
  EXPECT_EQ(formats(mine + "0\n", "mine").size(), 8U);
  const auto with_override = formats(
      mine + "1\n[[precision.override]]\nlayers = \"blocks.1.ffn.up\"\nrecipe = \"mxfp4\"\n",
      "mine");
  EXPECT_EQ(with_override,
            (std::map<std::string, std::string>{{"blocks.1.ffn.up", "e2m1 e2m1 e2m1"}}));
  models::ModelConfig config = two_blocks();
  config.layers = 4;
  models::GPT model(config);
  const Quantization quantization(model, {}, "fp8_tensor");
  ASSERT_EQ(quantization.layers().size(), 8U);
  EXPECT_EQ(quantization.layers().front()->options().name, "blocks.1.attention.qkv");
  EXPECT_EQ(quantization.layers().back()->options().name, "blocks.2.ffn.down");
}

TEST(Quantization, DelayedScalingRemembersTheLargestOfAllRanks) {
  constexpr int kRanks = 3;
  expect_all_succeed(kRanks, [](std::shared_ptr<comm::Group> group) {
    models::GPT model(two_blocks());
    initialize(model, 1);
    Quantization quantization(model, section("[precision]\nrecipe = \"fp8_tensor_delayed\"\n"),
                              "fp8_tensor_delayed");
    const auto linear = quantization.layers().front();
    const auto history = [&] {
      return quantization.tensors().at("quantization.amax.blocks.0.attention.qkv.activation");
    };
    for (const float size : {2.0F, 4.0F}) {
      quantization.begin_step(1);
      linear->forward(at::full(
          {2, 32}, size + static_cast<float>((group->rank() + 1) % kRanks)));  // most on rank 1
      quantization.end_step(*group);
    }
    EXPECT_EQ(quantization.tensors().size(), 8U * 3);
    EXPECT_EQ(history()[0].item<float>(), 4 + kRanks - 1);
    EXPECT_EQ(history()[1].item<float>(), 2 + kRanks - 1);

    std::map<std::string, at::Tensor> stored;
    if (group->rank() == 0) {
      for (const auto& [name, tensor] : quantization.tensors()) stored[name] = tensor + 1;
    }
    quantization.load(stored, *group);
    EXPECT_EQ(history()[1].item<float>(), 3 + kRanks - 1);
    if (group->rank() == 0) stored.erase("quantization.amax.blocks.0.attention.qkv.activation");
    EXPECT_THROW(quantization.load(stored, *group), std::exception);
  });
}

TEST(Quantization, KnowsRecipesOfTheUsers) {
  const std::string mine = R"(
[precision]
recipe = "mine"
[[precision.recipes]]
name = "mine"
activation = { format = "mxint8" }
gradient = { format = "none" }
)";
  EXPECT_EQ(formats(mine, "mine").at("blocks.1.ffn.up"), "e4m3 mxint8 -");
  const PrecisionSection config = section(mine);
  const auto describe = [&](Section& s) { const_cast<PrecisionSection&>(config).describe(s); };
  PrecisionSection again;
  parse_config([&](Section& s) { again.describe(s); }, config_to_toml(describe), "again.toml");
  EXPECT_EQ(again.recipes[0].activation.format, "mxint8");
}

TEST(Quantization, WhatCannotBeIsNamed) {
  const auto with_override = [](const std::string& entry) {
    return "[[precision.override]]\n" + entry;
  };
  EXPECT_THAT(refusal("[precision]\nrecipe = \"mxfp7\"\n"),
              AllOf(HasSubstr("mxfp7"), HasSubstr("mxfp8")));
  EXPECT_THAT(
      refusal(with_override("layers = \"block.0.*\"\nrecipe = \"bf16\"\n")),
      AllOf(HasSubstr("block.0.*"), HasSubstr("blocks.0.attention.qkv to blocks.1.ffn.down")));
  EXPECT_THAT(refusal(with_override("layers = \"head\"\nrecipe = \"mxfp8\"\n")),
              HasSubstr("high precision"));
  EXPECT_THAT(refusal(with_override("layers = \"*\"\nrecipe = \"mxfp3\"\n")), HasSubstr("mxfp3"));
  EXPECT_THAT(
      refusal(with_override("layers = \"*\"\nrecipe = \"bf16\"\ntensors = [\"weights\"]\n")),
      AllOf(HasSubstr("\"weights\""), HasSubstr("weight, activation, gradient")));
  EXPECT_THAT(refusal(with_override("layers = []\nrecipe = \"bf16\"\n")), HasSubstr("layers"));
  EXPECT_THAT(refusal(with_override("layers = \"blocks.0.ffn.up\"\nrecipe = \"mxfp8\"\n"), "fp64"),
              AllOf(HasSubstr("fp64"), HasSubstr("blocks.0.ffn.up")));
  EXPECT_THAT(refusal("[[precision.recipes]]\nname = \"mxfp8\"\n"),
              AllOf(HasSubstr("mxfp8"), HasSubstr("taken")));
  EXPECT_THAT(
      refusal("[[precision.recipes]]\nname = \"mine\"\nweight = { rounding = \"stochastic\" }\n"),
      AllOf(HasSubstr("mine"), HasSubstr("weight"), HasSubstr("stochastic")));
}

TEST(Quantization, ARecipeThatQuantizesNothingNamesTheLayersAndAWayOut) {
  for (const char* recipe : {"mxfp8", "mxfp4", "fp8_block", "fp8_tensor_delayed"}) {
    const std::string text =
        refusal("[[precision.override]]\nlayers = [\"blocks.0.*\", \"*.1.*\"]\nrecipe = \"bf16\"\n",
                recipe);
    EXPECT_THAT(text, AllOf(HasSubstr(recipe), HasSubstr("blocks.0.*, *.1.*"),
                            HasSubstr("blocks.0 to blocks.1"), HasSubstr("narrow")));
  }
  EXPECT_THAT(refusal("", "fp8_tensor"),
              AllOf(HasSubstr("1 block at each end"), HasSubstr("blocks.0 to blocks.1"),
                    HasSubstr("use model.layers > 2")));
  // Ends and an override that together leave nothing, in a model that is deep enough.
  models::ModelConfig config = two_blocks();
  config.layers = 4;
  models::GPT model(config);
  const PrecisionSection inner = section(
      "[[precision.override]]\nlayers = [\"blocks.1.*\", \"blocks.2.*\"]\nrecipe = \"bf16\"\n");
  EXPECT_THAT(([&] { Quantization(model, inner, "fp8_tensor"); }),
              ::testing::ThrowsMessage<UserError>(AllOf(HasSubstr("1 block at each end"),
                                                        HasSubstr("blocks.1.*, blocks.2.*"),
                                                        HasSubstr("blocks.1 to blocks.2"))));
  EXPECT_EQ(refusal("[[precision.override]]\nlayers = \"blocks.0.*\"\nrecipe = \"bf16\"\n"),
            "accepted");
}

TEST(Quantization, AnOverrideOfOneTransformedOperandIsRefused) {
  const std::string entry =
      "[[precision.recipes]]\nname = \"mine\"\n"
      "activation = { format = \"e2m1\", blocks = \"1x16\", scale_mode = \"e4m3\", hadamard = true "
      "}\n"
      "gradient = { format = \"e2m1\", blocks = \"1x16\", scale_mode = \"e4m3\", hadamard = true "
      "}\n"
      "[[precision.override]]\nlayers = \"blocks.1.ffn.up\"\nrecipe = \"mine\"\n";
  EXPECT_EQ(refusal(entry), "accepted");
  EXPECT_THAT(refusal(entry + "tensors = [\"gradient\"]\n"),
              AllOf(HasSubstr("blocks.1.ffn.up"), HasSubstr("Hadamard")));
}

TEST(Quantization, NativeProductsOfWhatTheyCannotBeAreRefused) {
  const auto native = [](const std::string& recipe, const std::string& entries = "") {
    return refusal("[precision]\nrecipe = \"" + recipe + "\"\ngemm = \"native\"\n" + entries,
                   recipe);
  };
  EXPECT_EQ(native("mxfp8"), "accepted");
  EXPECT_EQ(native("mxfp8_e5m2_grad"), "accepted");
  EXPECT_THAT(native("mxfp4"), AllOf(HasSubstr("precision.gemm"),
                                     HasSubstr("blocks.0.attention.qkv: weight is e2m1"),
                                     HasSubstr("use precision.gemm = \"emulated\"")));
  EXPECT_THAT(native("fp8_block"), HasSubstr("weight has blocks of 128x128"));
  EXPECT_THAT(native("nvfp4_plain"), HasSubstr("weight is e2m1"));
  const std::string entry =
      "[[precision.override]]\nlayers = \"blocks.1.ffn.up\"\ntensors = \"activation\"\nrecipe = ";
  EXPECT_THAT(native("mxfp8", entry + "\"mxfp6_e3m2\"\n"),
              HasSubstr("blocks.1.ffn.up: activation is e3m2"));
  EXPECT_THAT(native("mxfp8_e5m2_grad", entry + "\"mxfp8_e5m2_act\"\n"),
              HasSubstr("blocks.1.ffn.up: gradient and activation are both e5m2"));
  EXPECT_THAT(native("mxfp8", entry + "\"bf16\"\n"),
              HasSubstr("blocks.1.ffn.up: activation is not quantized"));
  EXPECT_EQ(native("mxfp8", "[[precision.override]]\nlayers = \"blocks.0.*\"\nrecipe = \"bf16\"\n"),
            "accepted");
  EXPECT_THAT(native("bf16"),
              AllOf(HasSubstr("precision.gemm"), HasSubstr("nothing is quantized under bf16")));
  EXPECT_THAT(refusal("[precision]\ngemm = \"cutlass\"\n"),
              AllOf(HasSubstr("gemm"), HasSubstr("\"emulated\", \"native\"")));
}

TEST(Quantization, NativeProductsNeedTheirGpu) {
  const auto refused = [](const mx::NativeDevice& device) {
    try {
      check_native(device);
    } catch (const UserError& error) {
      return std::string(error.what()) + " | " + error.help();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refused({.name = "NVIDIA B200", .major = 10}), "accepted");
  EXPECT_THAT(refused({.name = "NVIDIA H200", .major = 9}),
              AllOf(HasSubstr("precision.gemm = \"native\": "),
                    HasSubstr("NVIDIA H200, compute capability 9.0"),
                    HasSubstr("| use precision.gemm = \"emulated\"")));
}

TEST(Quantization, TrainsCloseToBFloat16) {
  const test::TinyRun run;
  const auto validation_loss = [&](const std::string& recipe) {
    RunConfig config = run.config(recipe);
    config.precision.recipe = recipe;
    config.train.steps = 100;
    config.train.batch = 8;
    config.optimizer.lr = 3e-3;  // at 1e-2 noise alone moves a run's end by 3 %
    return train_alone(config).validation_loss.value();
  };
  const double bf16 = validation_loss("bf16"), mxfp8 = validation_loss("mxfp8");
  EXPECT_LT(bf16, 2.5);
  EXPECT_NEAR(mxfp8 / bf16, 1, 0.03);
  EXPECT_NE(mxfp8, bf16);
}

TEST(Quantization, SaysWhatHappenedToEachTensor) {
  models::GPT model(two_blocks());
  initialize(model, 1);
  Quantization quantization(model, section("[precision]\nrecipe = \"mxfp8_floor\"\n"),
                            "mxfp8_floor");
  const auto linear = quantization.layers()[2];
  ASSERT_EQ(linear->options().name, "blocks.0.ffn.up");
  quantization.begin_step(1);
  // One block of 500, which floor saturates at 448, and one of 1. In the third block half of the
  // numbers are too small relative to the largest one.
  at::Tensor x = at::ones({2, 96});
  x.narrow(1, 0, 32).fill_(500);
  x.narrow(1, 65, 16).fill_(1e-6);
  linear->forward(x.slice(1, 0, 32).contiguous());
  const auto entry = [&] {
    const auto statistics = quantization.statistics(7);
    for (const auto& t : statistics["tensors"]) {
      if (t["layer"] == "blocks.0.ffn.up" && t["tensor"] == "activation") return t;
    }
    return nlohmann::ordered_json();
  };
  EXPECT_EQ(quantization.statistics(7)["step"], 7);
  EXPECT_EQ(entry()["format"], "e4m3");
  EXPECT_EQ(entry()["scale_mode"], "floor");
  EXPECT_EQ(entry()["saturation"], 1.0);
  EXPECT_EQ(entry()["saturating_blocks"], 1.0);
  EXPECT_EQ(entry()["saturating_blocks_under_floor"], 1.0);
  EXPECT_EQ(entry()["amax"], 500.0);
  EXPECT_EQ(entry()["scales"], nlohmann::ordered_json({0, 0}));
  EXPECT_NEAR(entry()["sqnr_db"].get<double>(), 20 * std::log10(500.0 / 52), 1e-3);
  const std::vector<std::string> warnings = quantization.warnings(quantization.statistics(7));
  ASSERT_EQ(warnings.size(), 2U);  // a fifth of the initial weights saturates
  EXPECT_THAT(warnings[0],
              AllOf(HasSubstr("weight of blocks.0.ffn.up"), Not(HasSubstr("more layers"))));
  EXPECT_THAT(warnings[1], AllOf(HasSubstr("step 7"), HasSubstr("activation of blocks.0.ffn.up"),
                                 HasSubstr("100.0 % of the blocks")));
  EXPECT_TRUE(quantization.warnings(quantization.statistics(8)).empty());  // named once

  quantization.begin_step(2);
  linear->forward(x.slice(1, 32, 64).contiguous());
  EXPECT_EQ(entry()["saturating_blocks"], 0.0);
  EXPECT_TRUE(entry()["sqnr_db"].is_null());  // ones are exact
  linear->forward(x.slice(1, 64, 96).contiguous());
  EXPECT_EQ(entry()["underflow"], 16.0 / 64);
  linear->forward(x.slice(1, 64, 96).contiguous());
  EXPECT_EQ(entry()["underflow"], 64.0 / 192);
  ASSERT_EQ(quantization.warnings(quantization.statistics(9)).size(), 1U);
}

TEST(Quantization, IsRecordedEveryFewStepsAndInTheReport) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.precision.recipe = "mxfp4";
  config.log.quantization_every = 5;
  config.log.tensorboard = true;
  train_alone(config);
  std::istringstream lines(run.read("run", "quantization.jsonl"));
  std::vector<int> steps;
  for (std::string line; std::getline(lines, line);) {
    const auto json = nlohmann::json::parse(line);
    steps.push_back(json["step"].get<int>());
    EXPECT_EQ(json["tensors"].size(), 2U * 4 * 3);
  }
  EXPECT_EQ(steps, (std::vector<int>{5, 10, 12}));
  const auto panel = report_data(config.folder())["quantization"];
  EXPECT_EQ(panel["step"], 12);
  EXPECT_EQ(panel["rows"].size(), 2U * 4 * 3);
  const std::string page = report_page(report_data(config.folder()));
  EXPECT_THAT(page, AllOf(HasSubstr("<h2>Quantization</h2>"),
                          HasSubstr("<td>blocks.1.ffn.down</td><td>gradient</td>")));

  // The folder is used again by a run that quantizes nothing.
  config.precision.recipe = "fp32";
  train_alone(config, {.resume = false});
  EXPECT_TRUE(report_data(config.folder())["quantization"].is_null());
}

TEST(Quantization, ARunDoesNotResumeUnderOtherRecipes) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.precision.recipe = "mxfp8";
  config.train.steps = 2;
  train_alone(config);
  config.train.steps = 3;
  const auto refused = [&] {
    try {
      train_alone(config);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  config.precision.overrides = {{.layers = {"blocks.0.*"}, .recipe = "bf16"}};
  EXPECT_THAT(refused(), HasSubstr("precision.override"));
  config.precision.overrides.clear();
  config.precision.recipe = "mxfp4";
  EXPECT_THAT(refused(), HasSubstr("mxfp8"));
  config.precision.recipe = "auto";
  EXPECT_EQ(refused(), "accepted");
}

}  // namespace
}  // namespace dovetail::train::quantization_test
