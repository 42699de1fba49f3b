// ctest-labels: cuda
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "dovetail/mx/cuda_kernels.h"
#include "dovetail/mx/float8.h"
#include "dovetail/mx/quantized_linear.h"
#include "dovetail/ops/row_operation.h"
#include "tests/mx/blocks.h"
#include "tests/ops/gpu_test.h"

namespace dovetail::mx::cuda_float8_test {
namespace {

class CudaFloat8 : public dovetail::testing::NeedsGpuKernels {};

/// Ordinary values with zeros, tiny values, and in blocks of their own a NaN and an infinity.
at::Tensor values(int64_t rows, int64_t cols, at::ScalarType dtype, bool finite) {
  at::Tensor x = ordinary_values({rows, cols}, 1, dtype);
  x.narrow(0, 0, 1).zero_();
  x.narrow(1, 0, 1).zero_();
  x[rows / 2].mul_(1e-30);
  if (!finite) {
    x[rows - 1][cols - 1] = std::numeric_limits<double>::quiet_NaN();
    x[1][cols / 2] = -std::numeric_limits<double>::infinity();
  }
  return x;
}

void expect_bits(const at::Tensor& found, const at::Tensor& expected) {
  ASSERT_EQ(found.sizes(), expected.sizes());
  const at::Tensor a = found.cpu().contiguous(), b = expected.contiguous();
  const bool nan = at::isFloatingType(b.scalar_type());
  const at::Tensor same = nan ? a.eq(b).logical_or(a.ne(a).logical_and(b.ne(b))) : a.eq(b);
  EXPECT_TRUE(same.all().item<bool>()) << same.logical_not().sum().item<int64_t>() << " differ";
}

TEST_F(CudaFloat8, CodesAndScalesAreThoseOfTheCpu) {
  using B = Float8Blocks;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool finite : {true, false}) {
      for (const auto& [rows, cols] :
           {std::pair<int64_t, int64_t>{128, 256}, {17, 131}, {300, 144}}) {
        for (const auto blocks : {B::kTensor, B::kRow, B::kColumn, B::kSquare}) {
          for (const auto format : {Format::kE4M3, Format::kE5M2}) {
            for (const bool power_of_two : {true, false}) {
              SCOPED_TRACE(fmt::format("{} x {} blocks {} {} {}", rows, cols,
                                       static_cast<int>(blocks), c10::toString(dtype),
                                       power_of_two));
              const Float8Spec spec = {
                  .format = format, .blocks = blocks, .power_of_two = power_of_two};
              const at::Tensor x = values(rows, cols, dtype, finite);
              const Float8Tensor expected = quantize_float8(x, spec).tensor;
              const Float8Tensor found = quantize_float8(x.to(at::kCUDA), spec).tensor;
              expect_bits(found.codes, expected.codes);
              expect_bits(found.scales, expected.scales);
              expect_bits(dequantize(found), dequantize(expected));
            }
          }
        }
      }
    }
  }
}

TEST_F(CudaFloat8, KernelMakesTheCodesOfTheCpuAndOfTheTranspose) {
  using Kind = Float8GpuProblem::Kind;
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    for (const bool finite : {true, false}) {
      for (const auto& [rows, cols] :
           {std::pair<int64_t, int64_t>{128, 256}, {16, 16}, {272, 144}}) {
        for (const auto kind : {Kind::kWhole, Kind::kLines, Kind::kSquare}) {
          for (const auto format : {Format::kE4M3, Format::kE5M2}) {
            for (const bool power_of_two : {true, false}) {
              SCOPED_TRACE(fmt::format("{} x {} kind {} {} {}", rows, cols, static_cast<int>(kind),
                                       c10::toString(dtype), power_of_two));
              const at::Tensor x = values(rows, cols, dtype, finite), on_gpu = x.to(at::kCUDA);
              const int64_t down = (rows + 127) / 128, across = (cols + 127) / 128;
              const bool lines = kind == Kind::kLines, whole = kind == Kind::kWhole;
              const auto bytes = on_gpu.options().dtype(at::kByte),
                         numbers = on_gpu.options().dtype(at::kFloat);
              const at::Tensor codes = at::empty({rows, cols}, bytes),
                               transposed = at::empty({cols, rows}, bytes);
              const at::Tensor most = at::zeros({}, bytes.dtype(at::kInt));
              const at::Tensor scales =
                  at::empty({lines ? across : down, lines ? rows : across}, numbers);
              const at::Tensor column_scales =
                  at::empty({lines ? down : across, lines ? cols : down}, numbers);
              const Float8GpuProblem p = {
                  .kind = kind,
                  .rows = rows,
                  .cols = cols,
                  .narrow = dtype == at::kBFloat16,
                  .x = on_gpu.const_data_ptr(),
                  .e5m2 = format == Format::kE5M2,
                  .power_of_two = power_of_two,
                  .most = reinterpret_cast<uint32_t*>(most.mutable_data_ptr<int32_t>()),
                  .codes = codes.mutable_data_ptr<uint8_t>(),
                  .transposed = transposed.mutable_data_ptr<uint8_t>(),
                  .scales = scales.mutable_data_ptr<float>(),
                  .column_scales = column_scales.mutable_data_ptr<float>(),
                  .scale_stride = lines ? rows : across,
                  .column_scale_stride = lines ? cols : down};
              if (whole) mx::cuda_kernels()->float8_amax(p);
              mx::cuda_kernels()->quantize_float8(p);
              const auto on_cpu = [&](Float8Blocks blocks) {
                return quantize_float8(
                           x, {.format = format, .blocks = blocks, .power_of_two = power_of_two})
                    .tensor;
              };
              const Float8Tensor row = on_cpu(whole   ? Float8Blocks::kTensor
                                              : lines ? Float8Blocks::kRow
                                                      : Float8Blocks::kSquare);
              const Float8Tensor column = lines ? on_cpu(Float8Blocks::kColumn) : row;
              expect_bits(codes, row.codes);
              expect_bits(transposed, column.codes.t());
              if (whole) {
                expect_bits(scales.view({-1})[0], row.scales);
              } else {
                expect_bits(lines ? scales.t() : scales, row.scales);
                expect_bits(lines ? column_scales : column_scales.t(), column.scales);
              }
            }
          }
        }
      }
    }
  }
}

/// With a magnitude of earlier steps, one pass quantizes and finds the magnitude of this step.
TEST_F(CudaFloat8, DelayedScalingSaturatesAndSeesTheMagnitude) {
  const int64_t rows = 144, cols = 272;
  for (const bool finite : {true, false}) {
    const at::Tensor x = values(rows, cols, at::kBFloat16, finite), on_gpu = x.to(at::kCUDA);
    const at::Tensor amax = x[0][1].to(at::kFloat).add(0.5F);
    const auto bytes = on_gpu.options().dtype(at::kByte);
    const at::Tensor codes = at::empty({rows, cols}, bytes),
                     transposed = at::empty({cols, rows}, bytes),
                     most = at::zeros({}, bytes.dtype(at::kInt)),
                     scale = at::empty({1}, bytes.dtype(at::kFloat)), known = amax.to(at::kCUDA);
    mx::cuda_kernels()->quantize_float8(
        {.rows = rows,
         .cols = cols,
         .narrow = true,
         .x = on_gpu.const_data_ptr(),
         .most = reinterpret_cast<uint32_t*>(most.mutable_data_ptr<int32_t>()),
         .amax = known.const_data_ptr<float>(),
         .codes = codes.mutable_data_ptr<uint8_t>(),
         .transposed = transposed.mutable_data_ptr<uint8_t>(),
         .scales = scale.mutable_data_ptr<float>()});
    const at::Tensor no_gap = at::where(at::isfinite(x), x, 0);
    const Float8Tensor expected = quantize_float8(no_gap, {.amax = amax}).tensor;
    expect_bits(codes, at::where(at::isfinite(x), expected.codes, 0x7f));
    expect_bits(transposed, codes.cpu().t());
    expect_bits(scale[0], expected.scales);
    const float magnitude = most.view(at::kFloat).item<float>();
    if (finite) {
      EXPECT_EQ(magnitude, x.abs().max().item<float>());
    } else {
      EXPECT_FALSE(std::isfinite(magnitude));
    }
  }
}

/// A Linear whose quantizer computes the activation has the bits of a Linear after it.
TEST_F(CudaFloat8, AnActivationInTheQuantizerHasTheBitsOfItsResult) {
  for (const char* recipe :
       {"fp8_tensor", "fp8_tensor_delayed", "fp8_block", "fp8_block_float32", "mxfp8", "mxfp4"}) {
    for (const auto& operation :
         {ops::swiglu_operation(), ops::gelu_operation(), ops::squared_relu_operation()}) {
      for (const auto& [rows, in, out] :
           {std::tuple<int64_t, int64_t, int64_t>{256, 384, 128}, {48, 96, 32}, {23, 96, 40}}) {
        SCOPED_TRACE(fmt::format("{} {} {} {}", recipe, rows, in, out));
        const bool gated = operation->apply(at::zeros({1, 2})).size(-1) == 1;
        const auto run = [&](bool inside) {
          const auto linear = std::make_shared<QuantizedLinear>(
              find_recipe(built_in_recipes(), recipe).linear, "x");
          linear->begin_step(1, /*count=*/false);
          const auto leaf = [&](std::vector<int64_t> sizes, uint64_t seed) {
            return ordinary_values(sizes, seed, at::kBFloat16).to(at::kCUDA).requires_grad_();
          };
          const at::Tensor x = leaf({2, rows, gated ? 2 * in : in}, 1), weight = leaf({out, in}, 2);
          const at::Tensor y = inside ? linear->forward(x, weight, {}, operation)
                                      : linear->forward(operation->apply(x), weight);
          y.backward(leaf({2, rows, out}, 4).detach());
          return std::vector<at::Tensor>{y.detach(), x.grad(), weight.grad()};
        };
        const auto inside = run(true), after = run(false);
        for (size_t i = 0; i < inside.size(); ++i) EXPECT_TRUE(inside[i].equal(after[i])) << i;
      }
    }
  }
}

/// Sizes with FP8 products, and without.
TEST_F(CudaFloat8, ALinearIsThatOfTheCpu) {
  for (const char* recipe :
       {"fp8_tensor", "fp8_tensor_delayed", "fp8_block", "fp8_block_float32"}) {
    for (const auto& [rows, in, out] :
         {std::tuple<int64_t, int64_t, int64_t>{256, 384, 128}, {48, 80, 32}, {23, 96, 40}}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16}) {
        SCOPED_TRACE(fmt::format("{} {} {} {} {}", recipe, rows, in, out, c10::toString(dtype)));
        const auto run = [&](at::DeviceType device) {
          const auto linear = std::make_shared<QuantizedLinear>(
              find_recipe(built_in_recipes(), recipe).linear, "x");
          linear->begin_step(1);
          AmaxHistories histories({Format::kE4M3}, 2, device);
          const bool delayed = linear->recipe().activation.history > 0;
          if (delayed) linear->set_delayed(mx::Operand::kActivation, histories.of(0));
          const auto leaf = [&](std::vector<int64_t> sizes, uint64_t seed) {
            return ordinary_values(sizes, seed, dtype).to(device).requires_grad_();
          };
          const at::Tensor x = leaf({rows, in}, 1), weight = leaf({out, in}, 2),
                           bias = leaf({out}, 3);
          const at::Tensor y = linear->forward(x, weight, bias);
          y.backward(leaf({rows, out}, 4).detach());
          if (delayed) {
            histories.end_step([](const at::Tensor& seen) { return seen; });
            EXPECT_EQ(histories.of(0).amax.item<float>(), x.abs().max().item<float>());
          }
          return std::vector<at::Tensor>{y.detach().cpu(), x.grad().cpu(), weight.grad().cpu(),
                                         bias.grad().cpu()};
        };
        const auto expected = run(at::kCPU), found = run(at::kCUDA), again = run(at::kCUDA);
        for (size_t i = 0; i < expected.size(); ++i) {
          const at::Tensor wide = expected[i].to(at::kDouble);
          const double error = (found[i].to(at::kDouble) - wide).norm().item<double>();
          EXPECT_LE(error, (dtype == at::kFloat ? 1e-3 : 1e-2) * wide.norm().item<double>()) << i;
          EXPECT_TRUE(found[i].equal(again[i])) << i;
        }
      }
    }
  }
}

}  // namespace
}  // namespace dovetail::mx::cuda_float8_test
