#include "dovetail/ops/gemm_cpu.h"

#include <ATen/ATen.h>

#include <optional>
#include <utility>

#include "dovetail/base/machine.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

const int32_t* row_indices(const at::Tensor& rows) {
  return rows.defined() ? rows.const_data_ptr<int32_t>() : nullptr;
}

/// View of float32 or bfloat16 elements from `x` on.
MatrixView view_at(const at::Tensor& x, int64_t row_stride, int64_t column_stride,
                   const int32_t* row_index = nullptr) {
  MatrixView out{.data = nullptr,
                 .row_stride = row_stride,
                 .column_stride = column_stride,
                 .row_index = row_index};
  if (x.scalar_type() == at::kBFloat16) {
    out.bfloat16 = static_cast<const uint16_t*>(x.const_data_ptr());
  } else {
    out.data = x.const_data_ptr<float>();
  }
  return out;
}

/// View of `x`, which must have a stride of 1. A matrix without one is copied first; the copy is
/// kept in `copies`.
MatrixView float32_view(const at::Tensor& x, std::vector<at::Tensor>& copies) {
  const bool rows_contiguous = x.stride(1) == 1 || x.size(1) == 1;
  const bool columns_contiguous = x.stride(0) == 1 || x.size(0) == 1;
  const at::Tensor readable = rows_contiguous || columns_contiguous ? x : x.contiguous();
  copies.push_back(readable);
  // A dimension of one element may have any stride. The kernel expects a stride of 1 in it.
  const bool by_rows = readable.stride(1) == 1 || readable.size(1) == 1;
  return by_rows ? view_at(readable, readable.stride(0), 1)
                 : view_at(readable, 1, readable.stride(1));
}

/// View of an operand. Chosen rows are read in place if rows are contiguous and have more than one
/// element; otherwise they are copied.
MatrixView float32_view(const Operand& x, std::vector<at::Tensor>& copies) {
  const int64_t stride = x.stored.stride(0);
  const bool in_place = x.rows.defined() && x.stored.stride(1) == 1 && stride > 1;
  if (!in_place) return float32_view(x.matrix(), copies);
  return view_at(x.stored, x.transpose ? 1 : stride, x.transpose ? stride : 1, row_indices(x.rows));
}

enum class Side { kLeft, kRight };

/// Bfloat16 operand as pairs along k. Returns nullopt if the pairs are neither two stored rows nor
/// two neighbours of a row that is aligned to 4 bytes.
std::optional<MatrixView> pair_view(const Operand& x, Side side) {
  const at::Tensor& stored = x.stored;
  const int64_t stride = stored.stride(0);
  const bool left = side == Side::kLeft;
  if (stored.stride(1) != 1 || stride <= 1) return std::nullopt;
  const bool k_runs_over_rows = x.transpose == left;
  if (k_runs_over_rows) {
    return MatrixView{.data = nullptr,
                      .row_stride = left ? 1 : stride,
                      .column_stride = left ? stride : 1,
                      .row_index = row_indices(x.rows),
                      .bfloat16 = static_cast<const uint16_t*>(stored.const_data_ptr()),
                      .bfloat16_terms = x.chosen_rows()};
  }
  const auto* data = static_cast<const float*>(stored.const_data_ptr());
  const bool aligned = stored.size(1) % 2 == 0 && stride % 2 == 0 && stride > 2 &&
                       reinterpret_cast<uintptr_t>(data) % sizeof(float) == 0;
  if (!aligned) return std::nullopt;
  return MatrixView{.data = data,
                    .row_stride = left ? stride / 2 : 1,
                    .column_stride = left ? 1 : stride / 2,
                    .row_index = row_indices(x.rows)};
}

bool runs_kernel(const Product& p) {
  return !p.empty() && p.c.is_cpu() && use_kernel(Kernel::kGemm, p.c);
}

/// True if bfloat16 products are added to rows of a float32 c.
bool adds_to_float32(const Product& p) {
  return p.options.c_rows.defined() && p.c.scalar_type() == at::kFloat;
}

int64_t rows_of_result(const Product& p) {
  return p.options.c_rows.defined() ? p.options.c_rows.size(0) : p.m();
}

}  // namespace

bool multiplies_bfloat16_rows() {
  static const bool amx = machine().simd == "AMX BF16";  // oneDNN uses AMX, and is faster
  return simd_level() == SimdLevel::kAvx512 && !amx && kernel_enabled(Kernel::kGemm) &&
         multiplies_pairs();
}

bool widens_bfloat16() {
  return kernel_enabled(Kernel::kGemm) &&
         !(has_bfloat16_instructions() && simd_level() == SimdLevel::kAvx512);
}

bool CpuProducts::takes_float32(const Product& p) {
  const at::ScalarType dtype = p.a.stored.scalar_type();
  if (!runs_kernel(p) || (dtype != at::kFloat && dtype != at::kBFloat16)) return false;
  // Products of a group may add to the same rows of c. Their sums need one c in float32.
  const bool shares_bfloat16 = p.options.c_rows.defined() && p.c.scalar_type() == at::kBFloat16;
  return dtype == at::kFloat || (widens_bfloat16() && !shares_bfloat16);
}

std::optional<CpuProducts::Pairs> CpuProducts::pairs_of(const Product& p) {
  if (!runs_kernel(p) || p.a.stored.scalar_type() != at::kBFloat16 || !p.indexes_rows() ||
      !multiplies_bfloat16_rows() || (p.options.accumulate && !adds_to_float32(p)))
    return std::nullopt;
  const auto a = pair_view(p.a, Side::kLeft), b = pair_view(p.b, Side::kRight);
  return a && b ? std::optional(Pairs{*a, *b}) : std::nullopt;
}

void CpuProducts::add_float32(const Product& p) {
  const GemmOptions& options = p.options;
  Prepared out;
  const bool rounds = p.c.scalar_type() == at::kBFloat16 && !options.accumulate &&
                      rounds_in_one_panel(p.n(), p.k()) && p.c.stride(1) == 1;
  const at::Tensor c = rounds ? p.c : out.as_float32(p.c, options.accumulate),
                   bias = out.widened(options.bias), weights = out.widened(options.c_weights),
                   sums = out.as_float32(options.row_sums, false);
  out.problem = {.m = rows_of_result(p),
                 .n = p.n(),
                 .k = p.k(),
                 .a = float32_view(p.a, out.copies),
                 .b = float32_view(p.b, out.copies),
                 .c = rounds ? nullptr : c.mutable_data_ptr<float>(),
                 .ldc = c.stride(0),
                 .bias = data_or_null(bias),
                 .accumulate = options.accumulate,
                 .row_sums = sums.defined() ? sums.mutable_data_ptr<float>() : nullptr,
                 .c_row = row_indices(options.c_rows),
                 .c_weight = data_or_null(weights),
                 .c_bfloat16 = rounds ? static_cast<uint16_t*>(c.mutable_data_ptr()) : nullptr};
  prepared_.push_back(std::move(out));
}

at::Tensor CpuProducts::Prepared::widened(const at::Tensor& x) {
  if (!x.defined() || x.scalar_type() == at::kFloat) return x;
  return copies.emplace_back(x.to(at::kFloat));
}

at::Tensor CpuProducts::Prepared::as_float32(const at::Tensor& x, bool accumulate) {
  if (!x.defined() || x.scalar_type() == at::kFloat) return x;
  at::Tensor from = accumulate ? x.to(at::kFloat).contiguous()
                               : at::empty(x.sizes(), x.options().dtype(at::kFloat));
  rounded.push_back({from, x});
  return from;
}

void CpuProducts::add_bfloat16(const Product& p, const Pairs& operands) {
  const GemmOptions& options = p.options;
  const int64_t pairs = (p.k() + 1) / 2;
  Prepared out;
  const at::Tensor bias = out.widened(options.bias);
  at::Tensor c = p.c;
  if (!adds_to_float32(p) && !rounds_in_one_panel(p.n(), pairs)) c = out.as_float32(p.c, false);
  const bool rounds = c.scalar_type() == at::kBFloat16;
  out.problem = {.m = rows_of_result(p),
                 .n = p.n(),
                 .k = pairs,
                 .a = operands.a,
                 .b = operands.b,
                 .c = rounds ? nullptr : c.mutable_data_ptr<float>(),
                 .ldc = c.stride(0),
                 .bias = data_or_null(bias),
                 .accumulate = options.accumulate,
                 .row_sums = nullptr,
                 .c_row = row_indices(options.c_rows),
                 .c_weight = data_or_null(options.c_weights),
                 .pairs = true,
                 .c_bfloat16 = rounds ? static_cast<uint16_t*>(c.mutable_data_ptr()) : nullptr};
  prepared_.push_back(std::move(out));
}

void CpuProducts::run() {
  if (prepared_.empty()) return;
  std::vector<GemmProblem> problems;
  problems.reserve(prepared_.size());
  for (const Prepared& one : prepared_) problems.push_back(one.problem);
  gemm_float32(problems);
  for (const Prepared& one : prepared_)
    for (const auto& [from, to] : one.rounded) to.copy_(from);
}

}  // namespace dovetail::ops
