#include "dovetail/ops/gemm_product.h"

#include <ATen/ATen.h>

#include "dovetail/base/error.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

void check_vector(const char* name, const at::Tensor& vector, int64_t size,
                  const at::Tensor& like) {
  user_check(!vector.defined() ||
                 (vector.dim() == 1 && vector.size(0) == size && vector.is_contiguous() &&
                  vector.scalar_type() == like.scalar_type() && vector.device() == like.device()),
             "gemm: {} must be [{}], contiguous, of the dtype and device of {}; it is {}", name,
             size, describe(like), describe(vector));
}

void check_row_indices(const char* name, const at::Tensor& rows, const at::Tensor& c) {
  user_check(!rows.defined() || (rows.dim() == 1 && rows.is_contiguous() &&
                                 rows.scalar_type() == at::kInt && rows.device() == c.device()),
             "gemm: {} must be one contiguous dimension of int32 on the device of c, which is {}; "
             "it is {}",
             name, describe(c), describe(rows));
}

void check_shapes(const Product& p) {
  const at::Tensor &a = p.a.stored, &b = p.b.stored, &c = p.c;
  const bool scatters = p.options.c_rows.defined();
  user_check(p.a.width() == p.b.height(),
             "gemm: the inner sizes differ: op(a) is {} x {} (a {}), op(b) is {} x {} (b {})",
             p.a.height(), p.a.width(), describe(a), p.b.height(), p.b.width(), describe(b));
  user_check(c.dim() == 2 && (scatters || c.size(0) == p.m()) && c.size(1) == p.n(),
             "gemm: c must be [{}, {}] for a {} and b {}, but is {}", p.m(), p.n(), describe(a),
             describe(b), describe(c));
  const bool widens = scatters && a.scalar_type() == at::kBFloat16 && c.scalar_type() == at::kFloat;
  user_check((a.scalar_type() == c.scalar_type() || widens) && a.scalar_type() == b.scalar_type() &&
                 a.device() == b.device() && a.device() == c.device(),
             "gemm: a, b and c must share dtype and device: a is {}, b is {}, c is {}", describe(a),
             describe(b), describe(c));
}

void check(const Product& p) {
  const GemmOptions& options = p.options;
  const bool scatters = options.c_rows.defined();
  check_row_indices("a_rows", options.a_rows, p.c);
  check_row_indices("b_rows", options.b_rows, p.c);
  check_row_indices("c_rows", options.c_rows, p.c);
  user_check(!scatters || (options.accumulate && options.c_rows.size(0) <= p.m()),
             "gemm: c_rows needs accumulate and at most as many rows of c as the product's {}",
             p.m());
  user_check(scatters || !options.c_weights.defined(), "gemm: c_weights needs c_rows");
  check_shapes(p);
  check_vector("bias", options.bias, p.n(), p.b.stored);
  check_vector("row_sums", options.row_sums, p.m(), p.a.stored);
  if (scatters) check_vector("c_weights", options.c_weights, options.c_rows.size(0), p.c);
  user_check(!options.accumulate || !options.bias.defined() || scatters,
             "gemm: bias and accumulate exclude each other without c_rows");
  user_check(p.n() <= 1 || p.c.stride(1) == 1,
             "gemm: the rows of c must be contiguous, its strides are [{}, {}]", p.c.stride(0),
             p.c.stride(1));
}

}  // namespace

at::Tensor Operand::matrix() const {
  const at::Tensor chosen = rows.defined() ? stored.index_select(0, rows) : stored;
  return transpose ? chosen.t() : chosen;
}

Product::Product(const GemmCall& call)
    : c(call.c),
      a{call.a, call.options.a_rows, call.options.transpose_a},
      b{call.b, call.options.b_rows, call.options.transpose_b},
      options(call.options) {
  user_check(call.a.dim() == 2 && call.b.dim() == 2,
             "gemm: a and b must be matrices, a is {}, b is {}", describe(call.a),
             describe(call.b));
  check(*this);
}

}  // namespace dovetail::ops
