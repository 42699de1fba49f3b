#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "dovetail/mx/recipe.h"

namespace dovetail::mx {

/// Cache of the column copy that this thread made most recently. A column copy holds a Linear's
/// input, quantized with blocks along its columns; the weight's gradient reads it. Linears that
/// share an input run one after another, so the next one can reuse the copy. The cache holds weak
/// references, so it keeps no tensor alive.
class LastInput {
 public:
  /// Returns codes and scales of the column copy of x, quantized by recipe `operand`. Both are
  /// undefined in these cases:
  /// - x is an inference tensor,
  /// - the cached copy was made from another tensor,
  /// - the cached copy was made by another recipe,
  /// - x was modified after the copy was made,
  /// - the copy has been freed.
  std::pair<at::Tensor, at::Tensor> find(const at::Tensor& x, const OperandRecipe& operand) const {
    if (x.is_inference() || operand != operand_ ||
        x.unsafeGetTensorImpl() != x_._unsafe_get_target())
      return {};
    if (x_.expired() || x._version() != version_) return {};
    const auto codes = codes_.lock(), scales = scales_.lock();
    if (!codes || !scales) return {};
    return {at::Tensor(codes), at::Tensor(scales)};
  }

  /// Replaces the cached copy. `codes` and `scales` are those that recipe `operand` makes from x.
  /// Does nothing if x is an inference tensor.
  void remember(const at::Tensor& x, const OperandRecipe& operand, const at::Tensor& codes,
                const at::Tensor& scales) {
    if (x.is_inference()) return;
    operand_ = operand;
    version_ = x._version();
    x_ = Weak(x.getIntrusivePtr());
    codes_ = Weak(codes.getIntrusivePtr());
    scales_ = Weak(scales.getIntrusivePtr());
  }

 private:
  using Weak = c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>;
  static Weak nothing() { return Weak(at::Tensor().getIntrusivePtr()); }

  OperandRecipe operand_;
  int64_t version_ = -1;
  Weak x_ = nothing(), codes_ = nothing(), scales_ = nothing();
};

/// Returns this thread's cache.
inline LastInput& last_input() {
  static thread_local LastInput last;
  return last;
}

}  // namespace dovetail::mx
