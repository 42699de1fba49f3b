#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

#include "dovetail/ops/gemm_product.h"
#include "dovetail/ops/gemm_simd.h"

namespace dovetail::ops {

/// List of products for the CPU kernel. `run` computes them in one pass: threads go from one
/// product to the next without waiting for each other.
class CpuProducts {
 public:
  /// Returns true if the kernel can compute `p` in float32. It widens bfloat16 operands if
  /// `widens_bfloat16()` is true.
  static bool takes_float32(const Product& p);
  /// Adds a product for which `takes_float32` is true. The kernel also writes its row_sums.
  void add_float32(const Product& p);

  /// Operands as pairs of bfloat16 neighbours along k.
  struct Pairs {
    MatrixView a, b;
  };
  /// Returns the operands of `p` if the kernel can compute `p` in bfloat16, else nullopt. This
  /// requires that `p` gathers or scatters rows, and that both operands can be read as pairs. The
  /// CPU must fulfil `multiplies_bfloat16_rows`.
  static std::optional<Pairs> pairs_of(const Product& p);
  /// Adds a product for which `pairs_of` returned `operands`. The caller must compute its row_sums.
  void add_bfloat16(const Product& p, const Pairs& operands);
  /// Computes all products that were added.
  void run();

 private:
  /// Product as a problem for the kernel, with the tensors that the kernel reads until `run`
  /// returns.
  struct Prepared {
    GemmProblem problem;
    std::vector<at::Tensor> copies;
    /// Bfloat16 results that the kernel writes as float32. `run` rounds each `from` to its `to`.
    struct Rounded {
      at::Tensor from, to;
    };
    std::vector<Rounded> rounded;

    /// Returns x in float32 for the kernel to read. A copy is kept in `copies`.
    at::Tensor widened(const at::Tensor& x);
    /// Returns a float32 tensor for the kernel to write or to add to, in place of `x`.
    at::Tensor as_float32(const at::Tensor& x, bool accumulate);
  };
  std::vector<Prepared> prepared_;
};

}  // namespace dovetail::ops
