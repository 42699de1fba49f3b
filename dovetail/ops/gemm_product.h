#pragma once

#include <ATen/core/Tensor.h>

#include "dovetail/ops/gemm.h"

/// One call of `gemm_into` or `gemm_group`, split into operands and checked. CPU and GPU code start
/// from it.
namespace dovetail::ops {

/// One factor of a product: a stored matrix or some of its rows, perhaps transposed.
struct Operand {
  at::Tensor stored;
  /// (chosen rows) int32: indices of the rows of `stored` to use. Undefined: all rows.
  at::Tensor rows;
  bool transpose = false;

  int64_t chosen_rows() const { return rows.defined() ? rows.size(0) : stored.size(0); }
  int64_t height() const { return transpose ? stored.size(1) : chosen_rows(); }
  int64_t width() const { return transpose ? chosen_rows() : stored.size(1); }
  /// Returns the factor, op(a) or op(b), as a matrix (height, width). Copies the chosen rows, if
  /// `rows` is defined.
  at::Tensor matrix() const;
};

/// Product c (m, n) = [c +] a (m, k) @ b (k, n), with shapes, dtypes and devices checked. The call
/// must outlive it.
struct Product {
  at::Tensor c;
  Operand a, b;
  const GemmOptions& options;

  /// Throws UserError that names both shapes if the call's shapes, dtypes or devices do not match.
  explicit Product(const GemmCall& call);

  int64_t m() const { return a.height(); }
  int64_t n() const { return b.width(); }
  int64_t k() const { return a.width(); }
  /// Returns true if m, n or k is 0.
  bool empty() const { return c.numel() == 0 || m() == 0 || k() == 0; }
  /// Returns true if the product uses `a_rows`, `b_rows` or `c_rows` of GemmOptions.
  bool indexes_rows() const {
    return a.rows.defined() || b.rows.defined() || options.c_rows.defined();
  }
};

}  // namespace dovetail::ops
