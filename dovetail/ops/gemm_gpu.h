#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/gemm.h"

namespace dovetail {

/// Whether the kernel of many products takes these operands, c (m, n) row-major, a (m, k), b (k,
/// n), and then the product in `out`: a and b need one stride of 1, and in bfloat16 all three must
/// lie on 16 bytes (cuBLAS).
bool describe_product(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b,
                      bool accumulate, GroupedProduct& out);

/// Products of CUDA tensors of one dtype that go to cuBLAS in one call.
class GroupedProducts {
 public:
  /// Takes none without kernels for the GPU, cuBLAS 12.5 or `gemm` (`DOVETAIL_DISABLE`), and of
  /// less than two calls.
  explicit GroupedProducts(std::span<const GemmCall> calls);

  /// Whether `call`, of op(a) and op(b), is taken. Without c_rows; c gets its bias at once and
  /// row_sums are the caller's.
  bool take(const GemmCall& call, const at::Tensor& a, const at::Tensor& b);
  void run() const;

 private:
  const CudaKernels* kernels_ = nullptr;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<GroupedProduct> products_;
  std::vector<at::Tensor> operands_;  // read until `run` has queued the products
};

}  // namespace dovetail
