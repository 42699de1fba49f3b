#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace dovetail::ops {

/// Fused attention kernels of ATen for bfloat16 tensors on a GPU.
enum class GpuAttention { kFlash, kCudnn };

/// Makes attention on the GPUs of this process prefer `kernel`. Tensors that it cannot take use
/// another kernel. `device` is one of these GPUs.
void use_gpu_attention(GpuAttention kernel, at::Device device);

/// Shape of causal self-attention, in elements.
struct GpuAttentionShape {
  int64_t batch = 0, length = 0, heads = 0, kv_heads = 0, head_dim = 0;
};

/// Returns the milliseconds that forward and backward of attention in bfloat16 take on `device`
/// with `kernel`: the best of several rounds. Infinity: the GPU has no such kernel for this shape.
/// No other thread may compute attention meanwhile.
double measure_gpu_attention(GpuAttention kernel, const GpuAttentionShape& shape,
                             at::Device device);

}  // namespace dovetail::ops
