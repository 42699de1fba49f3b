#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <span>
#include <vector>

#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/gemm_product.h"

namespace dovetail::ops {

/// Returns the description of c (m, n) = [c +] a (m, k) @ b (k, n) for
/// `CudaKernels::grouped_products`; c is row-major. Returns nullopt if cuBLAS cannot compute it. a
/// and b need a stride of 1, and bfloat16 matrices must start at a multiple of 16 bytes.
std::optional<GroupedProduct> describe_product(const at::Tensor& c, const at::Tensor& a,
                                               const at::Tensor& b, bool accumulate);

/// List of products of CUDA tensors of one dtype, to be computed by one call of cuBLAS.
class GroupedProducts {
 public:
  /// `calls`: all calls of the group. If there are fewer than two, `describe` rejects every
  /// product. It also does so without our CUDA kernels, which need cuBLAS 12.5, and with
  /// DOVETAIL_DISABLE=gemm.
  explicit GroupedProducts(std::span<const GemmCall> calls);

  /// Returns `p` as cuBLAS takes it; `a` and `b` are op(a) and op(b). Returns nullopt for an empty
  /// product, `c_rows`, another dtype, or if `describe_product` does.
  std::optional<GroupedProduct> describe(const Product& p, const at::Tensor& a,
                                         const at::Tensor& b) const;
  /// Adds a product that `describe` returned, and copies its bias to c. The caller must compute its
  /// row_sums.
  void add(const Product& p, const GroupedProduct& grouped, const at::Tensor& a,
           const at::Tensor& b);
  /// Queues the call of cuBLAS for all products that were added.
  void run() const;

 private:
  const CudaKernels* kernels_ = nullptr;
  at::ScalarType dtype_ = at::kFloat;
  std::vector<GroupedProduct> products_;
  std::vector<at::Tensor> operands_;  ///< operands, kept until `run` has queued the products
};

}  // namespace dovetail::ops
