#include "dovetail/mx/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"

namespace dovetail::mx::recipe_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LinearRecipe built_in(std::string_view name) {
  return find_recipe(built_in_recipes(), name).linear;
}

TEST(Recipe, ThePapersIsE4M3ForAllThreeRoundedUpToNearestEven) {
  const OperandRecipe e4m3 = {.format = Format::kE4M3, .scale_mode = ScaleMode::kRoundUp};
  EXPECT_EQ(built_in("mxfp8"), (LinearRecipe{e4m3, e4m3, e4m3}));
  EXPECT_FALSE(built_in("bf16").quantizes());
}

TEST(Recipe, TheOthersDifferFromItInWhatTheirNamesSay) {
  LinearRecipe expected = built_in("mxfp8");
  expected.gradient.format = Format::kE5M2;
  EXPECT_EQ(built_in("mxfp8_e5m2_grad"), expected);
  for (const mx::Operand operand :
       {mx::Operand::kWeight, mx::Operand::kActivation, mx::Operand::kGradient})
    expected.of(operand).scale_mode = ScaleMode::kFloor;
  EXPECT_EQ(built_in("mxfp8_e5m2_grad_floor"), expected);
  expected.gradient.format = Format::kE4M3;
  EXPECT_EQ(built_in("mxfp8_floor"), expected);
  expected = built_in("mxfp8");
  expected.activation.format = Format::kE5M2;
  EXPECT_EQ(built_in("mxfp8_e5m2_act"), expected);
  expected = built_in("mxfp8");
  expected.weight.format = Format::kE5M2;
  EXPECT_EQ(built_in("mxfp8_e5m2_weight"), expected);
  expected = built_in("mxfp4");
  EXPECT_EQ(expected.weight.format, Format::kE2M1);
  expected.gradient.rounding = Rounding::kStochastic;
  EXPECT_EQ(built_in("mxfp4_stochastic"), expected);
  EXPECT_EQ(built_in("mxfp6_e2m3").activation.format, Format::kE2M3);
  EXPECT_EQ(built_in("mxfp6_e3m2").activation.format, Format::kE3M2);
}

TEST(Recipe, Float8IsHybridByTensorAndE4M3ByBlock) {
  const auto by_tensor = [](Format format, int64_t history) {
    return OperandRecipe{
        .format = format, .blocks = Blocks::kTensor, .float32_scales = true, .history = history};
  };
  const Recipe& current = find_recipe(built_in_recipes(), "fp8_tensor");
  const OperandRecipe forward = by_tensor(Format::kE4M3, 0);
  EXPECT_EQ(current.linear, (LinearRecipe{forward, forward, by_tensor(Format::kE5M2, 0)}));
  EXPECT_EQ(current.high_precision_ends, 1);
  const Recipe& delayed = find_recipe(built_in_recipes(), "fp8_tensor_delayed");
  const OperandRecipe later = by_tensor(Format::kE4M3, 1024);
  EXPECT_EQ(delayed.linear, (LinearRecipe{later, later, by_tensor(Format::kE5M2, 1024)}));
  EXPECT_EQ(delayed.high_precision_ends, 0);
  OperandRecipe square = {.format = Format::kE4M3, .blocks = Blocks::k128x128};
  OperandRecipe row = {.format = Format::kE4M3, .blocks = Blocks::k1x128};
  EXPECT_EQ(built_in("fp8_block"), (LinearRecipe{square, row, row}));
  square.float32_scales = row.float32_scales = true;
  EXPECT_EQ(built_in("fp8_block_float32"), (LinearRecipe{square, row, row}));
}

TEST(Recipe, Nvfp4HasSquareWeightsAndTransformedStochasticGradients) {
  const OperandRecipe row = {.format = Format::kE2M1, .blocks = Blocks::k1x16};
  EXPECT_EQ(built_in("nvfp4_plain"), (LinearRecipe{row, row, row}));
  LinearRecipe full = {row, row, row};
  full.weight.blocks = Blocks::k16x16;
  full.activation.hadamard = full.gradient.hadamard = true;
  full.gradient.rounding = Rounding::kStochastic;
  EXPECT_EQ(built_in("nvfp4"), full);
  EXPECT_EQ(find_recipe(built_in_recipes(), "nvfp4").high_precision_ends, 1);
}

TEST(Recipe, WhatCannotBeIsNamed) {
  const auto refusal = [](auto change) {
    RecipeSection section{.name = "mine"};
    change(section);
    try {
      make_recipe(section);
    } catch (const UserError& error) {
      return std::string(error.what()) + " | " + error.help();
    }
    return std::string("accepted");
  };
  EXPECT_EQ(refusal([](RecipeSection&) {}), "accepted");
  EXPECT_THAT(refusal([](RecipeSection& s) { s.activation.rounding = "stochastic"; }),
              AllOf(HasSubstr("\"mine\""), HasSubstr("activation"), HasSubstr("stochastic")));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.gradient.blocks = "32x32"; }),
              AllOf(HasSubstr("gradient"), HasSubstr("32x32")));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.weight = {.format = "none", .blocks = "32x32"}; }),
              AllOf(HasSubstr("weight"), HasSubstr("none")));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.activation.blocks = "128x128"; }),
              HasSubstr("128x128"));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.weight.blocks = "2x2"; }), HasSubstr("2x2"));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.weight.scale_mode = "float32"; }),
              HasSubstr("blocks of 32"));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.weight = {.format = "e2m1", .blocks = "1x128"}; }),
              HasSubstr("e2m1"));
  EXPECT_THAT(
      refusal([](RecipeSection& s) { s.weight = {.blocks = "tensor", .scale_mode = "floor"}; }),
      HasSubstr("floor"));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.weight = {.blocks = "1x128", .history = 4}; }),
              HasSubstr("delayed"));
  EXPECT_THAT(refusal([](RecipeSection& s) {
                s.gradient = {.blocks = "tensor", .rounding = "stochastic"};
              }),
              HasSubstr("stochastic"));
  const RecipeSection::OperandSection nvfp4 = {
      .format = "e2m1", .blocks = "1x16", .scale_mode = "e4m3"};
  const auto refused_nvfp4 = [&](auto change) {
    return refusal([&](RecipeSection& s) {
      s.weight = s.activation = s.gradient = nvfp4;
      change(s);
    });
  };
  EXPECT_EQ(refused_nvfp4([](RecipeSection&) {}), "accepted");
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.weight.format = "e4m3"; }),
              AllOf(HasSubstr("weight cannot be e4m3"), HasSubstr("use e2m1")));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.weight.scale_mode = "round_up"; }),
              HasSubstr("cannot have scale_mode = \"round_up\" in blocks of 1x16"));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.weight.blocks = "1x32"; }),
              HasSubstr("cannot have scale_mode = \"e4m3\" in blocks of 1x32"));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.activation.blocks = "16x16"; }),
              HasSubstr("activation cannot have blocks of 16x16"));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.weight.hadamard = true; }),
              HasSubstr("weight cannot have a Hadamard transform"));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.activation.hadamard = true; }),
              HasSubstr("activation has a Hadamard transform, but gradient has none"));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.gradient.hadamard = true; }),
              HasSubstr("gradient has a Hadamard transform, but activation has none"));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.activation.rounding = "stochastic"; }),
              HasSubstr("activation cannot be rounded stochastically"));
  EXPECT_THAT(refused_nvfp4([](RecipeSection& s) { s.gradient.history = 4; }),
              HasSubstr("delayed"));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.gradient.hadamard = true; }),
              HasSubstr("gradient cannot have a Hadamard transform"));
  EXPECT_THAT(refusal([](RecipeSection& s) { s.gradient = {.format = "none", .hadamard = true}; }),
              HasSubstr("none"));
  EXPECT_EQ(refusal([](RecipeSection& s) { s.weight.blocks = "32x32"; }), "accepted");
  EXPECT_EQ(refusal([](RecipeSection& s) { s.gradient.rounding = "stochastic"; }), "accepted");
}

TEST(Recipe, AnUnknownNameIsAnsweredWithThoseThereAre) {
  try {
    built_in("mxfp9");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("mxfp9"), HasSubstr("bf16, mxfp8,")));
  }
}

}  // namespace
}  // namespace dovetail::mx::recipe_test
