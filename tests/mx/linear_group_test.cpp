#include "dovetail/mx/linear_group.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <numeric>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/mx/operand.h"
#include "dovetail/ops/simd_level.h"

// The oracle is QuantizedLinear, one group after another. Its products are held against torchao in
// tests/python/test_mx_linear.py.
namespace dovetail::mx::linear_group_test {
namespace {

using ::testing::HasSubstr;

// Groups without rows, of one row, of whole blocks and of parts of blocks.
const std::vector<int64_t> kCounts = {45, 0, 32, 7, 1, 96, 0};

at::Tensor random(at::IntArrayRef sizes, uint64_t seed, at::ScalarType dtype) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(dtype);
}

LinearRecipe recipe(std::string_view name) { return find_recipe(built_in_recipes(), name).linear; }

struct Linears {
  std::vector<std::shared_ptr<Linear>> all;

  Linears(int64_t in, int64_t out, bool bias, const LinearRecipe& recipe, at::ScalarType dtype) {
    for (size_t g = 0; g < kCounts.size(); ++g) {
      all.push_back(make_linear(
          {.in = in, .out = out, .bias = bias, .name = "experts." + std::to_string(g)}));
      all.back()->weight.set_data(random({out, in}, 10 + g, dtype));
      if (bias) all.back()->bias.set_data(random({out}, 30 + g, dtype));
      all.back()->set_recipe(recipe);
      if (recipe.quantizes()) all.back()->quantized()->begin_step(77 + g);
    }
  }
  std::vector<const Linear*> pointers() const {
    std::vector<const Linear*> found;
    for (const auto& linear : all) found.push_back(linear.get());
    return found;
  }
};

RowGroups groups_of(const std::vector<int64_t>& counts) {
  RowGroups groups{.offsets = {0}};
  for (const int64_t count : counts) groups.offsets.push_back(groups.offsets.back() + count);
  return groups;
}

at::Tensor one_by_one(const Linears& linears, const at::Tensor& x,
                      const QuantizedLinear::Prologue& activation) {
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (size_t g = 0; g < kCounts.size(); first += kCounts[g++])
    rows.push_back(linears.all[g]->forward(x.narrow(0, first, kCounts[g]), activation));
  return at::cat(rows);
}

/// Results of two passes of one step: y, then the gradients of x, weights and biases. And the
/// statistics of the step.
struct Step {
  std::vector<at::Tensor> y, x, weights, biases;
  std::vector<LinearStatistics> statistics;
};

Step step(const Linears& linears, int64_t width, const QuantizedLinear::Prologue& activation,
          at::ScalarType dtype, bool grouped) {
  Step found;
  const int64_t rows = std::accumulate(kCounts.begin(), kCounts.end(), int64_t{0});
  for (uint64_t pass = 0; pass < 2; ++pass) {
    const at::Tensor x = random({rows, width}, 50 + pass, dtype).requires_grad_();
    const at::Tensor y =
        grouped ? LinearGroup(linears.pointers()).forward(x, groups_of(kCounts), activation)
                : one_by_one(linears, x, activation);
    std::vector<at::Tensor> leaves = {x};
    for (const auto& linear : linears.all) leaves.push_back(linear->weight);
    if (linears.all[0]->options().bias)
      for (const auto& linear : linears.all) leaves.push_back(linear->bias);
    const auto of = torch::autograd::grad({y}, leaves, {random(y.sizes(), 60 + pass, dtype)});
    found.y.push_back(y.detach());
    found.x.push_back(of[0]);
    const auto weights = of.begin() + 1, biases = weights + std::ssize(kCounts);
    found.weights.insert(found.weights.end(), weights, biases);
    found.biases.insert(found.biases.end(), biases, of.end());
  }
  for (const auto& linear : linears.all)
    found.statistics.push_back(linear->quantized()->statistics());
  return found;
}

void expect_equal(const Statistics& a, const Statistics& b) {
  EXPECT_EQ(a.elements, b.elements);
  EXPECT_EQ(a.blocks, b.blocks);
  EXPECT_EQ(a.zero_blocks, b.zero_blocks);
  EXPECT_EQ(a.underflows, b.underflows);
  EXPECT_EQ(a.saturations, b.saturations);
  EXPECT_EQ(a.saturating_blocks, b.saturating_blocks);
  EXPECT_EQ(a.amax_bits, b.amax_bits);
  EXPECT_EQ(a.min_scale, b.min_scale);
  EXPECT_EQ(a.max_scale, b.max_scale);
  EXPECT_EQ(a.signal, b.signal);
  EXPECT_EQ(a.error, b.error);
}

/// Compares with a tolerance relative to the largest number. 0: the same bits.
void expect_close(const std::vector<at::Tensor>& found, const std::vector<at::Tensor>& expected,
                  double tolerance, const char* what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) {
    if (tolerance == 0) {
      EXPECT_TRUE(at::equal(found[i], expected[i])) << what << " " << i;
      continue;
    }
    const double largest = expected[i].abs().max().item<double>(),
                 error = (found[i] - expected[i]).abs().max().item<double>();
    EXPECT_LE(error, tolerance * largest) << what << " " << i;
  }
}

class OfRecipe : public ::testing::TestWithParam<const char*> {};

// Bit for bit where products are emulated in float32. In bfloat16 the order of sums differs, and so
// may the last place.
TEST_P(OfRecipe, IsItsLinearsOneAfterAnother) {
  struct Variant {
    QuantizedLinear::Prologue activation;
    int64_t width;  ///< width of x; the product reads 72
    bool bias;
  };
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const auto& [activation, width, bias] :
         {Variant{nullptr, 72, true}, Variant{nullptr, 72, false},
          Variant{ops::swiglu_operation(), 144, false}, Variant{ops::gelu_operation(), 72, true},
          Variant{ops::squared_relu_operation(), 72, false}}) {
      SCOPED_TRACE(::testing::Message() << at::toString(dtype) << " " << width << " " << bias);
      const Linears alone(72, 40, bias, recipe(GetParam()), dtype),
          group(72, 40, bias, recipe(GetParam()), dtype);
      const std::string obstacle = LinearGroup::obstacle(group.pointers(), dtype, at::kCPU);
      if (dtype == at::kBFloat16 && !obstacle.empty()) continue;  // a CPU with AMX
      ASSERT_EQ(obstacle, "");
      const Step expected = step(alone, width, activation, dtype, false),
                 found = step(group, width, activation, dtype, true);
      const bool exact = dtype == at::kFloat || !emulates_in_bfloat16();
      const double rounding = exact ? 0 : 0x1p-7;
      expect_close(found.y, expected.y, rounding, "y");
      expect_close(found.x, expected.x, rounding, "dx");
      expect_close(found.weights, expected.weights, rounding, "dweight");
      // ATen sums the columns of a bfloat16 gradient.
      expect_close(found.biases, expected.biases, dtype == at::kFloat ? 0 : 0x1p-7, "dbias");
      for (size_t g = 0; g < kCounts.size(); ++g) {
        SCOPED_TRACE(::testing::Message() << "statistics of " << g);
        for (const Operand operand : kOperands)
          expect_equal(found.statistics[g].of(operand), expected.statistics[g].of(operand));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(LinearGroup, OfRecipe,
                         ::testing::Values("mxfp8", "mxfp8_e5m2_grad", "mxfp8_floor", "mxfp6_e2m3",
                                           "mxfp4", "mxfp4_stochastic", "fp8_block",
                                           "fp8_block_float32"),
                         [](const auto& info) { return info.param; });

TEST(LinearGroup, QuantizesOnlyTheOperandsOfItsRecipe) {
  for (const Operand left_out : kOperands) {
    LinearRecipe some = recipe("mxfp8");
    some.of(left_out).format.reset();
    const Linears alone(72, 40, true, some, at::kFloat), group(72, 40, true, some, at::kFloat);
    const Step expected = step(alone, 144, ops::swiglu_operation(), at::kFloat, false),
               found = step(group, 144, ops::swiglu_operation(), at::kFloat, true);
    expect_close(found.y, expected.y, 0, "y");
    expect_close(found.x, expected.x, 0, "dx");
    expect_close(found.weights, expected.weights, 0, "dweight");
    EXPECT_EQ(found.statistics[0].of(left_out).blocks, 0);
  }
}

TEST(LinearGroup, DoesNotDependOnThreadsOrTheOtherGroups) {
  const int threads = at::get_num_threads();
  const auto made = [&](int count) {
    at::set_num_threads(count);
    const Linears group(72, 40, false, recipe("mxfp4_stochastic"), at::kFloat);
    return step(group, 72, nullptr, at::kFloat, true);
  };
  const Step one = made(1), four = made(4);
  at::set_num_threads(threads);
  expect_close(four.y, one.y, 0, "y");
  expect_close(four.x, one.x, 0, "dx");
  expect_close(four.weights, one.weights, 0, "dweight");

  // Other numbers in the rows of group 0 leave the results of group 2 as they are.
  const Linears group(72, 40, false, recipe("mxfp8"), at::kFloat);
  const at::Tensor x = random({181, 72}, 1, at::kFloat), other = x.clone();
  other.narrow(0, 0, 45).mul_(1000);
  const auto rows_of_2 = [&](const at::Tensor& rows) {
    return LinearGroup(group.pointers()).forward(rows, groups_of(kCounts)).narrow(0, 45, 32);
  };
  EXPECT_TRUE(at::equal(rows_of_2(x), rows_of_2(other)));
}

TEST(LinearGroup, SaysWhatItCannotDo) {
  const auto obstacle = [](const Linears& linears, at::ScalarType dtype = at::kFloat,
                           at::Device device = at::kCPU) {
    return LinearGroup::obstacle(linears.pointers(), dtype, device);
  };
  const Linears fine(72, 40, false, recipe("mxfp8"), at::kFloat);
  EXPECT_EQ(obstacle(fine), "");
  EXPECT_THAT(obstacle(fine, at::kDouble), HasSubstr("no dtype of a quantized Linear"));
  const Linears mixed(72, 40, false, recipe("mxfp8"), at::kFloat);
  mixed.all[3]->set_recipe(recipe("mxfp4"));
  EXPECT_THAT(obstacle(mixed), HasSubstr("experts.0 and experts.3 have different recipes"));
  mixed.all[3]->set_recipe({});
  EXPECT_THAT(obstacle(mixed), HasSubstr("different recipes"));
  const Linears native(64, 64, false, recipe("mxfp8"), at::kFloat);
  for (const auto& linear : native.all) linear->set_recipe(recipe("mxfp8"), Gemm::kNative);
  EXPECT_THAT(obstacle(native), HasSubstr("native products"));
  const Linears sizes(72, 40, false, recipe("mxfp8"), at::kFloat);
  sizes.all[2]->weight.set_data(at::zeros({40, 70}));
  EXPECT_THAT(obstacle(sizes), HasSubstr("experts.0 and experts.2 have different sizes"));
  EXPECT_THAT(obstacle(Linears(72, 40, false, {}, at::kFloat)), HasSubstr("is not quantized"));
  for (const char* whole : {"fp8_tensor", "fp8_tensor_delayed"})
    EXPECT_THAT(obstacle(Linears(72, 40, false, recipe(whole), at::kFloat)),
                HasSubstr("the scale of a whole tensor"));
  const Linears fp8(72, 40, false, recipe("fp8_block"), at::kFloat);
  EXPECT_EQ(obstacle(fp8), "");
  EXPECT_THAT(obstacle(fp8, at::kFloat, at::Device(at::kCUDA, 0)), HasSubstr("on a GPU"));

  const RowGroups recorded{.offsets = {}, .recorded = at::tensor(groups_of(kCounts).offsets)};
  const at::Tensor x = random({181, 72}, 1, at::kFloat);
  EXPECT_THAT([&] { LinearGroup(fp8.pointers()).forward(x, recorded); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("needs a microscaling recipe")));
  EXPECT_TRUE(at::equal(LinearGroup(fine.pointers()).forward(x, recorded),
                        LinearGroup(fine.pointers()).forward(x, groups_of(kCounts))));
}

}  // namespace
}  // namespace dovetail::mx::linear_group_test
