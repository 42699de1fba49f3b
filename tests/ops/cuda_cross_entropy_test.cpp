// ctest-labels: cuda
#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "dovetail/ops/cross_entropy_simd.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/functions.h"
#include "tests/ops/gpu_test.h"
#include "tests/ops/testing.h"

namespace dovetail::ops::cuda_cross_entropy_test {
namespace {

class CudaCrossEntropy : public dovetail::testing::NeedsGpuKernels {};

struct Rows {
  at::Tensor losses, gradient;
};

Rows run_kernel(const at::Tensor& logits, const at::Tensor& targets, bool gradient) {
  const at::Tensor changed = logits.clone();
  const at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  cuda_kernels()->cross_entropy(
      {.rows = logits.size(0),
       .vocab = logits.size(1),
       .storage = logits.scalar_type() == at::kFloat ? Storage::kFloat32 : Storage::kBFloat16,
       .logits = changed.mutable_data_ptr(),
       .targets = targets.const_data_ptr<int64_t>(),
       .losses = losses.mutable_data_ptr<float>(),
       .gradient = gradient});
  return {losses, changed};
}

double error(const at::Tensor& actual, const at::Tensor& expected) {
  return (actual.cpu().to(at::kDouble) - expected).abs().max().item<double>();
}

TEST_F(CudaCrossEntropy, RowsAsInFloat64OnTheCpu) {
  // Rows in shared memory and too long for it; of 16 bytes' parts and others.
  for (const int64_t vocab : {1, 7, 8, 1000, 50257, 50304, 65536, 150000}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const int64_t rows = 5;
      const at::Tensor logits =
          (testing::normal({rows, vocab}, static_cast<uint64_t>(vocab)) * 4).to(dtype);
      const at::Tensor targets =
          at::tensor({int64_t{0}, vocab - 1, kIgnoredTarget, vocab / 2, vocab / 3});
      const at::Tensor wide = logits.to(at::kDouble), kept = targets.ne(kIgnoredTarget);
      const at::Tensor safe = targets.clamp_min(0).unsqueeze(1);
      const at::Tensor log_softmax = wide.log_softmax(1);
      const at::Tensor losses = at::where(kept, -log_softmax.gather(1, safe).squeeze(1), 0);
      at::Tensor gradient = log_softmax.exp();
      gradient.scatter_add_(1, safe, at::full_like(safe, -1, wide.options()));
      gradient.mul_(kept.unsqueeze(1));

      const Rows out = run_kernel(logits.cuda(), targets.cuda(), true);
      EXPECT_LE(error(out.losses, losses), 1e-5 * (1 + losses.max().item<double>())) << vocab;
      // A probability is at most 1.
      EXPECT_LE(error(out.gradient, gradient), dtype == at::kFloat ? 1e-5 : 4e-3) << vocab;
      const Rows again = run_kernel(logits.cuda(), targets.cuda(), true);
      EXPECT_TRUE(out.losses.equal(again.losses) && out.gradient.equal(again.gradient)) << vocab;
      const Rows alone = run_kernel(logits.cuda(), targets.cuda(), false);
      EXPECT_TRUE(out.losses.equal(alone.losses)) << vocab;
      EXPECT_TRUE(alone.gradient.cpu().equal(logits)) << vocab;
    }
  }
}

TEST_F(CudaCrossEntropy, TargetsOutsideMakeTheLossNaN) {
  const at::Tensor logits = at::zeros({3, 8}, at::TensorOptions(at::kFloat).device(at::kCUDA));
  const Rows out =
      run_kernel(logits, at::tensor({int64_t{8}, int64_t{-1}, int64_t{7}}).cuda(), true);
  const at::Tensor losses = out.losses.cpu();
  EXPECT_TRUE(std::isnan(losses[0].item<float>()) && std::isnan(losses[1].item<float>()));
  EXPECT_NEAR(losses[2].item<float>(), std::log(8.0), 1e-5);
}

TEST_F(CudaCrossEntropy, LinearInSeveralChunksAsInFloat64OnTheCpu) {
  const int64_t tokens = 6000, width = 24,
                vocab = 50304;  // two chunks in bfloat16, three in float32
  const at::Tensor targets = at::arange(tokens).remainder(997) * 50;
  targets[17].fill_(kIgnoredTarget);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    const at::Tensor x = testing::normal({tokens, width}, 1).to(dtype),
                     w = testing::normal({vocab, width}, 2).to(dtype);
    const at::Tensor gpu_x = x.cuda().requires_grad_(), gpu_w = w.cuda().requires_grad_();
    const at::Tensor loss = linear_cross_entropy(gpu_x, gpu_w, targets.cuda());
    loss.backward();
    // The same on the CPU, in parts of the tokens: float64 logits of all would take 2.4 GB.
    at::Tensor expected = at::zeros({}, at::kDouble);
    const at::Tensor wide_x = x.to(at::kDouble), wide_w = w.to(at::kDouble);
    at::Tensor dx = at::zeros_like(wide_x), dw = at::zeros_like(wide_w);
    for (int64_t first = 0; first < tokens; first += 1000) {
      const at::Tensor part = wide_x.narrow(0, first, 1000),
                       target = targets.narrow(0, first, 1000);
      const at::Tensor log_softmax = part.mm(wide_w.t()).log_softmax(1),
                       kept = target.ne(kIgnoredTarget).unsqueeze(1);
      const at::Tensor safe = target.clamp_min(0).unsqueeze(1);
      expected -= log_softmax.gather(1, safe).mul(kept).sum();
      at::Tensor d = log_softmax.exp();
      d.scatter_add_(1, safe, at::full_like(safe, -1, d.options()));
      d.mul_(kept);
      dx.narrow(0, first, 1000).copy_(d.mm(wide_w));
      dw += d.t().mm(part);
    }
    const double tolerance = dtype == at::kFloat ? 1e-4 : 2e-2;
    EXPECT_NEAR(loss.item<double>(), expected.item<double>(),
                tolerance * std::abs(expected.item<double>()));
    EXPECT_LE(error(gpu_x.grad(), dx), tolerance * dx.abs().max().item<double>());
    EXPECT_LE(error(gpu_w.grad(), dw), tolerance * dw.abs().max().item<double>());
  }
}

}  // namespace
}  // namespace dovetail::ops::cuda_cross_entropy_test
