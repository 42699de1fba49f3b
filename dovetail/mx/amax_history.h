#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

#include "dovetail/mx/format.h"

namespace dovetail::mx {

/// Delayed scaling of one operand: its scale follows from magnitudes in earlier steps. Tensors are
/// on the device of the operand. They are views into an `AmaxHistories`. So a kernel in a CUDA
/// graph can read them in each step. Source: delayed scaling of TransformerEngine.
struct DelayedScaling {
  /// Largest magnitudes in earlier steps, (history) float32, newest first. An entry 0 means that
  /// the magnitude is unknown. Checkpoints store this tensor.
  at::Tensor history;
  /// Magnitude from which the scale follows, float32 scalar: the maximum of `history`. If all
  /// entries are 0, it is the largest number of the format, so that the scale is 1.
  at::Tensor amax;
  /// Largest magnitude in this step, int32 scalar with the bits of a float32. Quantizers raise it.
  /// They are the bits of infinity or NaN if an element was not finite.
  at::Tensor seen;
};

/// Histories of several operands with the same length. One step costs a fixed number of operations,
/// and no wait for a GPU.
class AmaxHistories {
 public:
  /// `formats` has one entry for each operand. `length` is the number of steps that are remembered.
  AmaxHistories(const std::vector<Format>& formats, int64_t length, at::Device device);

  DelayedScaling of(int64_t operand) const;
  /// Begins a step: nothing is seen yet.
  void begin_step();
  /// Ends a step: what was seen becomes the newest entry of each history. An operand that was not
  /// finite in this step gets an entry 0. `over_ranks` receives the magnitudes of all operands,
  /// float32, and returns their maxima over all ranks.
  void end_step(const std::function<at::Tensor(const at::Tensor&)>& over_ranks);
  /// Computes the magnitudes for the scales after histories were restored.
  void restored();

 private:
  at::Tensor histories_;    ///< (operands, length) float32
  at::Tensor amax_, seen_;  ///< (operands), float32 and int32
  at::Tensor largest_;      ///< (operands) float32, largest number of each format
};

}  // namespace dovetail::mx
