#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/ops/gemm_product.h"
#include "dovetail/ops/gemm_simd.h"

namespace dovetail::ops {

/// List of products for the CPU kernel. `run` computes them in one pass: threads go from one
/// product to the next without waiting for each other.
class CpuProducts {
 public:
  /// Returns true if the kernel can compute `p` in float32.
  static bool take_float32(const Product& p);
  /// Returns true if the kernel can compute `p` in bfloat16. Such a product gathers or scatters
  /// rows, and both operands can be read as pairs of neighbours along k. `multiplies_bfloat16_rows`
  /// must hold for the CPU.
  static bool take_bfloat16(const Product& p);

  /// Adds a product for which `take_float32` holds. The kernel writes its row_sums, too.
  void add_float32(const Product& p);
  /// Adds a product for which `take_bfloat16` holds. The caller must compute its row_sums.
  void add_bfloat16(const Product& p);
  /// Computes all products that were added.
  void run();

 private:
  /// Product as a problem for the kernel, with the tensors that it reads until `run` has returned.
  struct Prepared {
    GemmProblem problem;
    std::vector<at::Tensor> copies;
    /// Bfloat16 result, if the sum is too long for the kernel to write it. Undefined: the kernel
    /// writes the result itself.
    at::Tensor c;
    at::Tensor c_as_float32;  ///< sum by the kernel, to be rounded to `c` after it
  };
  std::vector<Prepared> prepared_;
};

}  // namespace dovetail::ops
