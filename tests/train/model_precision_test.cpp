// A trained model is measured in the numbers in which it was trained.
#include "dovetail/train/numerics/model_precision.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/data/text/token_store.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/mx/linear.h"
#include "dovetail/train/load_run.h"
#include "dovetail/train/metrics/validation.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::model_precision_test {
namespace {

using test::train_alone;
using ::testing::AllOf;
using ::testing::HasSubstr;

/// Four blocks, since fp8_tensor leaves the first and the last one. Validation has windows that do
/// not fill the last micro-batch of 3.
RunConfig config_of(const test::TinyRun& run, const std::string& recipe) {
  RunConfig config = run.config();
  config.precision.recipe = recipe;
  config.model.layers = 4;
  config.optimizer.lr = 1e-2;
  config.schedule.warmup_steps = 2;
  config.train.batch = 6;
  config.train.micro_batch = 3;
  return config;
}

double validation_loss(const RunConfig& config, const std::string& precision = "") {
  const LoadedModel loaded = load_model(config.folder(), precision);
  const data::TokenStore store(config.data.path);
  return validate(*loaded.model, store, *comm::local_groups(1)[0],
                  {.context = config.model.context, .batch = loaded.micro_batch})
      ->loss;
}

class EveryRecipe : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryRecipe, EvaluationGivesTheLossThatTrainingReported) {
  const test::TinyRun run;
  const RunConfig config = config_of(run, GetParam());
  train_alone(config);
  const auto reported = run.metrics("run").back()["validation_loss"];
  EXPECT_EQ(validation_loss(config), reported.get<double>());
  EXPECT_EQ(validation_loss(config, GetParam()), reported.get<double>());
  for (const char* other : {"float32", "mxfp4"}) {
    if (GetParam() == std::string("fp32") && other == std::string("float32")) continue;
    EXPECT_NE(validation_loss(config, other), reported.get<double>()) << other;
  }
}

INSTANTIATE_TEST_SUITE_P(Precision, EveryRecipe,
                         ::testing::Values("fp32", "fp64", "bf16", "mxfp8", "mxfp6_e3m2",
                                           "fp8_tensor", "fp8_tensor_delayed", "fp8_block_float32"),
                         [](const auto& info) { return std::string(info.param); });

TEST(UsedPrecision, OverridesAndRecipesOfTheRunGoWithItsOwnRecipe) {
  const test::TinyRun run;
  RunConfig config = config_of(run, "mine");
  mx::RecipeSection mine;
  mine.name = "mine";
  mine.activation.format = "e2m1";
  config.precision.recipes = {mine};
  config.precision.overrides = {{.layers = {"blocks.1.*"}, .recipe = "bf16"}};
  train_alone(config);
  const double reported = run.metrics("run").back()["validation_loss"];
  EXPECT_EQ(validation_loss(config), reported);
  EXPECT_EQ(load_model(config.folder()).precision.text(), "mine (12 of 17 Linears quantized)");
  EXPECT_EQ(load_model(config.folder(), "mxfp8").precision.text(),
            "mxfp8 (16 of 17 Linears quantized)");
  EXPECT_EQ(load_model(config.folder(), "bf16").precision.text(), "bf16");
  EXPECT_EQ(load_model(config.folder(), "float32").precision.text(), "fp32");
  const auto refused = [&](const std::string& precision) {
    try {
      load_model(config.folder(), precision);
    } catch (const UserError& error) {
      return std::string(error.what()) + " | " + error.help();
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refused("mxfp7"),
              AllOf(HasSubstr("mxfp7"), HasSubstr("float32"), HasSubstr("bf16, "),
                    HasSubstr("mxfp8, "), HasSubstr("fp8_block"), HasSubstr("mine")));
  EXPECT_THAT(refused("fp8_tensor_delayed"),
              AllOf(HasSubstr("delayed scaling"), HasSubstr("quantization.amax."),
                    HasSubstr("1024 steps"), HasSubstr("fp8_tensor")));
  EXPECT_THAT(refused("auto"), HasSubstr("not a recipe"));
}

TEST(UsedPrecision, ARecipeThatQuantizesNothingHereIsRefused) {
  const test::TinyRun run;
  train_alone(run.config());  // two blocks
  EXPECT_THAT(([&] { load_model(run.config().folder(), "fp8_tensor"); }),
              ::testing::ThrowsMessage<UserError>(
                  AllOf(HasSubstr("fp8_tensor"), HasSubstr("the model has 2"))));
}

TEST(UsedPrecision, NativeProductsOfTrainingAreEmulatedAndNamed) {
  PrecisionSection native;
  native.recipe = "mxfp8";
  native.gemm = "native";
  const UsedPrecision used = choose_used_precision(native, "mxfp8", "");
  EXPECT_EQ(used.config.gemm, "emulated");
  models::ModelConfig config;
  config.layers = 1;
  config.width = 32;
  config.heads = 2;
  config.vocab_size = 64;
  models::GPT model(models::resolve_model_config(config, 0));
  set_precision(model, used.config, used.name);
  EXPECT_THAT(summarize_precision(model, used).text(), HasSubstr("emulated here, native"));
}

}  // namespace
}  // namespace dovetail::train::model_precision_test
