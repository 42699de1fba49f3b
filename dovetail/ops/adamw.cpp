#include "dovetail/ops/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/adamw_simd.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

void check_tensor(const AdamWTensor& t, size_t index) {
  user_check(
      t.parameter.defined() && t.parameter.is_contiguous() &&
          (t.parameter.scalar_type() == at::kFloat || t.parameter.scalar_type() == at::kDouble),
      "adamw_step: parameter {} must be contiguous float32 or float64, but is {}", index,
      describe(t.parameter));
  user_check(t.gradient.defined() && t.gradient.sizes() == t.parameter.sizes(),
             "adamw_step: gradient {} must have the shape of its parameter {}, but is {}", index,
             describe(t.parameter), describe(t.gradient));
  const auto gradient = t.gradient.scalar_type();
  user_check(gradient == at::kFloat || gradient == at::kDouble || gradient == at::kBFloat16,
             "adamw_step: gradient {} must be float32, float64 or bfloat16, but is {}", index,
             describe(t.gradient));
  for (const at::Tensor* moment : {&t.m, &t.v}) {
    user_check(
        moment->defined() && moment->sizes() == t.parameter.sizes() && moment->is_contiguous() &&
            moment->scalar_type() == t.parameter.scalar_type(),
        "adamw_step: the moments of parameter {} must be contiguous and like it, {}, but one is {}",
        index, describe(t.parameter), describe(*moment));
  }
  if (!t.compute_copy.defined()) return;
  user_check(
      t.compute_copy.sizes() == t.parameter.sizes() && t.compute_copy.is_contiguous() &&
          t.compute_copy.scalar_type() == at::kBFloat16,
      "adamw_step: compute copy {} must be contiguous bfloat16 of the shape of {}, but is {}",
      index, describe(t.parameter), describe(t.compute_copy));
}

void step_composed(const AdamWTensor& t, const AdamWOptions& o) {
  at::Tensor parameter = t.parameter, m = t.m, v = t.v;
  const at::Tensor gradient = t.gradient.to(parameter.scalar_type()) * o.grad_scale;
  m.mul_(o.beta1).add_(gradient, 1 - o.beta1);
  v.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
  const double correction1 = 1 - std::pow(o.beta1, o.step),
               correction2 = 1 - std::pow(o.beta2, o.step);
  parameter.mul_(1 - o.lr * t.weight_decay);
  parameter.addcdiv_(m, (v / correction2).sqrt_().add_(o.eps), -o.lr / correction1);
  if (t.compute_copy.defined()) at::Tensor(t.compute_copy).copy_(parameter);
}

/// Elements per piece: about half a megabyte of the five arrays.
constexpr int64_t kPiece = 32768;

/// Piece of a tensor. The pieces of all tensors form one list, so that threads share large and
/// small tensors evenly.
struct Piece {
  size_t tensor;
  int64_t begin, count;
};

std::vector<Piece> cut(const std::vector<at::Tensor>& tensors) {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (int64_t begin = 0; begin < tensors[i].numel(); begin += kPiece)
      pieces.push_back({i, begin, std::min(kPiece, tensors[i].numel() - begin)});
  }
  return pieces;
}

const void* element(const at::Tensor& x, int64_t index) {
  return static_cast<const char*>(x.const_data_ptr()) +
         index * static_cast<int64_t>(x.element_size());
}

void step_by_kernel(const std::vector<AdamWTensor>& tensors, const AdamWOptions& o) {
  std::vector<at::Tensor> gradients;
  for (const AdamWTensor& t : tensors) gradients.push_back(t.gradient.contiguous());
  const double correction1 = 1 - std::pow(o.beta1, o.step),
               correction2 = 1 - std::pow(o.beta2, o.step);
  const AdamWScalars scalars{.beta1 = static_cast<float>(o.beta1),
                             .beta2 = static_cast<float>(o.beta2),
                             .eps = static_cast<float>(o.eps),
                             .grad_scale = static_cast<float>(o.grad_scale),
                             .step_size = static_cast<float>(o.lr / correction1),
                             .inverse_correction = static_cast<float>(1 / std::sqrt(correction2)),
                             .rest1 = static_cast<float>(1 - o.beta1),
                             .rest2 = static_cast<float>(1 - o.beta2)};
  const auto span_of = [&](const Piece& piece) {
    const AdamWTensor& t = tensors[piece.tensor];
    return AdamWSpan{
        .parameter = t.parameter.mutable_data_ptr<float>() + piece.begin,
        .gradient = element(gradients[piece.tensor], piece.begin),
        .gradient_storage = storage_of(t.gradient),
        .m = t.m.mutable_data_ptr<float>() + piece.begin,
        .v = t.v.mutable_data_ptr<float>() + piece.begin,
        .compute_copy =
            t.compute_copy.defined()
                ? static_cast<uint16_t*>(t.compute_copy.mutable_data_ptr()) + piece.begin
                : nullptr,
        .count = piece.count,
        .decay = static_cast<float>(1 - o.lr * t.weight_decay)};
  };
  std::vector<AdamWSpan> on_gpu;  // whole tensors: the launch divides their elements among blocks
  std::vector<Piece> pieces;
  for (const Piece& piece : cut(gradients)) {
    const at::Tensor& gradient = gradients[piece.tensor];
    if (!gradient.is_cuda()) {
      pieces.push_back(piece);
    } else if (piece.begin == 0) {
      on_gpu.push_back(span_of({piece.tensor, 0, gradient.numel()}));
    }
  }
  if (!on_gpu.empty()) cuda_kernels()->adamw(on_gpu, scalars);
  parallel_pieces(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      adamw_span(span_of(pieces[static_cast<size_t>(i)]), scalars);
  });
  // Bumps versions: autograd thereby learns that a saved weight has changed.
  for (const AdamWTensor& t : tensors) {
    t.parameter.unsafeGetTensorImpl()->bump_version();
    if (t.compute_copy.defined()) t.compute_copy.unsafeGetTensorImpl()->bump_version();
  }
}

/// Returns the sums of squares of tensors on a GPU or the meta device. Does not wait for the GPU.
at::Tensor squares_off_cpu(const std::vector<at::Tensor>& contiguous) {
  const auto has_kernel = [](const at::Tensor& t) { return use_kernel(Kernel::kAdamW, t); };
  if (!std::all_of(contiguous.begin(), contiguous.end(), has_kernel)) {
    std::vector<at::Tensor> sums;
    for (const at::Tensor& t : contiguous) sums.push_back(t.to(at::kDouble).square().sum());
    return at::stack(sums);
  }
  std::vector<SquaresPiece> pieces;
  for (const Piece& piece : cut(contiguous)) {
    const at::Tensor& t = contiguous[piece.tensor];
    pieces.push_back({element(t, piece.begin), storage_of(t), piece.count});
  }
  at::Tensor sums = at::empty({static_cast<int64_t>(pieces.size())},
                              contiguous.front().options().dtype(at::kDouble));
  cuda_kernels()->squares(pieces, sums.mutable_data_ptr<double>());
  return sums;
}

}  // namespace

void adamw_step(const std::vector<AdamWTensor>& tensors, const AdamWOptions& options) {
  user_check(options.step >= 1, "adamw_step: step counts from 1, but is {}", options.step);
  for (size_t i = 0; i < tensors.size(); ++i) check_tensor(tensors[i], i);
  const TraceSpan span("dovetail::adamw");
  const at::NoGradGuard no_grad;
  std::vector<AdamWTensor> for_kernel;
  for (const AdamWTensor& t : tensors) {
    const bool fits =
        t.parameter.scalar_type() == at::kFloat && t.gradient.scalar_type() != at::kDouble;
    if (fits && use_kernel(Kernel::kAdamW, t.parameter)) {
      for_kernel.push_back(t);
    } else {
      step_composed(t, options);
    }
  }
  step_by_kernel(for_kernel, options);
}

at::Tensor squares_of_pieces(const std::vector<at::Tensor>& tensors) {
  const TraceSpan span("dovetail::sum_of_squares");
  std::vector<at::Tensor> contiguous;
  for (const at::Tensor& t : tensors) contiguous.push_back(t.detach().contiguous());
  const auto is_cpu = [](const at::Tensor& t) { return t.is_cpu(); };
  if (!contiguous.empty() && std::none_of(contiguous.begin(), contiguous.end(), is_cpu))
    return squares_off_cpu(contiguous);
  const std::vector<Piece> pieces = cut(contiguous);
  at::Tensor sums = at::empty({static_cast<int64_t>(pieces.size())}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  parallel_pieces(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      const at::Tensor& t = contiguous[piece.tensor];
      if (use_kernel(Kernel::kAdamW, t))
        sum[i] = sum_of_squares_span(element(t, piece.begin), storage_of(t), piece.count);
    }
  });
  for (size_t i = 0; i < pieces.size(); ++i) {
    const at::Tensor& t = contiguous[pieces[i].tensor];
    if (!use_kernel(Kernel::kAdamW, t))
      sum[i] = t.flatten()
                   .narrow(0, pieces[i].begin, pieces[i].count)
                   .to(at::kDouble)
                   .square()
                   .sum()
                   .item<double>();
  }
  return sums;
}

double sum_of_squares(const std::vector<at::Tensor>& tensors) {
  const at::Tensor sums = squares_of_pieces(tensors).cpu();
  const auto* sum = sums.const_data_ptr<double>();
  return std::accumulate(sum, sum + sums.numel(), 0.0);
}

}  // namespace dovetail::ops
