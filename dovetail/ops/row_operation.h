#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

/// Operations on each row of x (..., C) alone, an activation or a norm, that stand in front of a
/// product. Who reads the result a few rows at a time, as a quantizer does, need not have all of it
/// in memory.
namespace dovetail {

/// A matrix whose rows are made when they are read.
struct MadeRows {
  std::vector<int64_t> sizes;  ///< rows, columns
  at::ScalarType dtype;        ///< float32 or bfloat16; on the CPU
  /// Rows [row, row + rows) to `to`, contiguous. Any thread, several at once.
  std::function<void(int64_t row, int64_t rows, void* to)> make;
};

class RowOperation {
 public:
  virtual ~RowOperation() = default;

  /// All of it: dovetail::swiglu, dovetail::rms_norm and so on. Differentiable.
  virtual at::Tensor apply(const at::Tensor& x) const = 0;
  /// What is trained beside x; undefined where there is nothing.
  struct Parameters {
    at::Tensor weight, bias;
  };
  virtual Parameters parameters() const { return {}; }

  /// Whether the kernel that `rows` and `gradients` need is there for x and switched on.
  virtual bool has_rows(const at::Tensor& x) const = 0;
  /// What `gradients` reads of the forward pass beside x, float32 (N) each, filled by
  /// `MadeRows::make`: nothing for an activation, 1 / std (and the mean) for a norm.
  struct Statistics {
    at::Tensor rstd, mean;
  };
  /// The bits of `apply`. x must be contiguous.
  virtual MadeRows rows(const at::Tensor& x, Statistics& statistics) const = 0;
  struct Gradients {
    at::Tensor x;
    Parameters parameters;
  };
  virtual Gradients gradients(const at::Tensor& x, const Statistics& statistics,
                              const at::Tensor& dy) const = 0;
  /// The same operation of other parameters: those of `parameters` where they lie now.
  virtual std::shared_ptr<const RowOperation> with(const Parameters& other) const = 0;
};

std::shared_ptr<const RowOperation> swiglu_operation();
std::shared_ptr<const RowOperation> gelu_operation();
std::shared_ptr<const RowOperation> squared_relu_operation();
std::shared_ptr<const RowOperation> rms_norm_operation(const at::Tensor& weight, double eps);
std::shared_ptr<const RowOperation> layer_norm_operation(const at::Tensor& weight,
                                                         const at::Tensor& bias, double eps);

}  // namespace dovetail
