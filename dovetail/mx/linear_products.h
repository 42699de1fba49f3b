#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dovetail/mx/quantized_linear.h"

namespace dovetail::mx {

/// Returns x (..., n) as a matrix.
inline at::Tensor as_rows(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

/// Returns nothing for an undefined tensor.
inline std::optional<at::Tensor> optional(const at::Tensor& x) {
  return x.defined() ? std::optional(x) : std::nullopt;
}

/// Products of a QuantizedLinear, without autograd. Each method is the body of an operation
/// (base/operation.h). Its tensors are the operation's reads, undefined if there is none.
struct LinearProducts : torch::CustomClassHolder {
  LinearProducts(std::shared_ptr<QuantizedLinear> layer, QuantizedLinear::Prologue prologue)
      : layer(std::move(layer)), prologue(std::move(prologue)) {}

  /// Computes forward. `inputs`: x (by rows: before the prologue), weight, bias, the prologue's
  /// weight and bias. Returns y, the kept codes and scales if `request` asks for them, by rows the
  /// prologue's statistics, and QuantizedLinear::Codes::most.
  std::vector<at::Tensor> multiply(const std::vector<at::Tensor>& inputs,
                                   const QuantizedLinear::Call& call, const OperandRequest& request,
                                   bool by_rows) const;

  /// Computes gradients. `inputs`: dy, weight, the kept codes and scales or x, the prologue's
  /// statistics, weight and bias, and QuantizedLinear::Codes::most of x. By rows, x is the
  /// prologue's input, otherwise its result. Returns the gradients of x, weight, bias and, by rows,
  /// of the prologue's parameters. Without rows, the gradient of x is the gradient of the
  /// prologue's result.
  std::vector<at::Tensor> differentiate(const std::vector<at::Tensor>& inputs,
                                        const QuantizedLinear::Call& call,
                                        const QuantizedLinear::WantedGradients& wanted,
                                        bool by_rows) const;

  std::shared_ptr<QuantizedLinear> layer;
  QuantizedLinear::Prologue prologue;  ///< may be null

 private:
  OperandCopies gradient_copies(const at::Tensor& dy, OperandRequest request,
                                const QuantizedLinear::Call& call) const;
  /// Makes the column copy for the weight's gradient from `inputs` of `differentiate`. `before`:
  /// the prologue, by rows.
  OperandCopies input_columns(const std::vector<at::Tensor>& inputs,
                              const ops::RowOperation* before, at::ScalarType dtype) const;
};

}  // namespace dovetail::mx
