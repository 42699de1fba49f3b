#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "dovetail/ops/activation_simd.h"

/// Operations on single rows of x (..., C), an activation or a norm, that precede a matrix product.
/// A consumer can have the result computed a few rows at a time, for example to quantize it. The
/// whole result then never exists in memory.
namespace dovetail::ops {

/// Matrix whose rows are computed at the time they are read.
struct MadeRows {
  std::vector<int64_t> sizes;  ///< rows, columns
  at::ScalarType dtype;        ///< float32 or bfloat16
  /// CPU only. Computes rows [row, row + rows) and writes them to `to`, contiguous. Any number of
  /// threads may call it at a time.
  std::function<void(int64_t row, int64_t rows, void* to)> make;

  /// Activation of x, a contiguous CUDA tensor.
  struct Activated {
    Activation activation;
    at::Tensor x;
    /// Returns the whole matrix.
    at::Tensor whole() const;
  };
  /// GPU only. The kernel that reads the rows computes them itself.
  std::optional<Activated> on_gpu;

  at::Device device() const { return on_gpu ? on_gpu->x.device() : at::Device(at::kCPU); }
};

/// Activation or norm, with its parameters.
class RowOperation {
 public:
  virtual ~RowOperation() = default;

  /// Returns the whole result for x, like the functions `swiglu`, `rms_norm` and so on of
  /// functions.h. Differentiable.
  virtual at::Tensor apply(const at::Tensor& x) const = 0;
  /// Trainable parameters, or their gradients; undefined where the operation has none.
  struct Parameters {
    at::Tensor weight, bias;
  };
  virtual Parameters parameters() const { return {}; }

  /// Returns true if `rows` and `gradients` can be called for x: their kernel supports x and is
  /// enabled. On a GPU, only activations have rows. A norm has one kernel with the residual sum
  /// before it.
  virtual bool has_rows(const at::Tensor& x) const = 0;
  /// Results of the forward pass that `gradients` reads in addition to x: float32 (N) for N rows.
  /// `rows` allocates them, and `MadeRows::make` fills them. Norms need 1 / std (`rstd`), and layer
  /// norm the mean, too. Activations need neither.
  struct Statistics {
    at::Tensor rstd, mean;
  };
  /// Returns the rows of the result for x, to be computed on demand, with the same bits as `apply`.
  /// x must be contiguous.
  virtual MadeRows rows(const at::Tensor& x, Statistics& statistics) const = 0;
  /// Gradients of x and of the parameters.
  struct Gradients {
    at::Tensor x;
    Parameters parameters;
  };
  /// Returns the gradients, given the gradient dy of the result. `statistics` must have been filled
  /// for all rows.
  virtual Gradients gradients(const at::Tensor& x, const Statistics& statistics,
                              const at::Tensor& dy) const = 0;
  /// Returns the same operation with other parameter tensors, for example if the parameters have
  /// moved to new tensors.
  virtual std::shared_ptr<const RowOperation> with(const Parameters& other) const = 0;
};

std::shared_ptr<const RowOperation> swiglu_operation();
std::shared_ptr<const RowOperation> gelu_operation();
std::shared_ptr<const RowOperation> squared_relu_operation();
std::shared_ptr<const RowOperation> rms_norm_operation(const at::Tensor& weight, double eps);
std::shared_ptr<const RowOperation> layer_norm_operation(const at::Tensor& weight,
                                                         const at::Tensor& bias, double eps);

}  // namespace dovetail::ops
