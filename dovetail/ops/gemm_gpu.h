#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/gemm_product.h"

namespace dovetail::ops {

/// Describes c (m, n) = [c +] a (m, k) @ b (k, n) to cuBLAS's grouped product; c is row-major.
/// Returns nullopt if cuBLAS cannot take it: a and b need a stride of 1, and bfloat16 matrices must
/// start at a multiple of 16 bytes.
std::optional<GroupedProduct> describe_product(const at::Tensor& c, const at::Tensor& a,
                                               const at::Tensor& b, bool accumulate);

/// Products of CUDA tensors of one dtype that run as one call of cuBLAS.
class GroupedProducts {
 public:
  /// `calls`: all calls of the group. Nothing is taken if there are fewer than two, without CUDA
  /// kernels or cuBLAS 12.5, or with DOVETAIL_DISABLE=gemm.
  explicit GroupedProducts(std::span<const GemmCall> calls);

  /// Returns `p` as cuBLAS takes it; nullopt if cuBLAS does not: an empty product, c_rows, another
  /// dtype, or as `describe_product` says. `a` and `b`: op(a) and op(b).
  std::optional<GroupedProduct> describe(const Product& p, const at::Tensor& a,
                                         const at::Tensor& b) const;
  /// Adds a product that `describe` returned, and copies its bias to c. Leaves row_sums to the
  /// caller.
  void add(const Product& p, const GroupedProduct& grouped, const at::Tensor& a,
           const at::Tensor& b);
  void run() const;

 private:
  const CudaKernels* kernels_ = nullptr;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<GroupedProduct> products_;
  std::vector<at::Tensor> operands_;  ///< kept until `run` has queued the products
};

}  // namespace dovetail::ops
