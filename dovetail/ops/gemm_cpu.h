#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/ops/gemm_product.h"
#include "dovetail/ops/gemm_simd.h"

namespace dovetail::ops {

/// Products for the CPU kernel. `run` computes them in one pass: threads go from one product to the
/// next without waiting for each other.
class CpuProducts {
 public:
  /// True if the kernel multiplies `p` in float32.
  static bool take_float32(const Product& p);
  /// True if the kernel multiplies `p` in bfloat16. Such a product gathers or scatters rows, and
  /// both operands can be read as pairs along k. The CPU must be one of `multiplies_bfloat16_rows`.
  static bool take_bfloat16(const Product& p);

  /// Adds a product for which `take_float32` holds; the kernel takes row_sums, too.
  void add_float32(const Product& p);
  /// Adds a product for which `take_bfloat16` holds; row_sums are left to the caller.
  void add_bfloat16(const Product& p);
  void run();

 private:
  /// A problem for the kernel, with the tensors that it reads until `run` has returned.
  struct Prepared {
    GemmProblem problem;
    std::vector<at::Tensor> copies;
    at::Tensor c;             ///< bfloat16 result of a long sum; undefined: the kernel writes c
    at::Tensor c_as_float32;  ///< float32 sum that is rounded to `c` after the kernel
  };
  std::vector<Prepared> prepared_;
};

}  // namespace dovetail::ops
