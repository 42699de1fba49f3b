#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "dovetail/mx/linear.h"

namespace dovetail::mx {

/// Neighbouring rows of a matrix in groups: group g has the rows [offsets[g], offsets[g + 1]).
struct RowGroups {
  std::vector<int64_t> offsets;  ///< one more than there are groups; the first is 0
  /// In a recorded step (base/operation.h) whose groups change with each replay: the offsets as
  /// int64 on the CPU. Only operations read them, and `offsets` is empty.
  at::Tensor recorded = {};
};

/// Quantized Linears of equal sizes, one for each group of rows, as one operation. The experts of
/// a mixture are such Linears.
///
/// - The rows of all groups are quantized in one pass, and so are all weights. A block never spans
///   two groups. So each Linear has the operands that it would have alone.
/// - The products of all groups are one `ops::gemm_group`.
/// - Each Linear counts its own statistics and draws its own random words.
///
/// Operands are emulated (operand.h). Results equal QuantizedLinear's bit for bit if products
/// are emulated in float32. In bfloat16 only the order of the FP32 sums differs. Backward
/// keeps x, and quantizes its columns then.
class LinearGroup {
 public:
  /// `linears` must have no `obstacle`, and must outlive this object.
  explicit LinearGroup(std::span<const Linear* const> linears);

  /// Returns the reason why `linears` cannot be a group for an input of this dtype and device.
  /// Empty if they can. Reasons:
  /// - different recipes or sizes,
  /// - native products, and FP8 products on a GPU,
  /// - one scale for a whole tensor,
  /// - bfloat16 products that only oneDNN can compute on this CPU.
  static std::string obstacle(std::span<const Linear* const> linears, at::ScalarType dtype,
                              at::Device device);

  /// Returns y (R, out), in which rows of group g are linears[g] of x's rows. x: (R, in), sorted by
  /// group; before `activation` it may have another width. `activation`, if not null, is an
  /// operation without parameters that is applied to x first.
  ///
  /// Recorded groups require a microscaling recipe: FP8 has tensors of each group, whose sizes
  /// change (UserError).
  at::Tensor forward(const at::Tensor& x, const RowGroups& groups,
                     const QuantizedLinear::Prologue& activation = nullptr) const;

 private:
  std::vector<const Linear*> linears_;
};

}  // namespace dovetail::mx
