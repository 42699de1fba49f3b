#include "dovetail/mx/native.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/mx/quantized_linear.h"
#include "tests/mx/blocks.h"

namespace dovetail::mx::native_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LinearRecipe built_in(const char* name) { return find_recipe(built_in_recipes(), name).linear; }

template <class F>
std::string refusal(F&& act) {
  try {
    act();
  } catch (const UserError& error) {
    return std::string(error.what()) + " | " + error.help();
  }
  return "accepted";
}

TEST(Native, NeedsAGpuOfCapability10AndTheKernels) {
  EXPECT_EQ(native_obstacle({.name = "NVIDIA B200", .major = 10}), "");
  EXPECT_EQ(native_obstacle({.name = "NVIDIA GeForce RTX 5090", .major = 12}), "");
  EXPECT_THAT(native_obstacle({.name = "NVIDIA H200", .major = 9}),
              AllOf(HasSubstr("NVIDIA H200, compute capability 9.0"), HasSubstr("10.0 or later")));
  EXPECT_THAT(native_obstacle({.name = "NVIDIA L4", .major = 8, .minor = 9}),
              HasSubstr("capability 8.9"));
  EXPECT_THAT(native_obstacle(native_device(c10::kCPU)), HasSubstr("the device is the CPU"));
  EXPECT_THAT(native_obstacle(
                  {.name = "NVIDIA B200", .major = 10, .missing = "this build lacks something"}),
              AllOf(HasSubstr("this build lacks something"), HasSubstr("NVIDIA B200")));
}

TEST(Native, TakesE4M3AndE5M2InBlocksOf32) {
  for (const char* name :
       {"mxfp8", "mxfp8_floor", "mxfp8_e5m2_grad", "mxfp8_e5m2_act", "mxfp8_e5m2_weight"})
    EXPECT_EQ(native_obstacle(built_in(name), 64, 48), "") << name;
  const auto obstacle = [](const char* name) { return native_obstacle(built_in(name), 64, 64); };
  EXPECT_THAT(obstacle("mxfp6_e2m3"),
              AllOf(HasSubstr("weight is e2m3"), HasSubstr("e4m3 and e5m2")));
  EXPECT_THAT(obstacle("mxfp4"), HasSubstr("weight is e2m1"));
  EXPECT_THAT(obstacle("fp8_tensor"), HasSubstr("weight has one scale for the whole tensor"));
  EXPECT_THAT(obstacle("fp8_block"), HasSubstr("weight has blocks of 128x128"));
  EXPECT_THAT(obstacle("bf16"), HasSubstr("weight is not quantized"));
  LinearRecipe recipe = built_in("mxfp8");
  recipe.activation.format = Format::kInt8;
  EXPECT_THAT(native_obstacle(recipe, 64, 64), HasSubstr("activation is mxint8"));
  recipe = built_in("mxfp8");
  recipe.weight.blocks = Blocks::k32x32;
  EXPECT_THAT(native_obstacle(recipe, 64, 64), HasSubstr("weight has blocks of 32x32"));
  recipe = built_in("mxfp8");
  recipe.gradient.format.reset();
  EXPECT_THAT(native_obstacle(recipe, 64, 64), HasSubstr("gradient is not quantized"));
}

TEST(Native, TakesNoTwoE5M2OperandsAndNoUnalignedSizes) {
  const auto obstacle_of = [](mx::Operand a, mx::Operand b) {
    LinearRecipe recipe = built_in("mxfp8");
    recipe.of(a).format = recipe.of(b).format = Format::kE5M2;
    return native_obstacle(recipe, 64, 64);
  };
  EXPECT_THAT(obstacle_of(mx::Operand::kActivation, mx::Operand::kWeight),
              HasSubstr("activation and weight are both e5m2"));
  EXPECT_THAT(obstacle_of(mx::Operand::kGradient, mx::Operand::kWeight),
              HasSubstr("gradient and weight are both e5m2"));
  EXPECT_THAT(obstacle_of(mx::Operand::kGradient, mx::Operand::kActivation),
              HasSubstr("gradient and activation are both e5m2"));
  EXPECT_THAT(native_obstacle(built_in("mxfp8"), 40, 64),
              HasSubstr("40 inputs; cuBLASLt needs multiples of 16"));
  EXPECT_THAT(native_obstacle(built_in("mxfp8"), 64, 33), HasSubstr("33 outputs"));
}

TEST(Native, ProductAndLinearRefuseTheCpuByName) {
  const auto row = [](Format format) {
    return quantize(ordinary_values({32, 64}, 1, at::kFloat), {.format = format}).row;
  };
  const MXTensor e4m3 = row(Format::kE4M3), e5m2 = row(Format::kE5M2);
  EXPECT_THAT(refusal([&] { native_product(e4m3, e5m2, at::kBFloat16); }),
              HasSubstr("the device is the CPU"));
  EXPECT_THAT(refusal([&] { native_product(e5m2, e5m2, at::kBFloat16); }),
              HasSubstr("both matrices are e5m2"));
  EXPECT_THAT(refusal([&] { native_product(e4m3, row(Format::kE2M1), at::kFloat); }),
              HasSubstr("b is e2m1"));
  EXPECT_THAT(refusal([&] { native_product({}, e4m3, at::kFloat); }), HasSubstr("a must be"));
  EXPECT_THAT(refusal([&] { native_product(e4m3, e4m3, at::kHalf); }), HasSubstr("Half"));

  const auto layer = [](const char* recipe) {
    return std::make_shared<QuantizedLinear>(built_in(recipe), "blocks.0.ffn.up", Gemm::kNative);
  };
  const at::Tensor x = at::ones({4, 64}), weight = at::ones({32, 64});
  EXPECT_THAT(refusal([&] { layer("mxfp8")->forward(x, weight); }),
              AllOf(HasSubstr("blocks.0.ffn.up: "), HasSubstr("the device is the CPU"),
                    HasSubstr("use emulated")));
  EXPECT_THAT(refusal([&] { layer("mxfp4")->forward(x, weight); }),
              HasSubstr("blocks.0.ffn.up: weight is e2m1"));
  EXPECT_EQ(layer("mxfp8")->forward(x.to(at::kMeta), weight.to(at::kMeta)).sizes(),
            (std::vector<int64_t>{4, 32}));
}

}  // namespace
}  // namespace dovetail::mx::native_test
