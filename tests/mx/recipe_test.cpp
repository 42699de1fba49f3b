#include "dovetail/mx/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"

namespace dovetail::mx {
namespace {

using testing::AllOf;
using testing::HasSubstr;

LinearRecipe built_in(std::string_view name) { return find_recipe(built_in_recipes(), name).linear; }

TEST(Recipe, ThePapersIsE4M3ForAllThreeRoundedUpToNearestEven) {
  const OperandRecipe e4m3 = {.format = Format::kE4M3, .scale_mode = ScaleMode::kRoundUp};
  EXPECT_EQ(built_in("mxfp8"), (LinearRecipe{e4m3, e4m3, e4m3}));
  EXPECT_FALSE(built_in("bf16").quantizes());
}

TEST(Recipe, TheOthersDifferFromItInWhatTheirNamesSay) {
  LinearRecipe expected = built_in("mxfp8");
  expected.gradient.format = Format::kE5M2;
  EXPECT_EQ(built_in("mxfp8_e5m2_grad"), expected);
  for (const Operand operand : {Operand::kWeight, Operand::kActivation, Operand::kGradient})
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
  EXPECT_THAT(
      refusal([](RecipeSection& s) { s.weight = {.format = "none", .rounding = "nearest_even", .blocks = "32x32"}; }),
      AllOf(HasSubstr("weight"), HasSubstr("none")));
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
}  // namespace dovetail::mx
