#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/gemm_product.h"

namespace dovetail::ops {

/// Returns the description of c (m, n) = [c +] a (m, k) @ b (k, n) for
/// `CudaKernels::grouped_products`; c is row-major. Returns nullopt if cuBLAS cannot compute the
/// product. It needs a and b with a stride of 1. Bfloat16 matrices must start at a multiple of 16
/// bytes.
std::optional<GroupedProduct> describe_product(const at::Tensor& c, const at::Tensor& a,
                                               const at::Tensor& b, bool accumulate);

/// List of products of CUDA tensors of one dtype, to be computed by one call of cuBLAS.
class GroupedProducts {
 public:
  /// `calls`: all calls of the group. `describe` rejects every product in these cases:
  /// - there are fewer than two calls,
  /// - the build lacks our CUDA kernels, which need cuBLAS 12.5,
  /// - the kernel `gemm` is disabled (DOVETAIL_DISABLE=gemm).
  explicit GroupedProducts(std::span<const GemmCall> calls);

  /// Returns the description of `p` for cuBLAS; `a` and `b` are op(a) and op(b). Returns nullopt in
  /// the cases of the constructor, and in these cases:
  /// - `p` is empty,
  /// - `p` has `c_rows`,
  /// - `p` has another dtype than the group,
  /// - `describe_product` returns nullopt.
  std::optional<GroupedProduct> describe(const Product& p, const at::Tensor& a,
                                         const at::Tensor& b) const;
  /// Adds a product that `describe` accepted. Copies its bias to c, so that cuBLAS adds the product
  /// to it. The caller must compute its row_sums.
  void add(const Product& p, const GroupedProduct& grouped, const at::Tensor& a,
           const at::Tensor& b);
  /// Queues the call of cuBLAS for all products that were added.
  void run() const;

 private:
  const CudaKernels* kernels_ = nullptr;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<GroupedProduct> products_;
  std::vector<at::Tensor> operands_;  ///< operands, held until `run` has queued the products
};

}  // namespace dovetail::ops
