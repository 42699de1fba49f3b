#include "dovetail/ops/gpu_attention.h"

#include <ATen/ATen.h>
#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "dovetail/base/gpu.h"
#include "dovetail/base/trace.h"

namespace dovetail::ops {
namespace {

/// Allows only one kernel while it lives.
class OnlyKernel {
 public:
  explicit OnlyKernel(GpuAttention kernel)
      : before_{.flash = at::globalContext().userEnabledFlashSDP(),
                .cudnn = at::globalContext().userEnabledCuDNNSDP(),
                .efficient = at::globalContext().userEnabledMemEfficientSDP(),
                .math = at::globalContext().userEnabledMathSDP()} {
    set({.flash = kernel == GpuAttention::kFlash, .cudnn = kernel == GpuAttention::kCudnn});
  }
  ~OnlyKernel() { set(before_); }
  OnlyKernel(const OnlyKernel&) = delete;

 private:
  struct Allowed {
    bool flash = false, cudnn = false, efficient = false, math = false;
  };
  static void set(const Allowed& allowed) {
    at::Context& context = at::globalContext();
    context.setSDPUseFlash(allowed.flash);
    context.setSDPUseCuDNN(allowed.cudnn);
    context.setSDPUseMemEfficient(allowed.efficient);
    context.setSDPUseMath(allowed.math);
  }

  Allowed before_;
};

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return at::scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2),
                                          {}, /*dropout_p=*/0.0, /*is_causal=*/true, {},
                                          /*enable_gqa=*/q.size(2) != k.size(2));
}

}  // namespace

void use_gpu_attention(GpuAttention kernel, at::Device device) {
  // ATen sets its own order at its first choice. So it must choose once before.
  const at::Tensor x = at::zeros({1, 1, 8, 64}, at::TensorOptions(at::kBFloat16).device(device));
  at::_fused_sdp_choice(x, x, x);
  using at::SDPBackend;
  std::vector<SDPBackend> order = {SDPBackend::flash_attention, SDPBackend::efficient_attention,
                                   SDPBackend::cudnn_attention, SDPBackend::math,
                                   SDPBackend::overrideable};
  if (kernel == GpuAttention::kCudnn)
    std::rotate(order.begin(), order.begin() + 2, order.begin() + 3);
  std::vector<int64_t> numbers;
  numbers.reserve(order.size());
  for (const SDPBackend backend : order) numbers.push_back(static_cast<int64_t>(backend));
  at::globalContext().setSDPPriorityOrder(numbers);
}

double measure_gpu_attention(GpuAttention kernel, const GpuAttentionShape& shape,
                             at::Device device) {
  constexpr int kRounds = 8;  // the first one chooses algorithms and allocates
  const at::AutoGradMode with_grad(true);
  const OnlyKernel only(kernel);
  const auto heads = [&](int64_t count) {
    return at::zeros({shape.batch, shape.length, count, shape.head_dim},
                     at::TensorOptions(at::kBFloat16).device(device))
        .requires_grad_();
  };
  double best_ms = std::numeric_limits<double>::infinity();
  try {
    for (int round = 0; round < kRounds; ++round) {
      const at::Tensor q = heads(shape.heads), k = heads(shape.kv_heads), v = heads(shape.kv_heads);
      synchronize_gpu();
      const double begin_s = now_seconds();
      const at::Tensor y = attend(q, k, v);
      y.backward(at::zeros_like(y));
      synchronize_gpu();
      if (round > 0) best_ms = std::min(best_ms, 1e3 * (now_seconds() - begin_s));
    }
  } catch (const c10::OutOfMemoryError&) {
    throw;
  } catch (const c10::Error&) {  // no kernel takes these tensors
    return std::numeric_limits<double>::infinity();
  }
  return best_ms;
}

}  // namespace dovetail::ops
