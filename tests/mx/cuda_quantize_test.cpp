// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "dovetail/mx/cuda_kernels.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/mx/quantized_linear.h"
#include "tests/mx/blocks.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::mx::cuda_quantize_test {
namespace {

constexpr Format kFormats[] = {Format::kE4M3, Format::kE5M2, Format::kE3M2,
                               Format::kE2M3, Format::kE2M1, Format::kInt8};

class CudaQuantize : public dovetail::testing::NeedsGpuKernels {};

bool same_bits(const at::Tensor& gpu, const at::Tensor& cpu) {
  if (!cpu.defined()) return !gpu.defined();
  return bits_of_tensor(gpu.cpu()) == bits_of_tensor(cpu);
}

void expect_same(const Statistics& gpu, const Statistics& cpu) {
  EXPECT_EQ(gpu.elements, cpu.elements);
  EXPECT_EQ(gpu.blocks, cpu.blocks);
  EXPECT_EQ(gpu.zero_blocks, cpu.zero_blocks);
  EXPECT_EQ(gpu.non_finite_blocks, cpu.non_finite_blocks);
  EXPECT_EQ(gpu.underflows, cpu.underflows);
  EXPECT_EQ(gpu.saturations, cpu.saturations);
  EXPECT_EQ(gpu.saturating_blocks, cpu.saturating_blocks);
  EXPECT_EQ(gpu.floor_saturated_blocks, cpu.floor_saturated_blocks);
  EXPECT_EQ(gpu.amax_bits, cpu.amax_bits);
  EXPECT_EQ(gpu.min_scale, cpu.min_scale);
  EXPECT_EQ(gpu.max_scale, cpu.max_scale);
  EXPECT_NEAR(gpu.signal, cpu.signal, 1e-4 * cpu.signal);
  EXPECT_NEAR(gpu.error, cpu.error, 1e-3 * cpu.error);
}

void expect_same_copies(const Quantized& gpu, const Quantized& cpu) {
  const auto copies = [](const MXTensor& a, const MXTensor& b) {
    ASSERT_EQ(a.defined(), b.defined());
    if (!b.defined()) return;
    EXPECT_TRUE(at::equal(a.codes().cpu(), b.codes()));
    EXPECT_TRUE(at::equal(a.scales().cpu(), b.scales()));
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      EXPECT_TRUE(
          same_bits(dequantize(a, dtype).nan_to_num(-1), dequantize(b, dtype).nan_to_num(-1)));
  };
  copies(gpu.row, cpu.row);
  copies(gpu.column, cpu.column);
  copies(gpu.square, cpu.square);
  EXPECT_TRUE(same_bits(gpu.row_values, cpu.row_values));
  EXPECT_TRUE(same_bits(gpu.column_values, cpu.column_values));
  EXPECT_TRUE(same_bits(gpu.square_values, cpu.square_values));
}

/// With counts and without: kernels of their own.
void expect_same(const at::Tensor& x, QuantizeSpec spec) {
  const at::Tensor x_gpu = x.to(at::kCUDA);
  spec.count = true;
  const Quantized cpu = quantize(x, spec), gpu = quantize(x_gpu, spec);
  expect_same_copies(gpu, cpu);
  expect_same(gpu.row_statistics, cpu.row_statistics);
  expect_same(gpu.column_statistics, cpu.column_statistics);
  expect_same(gpu.square_statistics, cpu.square_statistics);
  spec.count = false;
  expect_same_copies(quantize(x_gpu, spec), cpu);
}

TEST_F(CudaQuantize, MakesTheBitsAndCountsOfTheCpu) {
  uint64_t seed = 1;
  for (const auto& [rows, cols] :
       {std::pair(1, 1), {31, 33}, {32, 128}, {65, 260}, {127, 131}, {3, 4096}, {70, 544}}) {
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf}) {
      for (const Format format : kFormats) {
        for (const ScaleMode mode :
             {ScaleMode::kRoundUp, ScaleMode::kFloor, ScaleMode::kCeil, ScaleMode::kEven}) {
          for (const Copies copies :
               {Copies::kRow, Copies::kColumn, Copies::kRowAndColumn, Copies::kSquare}) {
            SCOPED_TRACE(::testing::Message()
                         << rows << " x " << cols << " " << name(format) << " " << name(mode));
            const auto non_finite = seed % 2 == 0 ? NonFinite::kPoison : NonFinite::kSaturate;
            QuantizeSpec spec = {
                .format = format, .scale_mode = mode, .non_finite = non_finite, .copies = copies};
            const at::Tensor x = seed % 3 == 0
                                     ? adversarial_values({rows, cols}, seed, format, true, dtype)
                                     : ordinary_values({rows, cols}, seed, dtype);
            ++seed;
            spec.row_values = spec.column_values = spec.square_values =
                dtype != at::kHalf && seed % 5 == 0;
            if (seed % 7 == 0) {
              spec.rounding = Rounding::kStochastic;
              spec.seed = seed;
            }
            expect_same(x, spec);
            if (HasFailure()) return;
          }
        }
      }
    }
  }
}

TEST_F(CudaQuantize, TakesViewsAndCountsOnlyWhenAsked) {
  const at::Tensor x = ordinary_values({70, 301}, 3, at::kFloat);
  expect_same(x.t(), {});
  expect_same(x.slice(1, 1), {.copies = Copies::kRowAndColumn});
  expect_same(x.view({7, 10, 301}), {.copies = Copies::kColumn});
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    // On a GPU memory whose address no vector fits.
    const at::Tensor flat = ordinary_values({1 + 64 * 96}, 4, dtype);
    const QuantizeSpec spec = {.count = false, .copies = Copies::kRowAndColumn};
    expect_same_copies(quantize(flat.to(at::kCUDA).slice(0, 1).view({64, 96}), spec),
                       quantize(flat.slice(0, 1).view({64, 96}), spec));
  }
  const Quantized made = quantize(x.to(at::kCUDA), {.count = false});
  EXPECT_EQ(made.row_statistics.elements, 0);
  EXPECT_TRUE(at::equal(made.row.codes().cpu(), quantize(x).row.codes()));
}

TEST_F(CudaQuantize, MakesValuesOfOneCopyAndCodesOfTheOther) {
  uint64_t seed = 1;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const Format format : kFormats) {
      for (const bool row_values : {false, true}) {
        SCOPED_TRACE(::testing::Message() << name(format) << " " << dtype << " " << row_values);
        QuantizeSpec spec = {.format = format, .copies = Copies::kRowAndColumn};
        spec.row_values = row_values;
        spec.column_values = !row_values;
        expect_same(adversarial_values({97, 320}, seed++, format, true, dtype), spec);
      }
    }
  }
}

TEST_F(CudaQuantize, QuantizesEveryBFloat16) {
  const at::Tensor x =
      at::arange(1 << 16, at::kInt).to(at::kShort).view(at::kBFloat16).view({256, 256});
  for (const Format format : kFormats) {
    for (const Copies copies : {Copies::kRow, Copies::kRowAndColumn, Copies::kSquare})
      expect_same(x, {.format = format, .scale_mode = ScaleMode::kFloor, .copies = copies});
  }
}

/// Rows of whole blocks, in each orientation; codes that no quantizer makes, too.
TEST_F(CudaQuantize, DequantizesEveryCodeUnderEveryScale) {
  const at::Tensor bytes = at::arange(256, at::kByte),
                   codes = bytes.expand({256, 256}).contiguous();
  const at::Tensor scales = bytes.view({256, 1}).expand({256, 8}).contiguous();
  for (const Format format : kFormats) {
    for (const auto dtype : {at::kFloat, at::kBFloat16}) {
      for (const MXTensor& x :
           {MXTensor(codes, scales, format, Orientation::kRow),
            MXTensor(codes.t().contiguous(), scales.t().contiguous(), format, Orientation::kColumn),
            MXTensor(codes, bytes.slice(0, 64, 128).view({8, 8}), format, Orientation::kSquare)}) {
        SCOPED_TRACE(::testing::Message()
                     << name(format) << " " << dtype << " " << name(x.orientation()));
        const MXTensor on_gpu(x.codes().to(at::kCUDA), x.scales().to(at::kCUDA), format,
                              x.orientation());
        const at::Tensor cpu = dequantize(x, dtype), gpu = dequantize(on_gpu, dtype).cpu();
        EXPECT_TRUE(at::equal(gpu.isnan(), cpu.isnan()));
        EXPECT_TRUE(same_bits(gpu.masked_fill(gpu.isnan(), 0), cpu.masked_fill(cpu.isnan(), 0)));
      }
    }
  }
}

/// Computing the activation in the quantizer gives the bits of two kernels.
TEST_F(CudaQuantize, AnActivationIsQuantizedLikeItsResult) {
  uint64_t seed = 1;
  for (const auto& operation :
       {ops::swiglu_operation(), ops::gelu_operation(), ops::squared_relu_operation()}) {
    const int64_t inputs = operation->apply(at::zeros({1, 2})).size(-1) == 1 ? 2 : 1;
    for (const auto& [rows, cols] : {std::pair(33, 64), {7, 544}, {40, 48}}) {
      for (const Format format : kFormats) {
        for (const Copies copies : {Copies::kRow, Copies::kColumn, Copies::kRowAndColumn}) {
          for (const bool values : {true, false}) {
            SCOPED_TRACE(::testing::Message() << rows << " x " << cols << " " << name(format));
            const at::Tensor x =
                ordinary_values({rows, inputs * cols}, seed++, at::kBFloat16).to(at::kCUDA);
            QuantizeSpec spec = {.format = format, .count = false, .copies = copies};
            spec.row_values = spec.column_values = values;
            ops::RowOperation::Statistics none;
            const Quantized made = quantize(operation->rows(x, none), spec),
                            expected = quantize(operation->apply(x), spec);
            EXPECT_TRUE(same_bits(made.row_values, expected.row_values.defined()
                                                       ? expected.row_values.cpu()
                                                       : at::Tensor()));
            EXPECT_TRUE(same_bits(made.column_values, expected.column_values.defined()
                                                          ? expected.column_values.cpu()
                                                          : at::Tensor()));
            if (values) continue;
            for (const auto& [a, b] :
                 {std::pair(&made.row, &expected.row), std::pair(&made.column, &expected.column)}) {
              ASSERT_EQ(a->defined(), b->defined());
              if (!b->defined()) continue;
              EXPECT_TRUE(at::equal(a->codes(), b->codes()));
              EXPECT_TRUE(at::equal(a->scales(), b->scales()));
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaQuantize, ALinearOnAGpuIsThatOfTheCpu) {
  const LinearRecipe recipe = find_recipe(built_in_recipes(), "mxfp8").linear;
  const auto run = [&](at::Device device) {
    const auto linear = std::make_shared<QuantizedLinear>(recipe, "x");
    const at::Tensor x = ordinary_values({70, 96}, 1, at::kFloat).to(device).requires_grad_();
    const at::Tensor weight = ordinary_values({64, 96}, 2, at::kFloat).to(device).requires_grad_();
    const at::Tensor y = linear->forward(x, weight);
    y.backward(ordinary_values({70, 64}, 3, at::kFloat).to(device));
    return std::vector<at::Tensor>{y.detach().cpu(), x.grad().cpu(), weight.grad().cpu()};
  };
  const auto cpu = run(at::kCPU), gpu = run(at::kCUDA);
  for (size_t i = 0; i < cpu.size(); ++i)
    EXPECT_LT((gpu[i] - cpu[i]).norm().item<double>(), 1e-5 * cpu[i].norm().item<double>());
}

}  // namespace
}  // namespace dovetail::mx::cuda_quantize_test
