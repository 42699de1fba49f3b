#include "dovetail/mx/quantized_linear.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/linear.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/simd_level.h"
#include "tests/models/allocation_meter.h"

// The products themselves are held against torchao in tests/python/test_mx_linear.py.
namespace dovetail::mx::quantized_linear_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

LinearRecipe recipe(std::string_view name = "mxfp8") {
  return find_recipe(built_in_recipes(), name).linear;
}

std::shared_ptr<QuantizedLinear> layer(const LinearRecipe& of = recipe(),
                                       bool input_stays = false) {
  return std::make_shared<QuantizedLinear>(of, "blocks.0.ffn.down", Gemm::kEmulated, input_stays);
}

at::Tensor random(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype = at::kFloat) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(sizes, generator).to(dtype);
}

struct Gradients {
  at::Tensor y, x, weight;
  std::vector<at::Tensor> of_prologue;
};

Gradients run(const std::shared_ptr<QuantizedLinear>& linear, const at::Tensor& x_in,
              const at::Tensor& weight_in, const QuantizedLinear::Prologue& inside = nullptr,
              const QuantizedLinear::Prologue& outside = nullptr) {
  const at::Tensor x = x_in.detach().clone().requires_grad_(),
                   weight = weight_in.detach().clone().requires_grad_();
  const at::Tensor y =
      linear->forward(outside != nullptr ? outside->apply(x) : x, weight, {}, inside);
  y.backward(random(y.sizes(), 9, y.scalar_type()));
  Gradients found = {y.detach(), x.grad(), weight.grad(), {}};
  if (inside == nullptr && outside == nullptr) return found;
  const ops::RowOperation::Parameters parameters =
      (inside != nullptr ? inside : outside)->parameters();
  for (at::Tensor parameter : {parameters.weight, parameters.bias}) {
    if (!parameter.defined()) continue;
    found.of_prologue.push_back(parameter.grad().clone());
    parameter.mutable_grad().reset();
  }
  return found;
}

struct PrologueCase {
  QuantizedLinear::Prologue prologue;
  int64_t width;  ///< width of x; the product reads 70
};

std::vector<PrologueCase> prologues() {
  const auto trained = [](uint64_t seed) { return random({70}, seed).requires_grad_(); };
  return {{ops::swiglu_operation(), 140},
          {ops::gelu_operation(), 70},
          {ops::squared_relu_operation(), 70},
          {ops::rms_norm_operation(trained(6), 1e-5), 70},
          {ops::layer_norm_operation(trained(7), trained(8), 1e-5), 70},
          {ops::layer_norm_operation(trained(9), at::Tensor(), 1e-5), 70}};
}

void expect_no_bit_changed(const LinearRecipe& of) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [prologue, width] : prologues()) {
      // More rows than are made at once; the last ones are so small that the codec quantizes them.
      const at::Tensor x = random({3, 401, width}, 1, dtype), weight = random({45, 70}, 2, dtype);
      x.select(1, 400).fill_(1e-30);
      const Gradients inside = run(layer(of), x, weight, prologue),
                      outside = run(layer(of), x, weight, {}, prologue);
      EXPECT_TRUE(at::equal(inside.y, outside.y));
      EXPECT_TRUE(at::equal(inside.x, outside.x));
      EXPECT_TRUE(at::equal(inside.weight, outside.weight));
      ASSERT_EQ(inside.of_prologue.size(), outside.of_prologue.size());
      for (size_t i = 0; i < inside.of_prologue.size(); ++i)
        EXPECT_TRUE(at::equal(inside.of_prologue[i], outside.of_prologue[i]));
    }
  }
}

TEST(QuantizedLinear, APrologueChangesNoBit) {
  expect_no_bit_changed(recipe());
  expect_no_bit_changed(recipe("fp8_block"));  // its quantizer reads whole tensors
  expect_no_bit_changed(recipe("nvfp4"));
  LinearRecipe gradient_alone;
  gradient_alone.gradient = recipe().gradient;
  expect_no_bit_changed(gradient_alone);
}

TEST(QuantizedLinear, APrologueTrainsWithoutItsLinear) {
  const at::Tensor norm = random({70}, 1).requires_grad_(), weight = random({45, 70}, 2),
                   x = random({33, 70}, 3);
  layer()->forward(x, weight, {}, ops::rms_norm_operation(norm, 1e-5)).sum().backward();
  const at::Tensor inside = norm.grad().clone();
  norm.mutable_grad().reset();
  layer()->forward(ops::rms_norm(x, norm, 1e-5), weight).sum().backward();
  EXPECT_TRUE(at::equal(inside, norm.grad()));
}

TEST(QuantizedLinear, APrologueOfAnotherWidthIsNamed) {
  const at::Tensor weight = random({45, 70}, 1);
  for (const char* name : {"mxfp8", "fp8_block"}) {
    const auto forward = [&](int64_t width) {
      layer(recipe(name))->forward(random({33, width}, 2), weight, {}, ops::swiglu_operation());
    };
    EXPECT_THAT([&] { forward(70); },
                ::testing::ThrowsMessage<UserError>(
                    AllOf(HasSubstr("blocks.0.ffn.down"), HasSubstr("rows of 35"))));
    EXPECT_THAT([&] { forward(141); },
                ::testing::ThrowsMessage<UserError>(HasSubstr("must be even")));
  }
}

TEST(QuantizedLinear, KeepsWhatItSaysForBackward) {
  const at::Tensor weight = random({64, 128}, 1, at::kBFloat16).requires_grad_();
  const at::Tensor x = random({256, 256}, 2, at::kBFloat16).requires_grad_();
  const auto linear = layer();
  const testing::AllocationMeter meter;
  at::Tensor y = linear->forward(x, weight, {}, ops::swiglu_operation());
  EXPECT_EQ(meter.current(), static_cast<int64_t>(y.nbytes()));  // x itself, and nothing new
  y.reset();
  const at::Tensor narrow = x.narrow(1, 0, 128).contiguous();
  const int64_t before = meter.current();
  y = linear->forward(narrow, weight);
  EXPECT_EQ(meter.current() - before,
            static_cast<int64_t>(y.nbytes()) + 256 * 128 + 256 * 128 / kBlock);
  y.reset();
  y = layer(recipe(), /*input_stays=*/true)->forward(narrow, weight);
  EXPECT_EQ(meter.current() - before, static_cast<int64_t>(y.nbytes()));
}

TEST(QuantizedLinear, AnInputThatStaysChangesNoBit) {
  const at::Tensor x = random({33, 70}, 1), weight = random({45, 70}, 2);
  const Gradients kept = run(layer(), x, weight);
  const Gradients stays = run(layer(recipe(), /*input_stays=*/true), x, weight);
  EXPECT_TRUE(at::equal(kept.y, stays.y) && at::equal(kept.x, stays.x) &&
              at::equal(kept.weight, stays.weight));
}

TEST(QuantizedLinear, WeightsInSquareBlocksAreOneCopyForBothProducts) {
  LinearRecipe square = recipe();
  square.weight.blocks = Blocks::k32x32;
  const at::Tensor x = random({40, 64}, 1).requires_grad_(), weight = random({96, 64}, 2),
                   dy = random({40, 96}, 3);
  square.activation.format = square.gradient.format = std::nullopt;
  const auto linear = layer(square);
  const at::Tensor y = linear->forward(x, weight);
  y.backward(dy);
  const at::Tensor values = dequantize(quantize(weight, {.copies = Copies::kSquare}).square);
  EXPECT_TRUE(at::allclose(y, at::linear(x, values), 1e-5, 1e-5));
  EXPECT_TRUE(at::allclose(x.grad(), at::mm(dy, values), 1e-5, 1e-5));
  EXPECT_FALSE(at::allclose(y, at::linear(x, weight), 1e-3, 1e-3));
}

TEST(QuantizedLinear, TheScaleOfAWholeTensorMultipliesTheProductAndNotTheBias) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = random({40, 64}, 1, dtype).mul_(1e-3).requires_grad_(),
                     weight = random({96, 64}, 2, dtype).mul_(5).requires_grad_(),
                     bias = random({96}, 3, dtype), dy = random({40, 96}, 4, dtype).mul_(1e-6);
    const at::Tensor y = layer(recipe("fp8_tensor"))->forward(x, weight, bias);
    y.backward(dy);
    const auto values = [](const at::Tensor& of, Format format) {
      return dequantize(quantize_float8(of.detach(), {.format = format}).tensor).to(at::kDouble);
    };
    const at::Tensor of_x = values(x, Format::kE4M3), of_w = values(weight, Format::kE4M3),
                     of_dy = values(dy, Format::kE5M2);
    const auto expect_near = [&](const at::Tensor& found, const at::Tensor& expected) {
      const at::Tensor error = found.to(at::kDouble).sub(expected).abs();
      const double unit = dtype == at::kFloat ? 1e-6 : 0x1p-8;  // rounded once
      EXPECT_TRUE(error.le(expected.abs() * unit + expected.abs().max() * 1e-6).all().item<bool>());
    };
    expect_near(y, of_x.mm(of_w.t()) + bias.to(at::kDouble));
    expect_near(x.grad(), of_dy.mm(of_w));
    expect_near(weight.grad(), of_dy.t().mm(of_x));
  }
}

TEST(QuantizedLinear, DelayedScalingReadsEarlierStepsAlone) {
  LinearRecipe delayed = recipe("fp8_tensor_delayed");
  delayed.weight = delayed.gradient = {};
  delayed.activation.history = 2;
  const auto linear = layer(delayed);
  AmaxHistories histories({Format::kE4M3}, 2, at::kCPU);
  linear->set_delayed(mx::Operand::kActivation, histories.of(0));
  const at::Tensor eye = at::eye(32), x = at::full({2, 32}, 8.0F), gradient = at::ones({2, 32});
  const auto step = [&](float size) {  // y is x as it was quantized
    linear->begin_step(0);
    histories.begin_step();
    const at::Tensor weight = eye.detach().clone().requires_grad_();
    const at::Tensor y = linear->forward(x * size, weight);
    y.backward(gradient);
    EXPECT_TRUE(at::allclose(weight.grad(), y.detach().sum(0).expand({32, 32}), 1e-5,
                             1e-5));  // the kept copy
    EXPECT_EQ(linear->statistics().activation.amax(), 8 * size);
    histories.end_step([](const at::Tensor& seen) { return seen; });
    return y[0][0].item<float>();
  };
  EXPECT_EQ(step(1), 8.0F);      // nothing is known: scale 1
  EXPECT_EQ(step(100), 8.0F);    // beyond what was seen
  EXPECT_EQ(step(50), 400.0F);   // within it
  EXPECT_EQ(step(100), 800.0F);  // the step of 100 is still remembered
  step(1.0F / 64);
  step(1.0F / 64);
  EXPECT_TRUE(at::equal(histories.of(0).history, at::full({2}, 0.125F)));
  linear->begin_step(0);
  linear->forward(x, eye);
  EXPECT_EQ(linear->statistics().activation.saturations,
            x.numel());  // only small ones are remembered now
}

TEST(QuantizedLinear, AStepThatIsNotFiniteLeavesAnUnknownMagnitude) {
  AmaxHistories histories({Format::kE4M3, Format::kE5M2}, 3, at::kCPU);
  const auto step = [&](float first, float second) {
    histories.begin_step();
    const float seen[] = {first, second};
    for (const int64_t i : {0, 1})
      histories.of(i).seen.copy_(at::tensor({seen[i]}).view(at::kInt)[0]);
    histories.end_step([](const at::Tensor& most) { return most; });
  };
  const auto amax = [&](int64_t i) { return histories.of(i).amax.item<float>(); };
  EXPECT_EQ(amax(0), 448.0F);  // nothing is known: scale 1
  EXPECT_EQ(amax(1), 57344.0F);
  step(3.0F, std::numeric_limits<float>::infinity());
  EXPECT_EQ(amax(0), 3.0F);
  EXPECT_EQ(amax(1), 57344.0F);
  step(std::numeric_limits<float>::quiet_NaN(), 2.0F);
  EXPECT_TRUE(at::equal(histories.of(0).history, at::tensor({0.0F, 3.0F, 0.0F})));
  EXPECT_TRUE(at::equal(histories.of(1).history, at::tensor({2.0F, 0.0F, 0.0F})));
  EXPECT_EQ(amax(0), 3.0F);
}

TEST(QuantizedLinear, StochasticRoundingFollowsFromTheSeedAlone) {
  const at::Tensor x = random({33, 64}, 1), weight = random({32, 64}, 2);
  const auto linear = layer(recipe("mxfp4_stochastic"));
  const auto gradient = [&](uint64_t seed, int calls) {
    linear->begin_step(seed);
    Gradients last;
    for (int i = 0; i < calls; ++i) last = run(linear, x, weight);
    return last.x;
  };
  EXPECT_TRUE(at::equal(gradient(5, 1), gradient(5, 1)));
  EXPECT_FALSE(at::equal(gradient(5, 1), gradient(6, 1)));
  EXPECT_FALSE(at::equal(gradient(5, 1), gradient(5, 2)));  // each micro-batch has its own numbers
  EXPECT_TRUE(at::equal(gradient(5, 2), gradient(5, 2)));
}

TEST(QuantizedLinear, CountsWhatHappenedToEachTensor) {
  const auto linear = layer();
  linear->begin_step(0);
  const at::Tensor x = at::full({2, 32}, 1.0f), weight = at::full({3, 32}, 2.0f);
  run(linear, x, weight);
  run(linear, x, weight);
  EXPECT_EQ(linear->statistics().activation.elements, 2 * 2 * 32);
  EXPECT_EQ(linear->statistics().activation.amax(), 1.0f);
  EXPECT_EQ(linear->statistics().weight.elements, 3 * 32);
  EXPECT_EQ(linear->statistics().weight.amax(), 2.0f);
  EXPECT_EQ(linear->statistics().gradient.elements, 2 * 2 * 3);
}

TEST(QuantizedLinear, WithoutBFloat16InstructionsProductsAreOfFloat32) {
  const ops::SimdLevel level = ops::simd_level();
  const at::Tensor x = random({40, 64}, 1, at::kBFloat16),
                   weight = random({32, 64}, 2, at::kBFloat16);
  const Gradients best = run(layer(), x, weight);
  ops::set_simd_level(ops::SimdLevel::kScalar);
  const Gradients wide = run(layer(), x, weight);
  ops::set_simd_level(level);
  EXPECT_EQ(wide.y.scalar_type(), at::kBFloat16);
  EXPECT_TRUE(at::allclose(wide.y, best.y, 1.0 / 128, 1e-2));
  EXPECT_TRUE(at::allclose(wide.weight, best.weight, 1.0 / 128, 1e-2));
}

TEST(QuantizedLinear, WhatIsWrongNamesTheLayer) {
  const auto refusal = [](const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias = {}) {
    try {
      layer()->forward(x, weight, bias);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const at::Tensor x = random({2, 32}, 1), weight = random({3, 32}, 2);
  EXPECT_THAT(refusal(x.to(at::kDouble), weight.to(at::kDouble)),
              AllOf(HasSubstr("blocks.0.ffn.down"), HasSubstr("Double")));
  EXPECT_THAT(refusal(x.to(at::kLong), weight), HasSubstr("Long"));
  EXPECT_THAT(refusal(x, weight.to(at::kBFloat16)), HasSubstr("BFloat16"));
  EXPECT_THAT(refusal(x, random({3, 31}, 1)), HasSubstr("last size"));
  EXPECT_THAT(refusal(x, weight, random({4}, 1)), HasSubstr("bias"));
}

TEST(QuantizedLinear, GivesShapesOnTheMetaDevice) {
  const auto options = at::TensorOptions(c10::kMeta);
  EXPECT_EQ(layer()->forward(at::empty({2, 5, 64}, options), at::empty({3, 64}, options)).sizes(),
            (std::vector<int64_t>{2, 5, 3}));
}

TEST(Linear, TakesAndDropsARecipe) {
  const auto linear = make_linear({.in = 64, .out = 32, .bias = true, .name = "x"});
  const torch::NoGradGuard no_grad;
  linear->weight.copy_(random({32, 64}, 1));
  linear->bias.fill_(3);
  const at::Tensor x = random({5, 64}, 2), plain = linear->forward(x);
  linear->set_recipe(recipe("mxfp4"));
  ASSERT_NE(linear->quantized(), nullptr);
  EXPECT_FALSE(at::allclose(linear->forward(x), plain, 1e-2, 1e-2));
  linear->set_recipe(recipe("bf16"));
  EXPECT_EQ(linear->quantized(), nullptr);
  EXPECT_TRUE(at::equal(linear->forward(x), plain));
}

}  // namespace
}  // namespace dovetail::mx::quantized_linear_test
