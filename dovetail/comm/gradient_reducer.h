#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/buckets.h"
#include "dovetail/comm/group.h"

namespace dovetail {

/// The gradient of one optimizer step: summed over its micro-batches and over the ranks, while
/// backward is still running.
///
///     reducer.begin();
///     for (size_t k = 0; k < micro_batches.size(); ++k) {
///       if (k + 1 == micro_batches.size()) reducer.arm();
///       model.loss(micro_batches[k]).sum.backward();
///     }
///     reducer.finish();
///     ... reducer.gradient(i) ...
///
/// It owns the gradients from `begin` to the next `begin`: read `gradient(i)`, never
/// `parameter.grad()`. Sums, never means: the caller divides by the global token count once
/// (AdamWOptions::grad_scale). A parameter that got no gradient counts as zero. Sums are float32
/// for float32, bfloat16 and float16 parameters and float64 for float64 ones, so neither
/// micro-batches nor ranks are added in a 16-bit type. The same world size gives the same bits.
///
/// Parameters are put into buckets (comm/buckets.h) in reverse order of their list (backward's
/// order). In the armed backward a bucket is all-reduced as soon as all its gradients are there.
/// Every rank starts buckets in the same order, so one that is ready early waits for its turn. The
/// hooks belong to the parameters' gradient accumulators: make the reducer after the module has its
/// final dtype and device. In the armed backward each parameter's gradient may arrive once
/// (InternalError otherwise): a parameter shared by two nested backward calls is not supported.
///
/// With `scatter` a rank keeps the sums of its share of each bucket alone (ZeRO-2, Rajbhandari et
/// al. 2020). Then every micro-batch has an `arm` and a `finish` of its own, as many on each rank.
/// A bucket's memory lasts from its first gradient until its reduce-scatter, and two of those run
/// at a time. Read `share(b)`, never `gradient(i)`.
///
/// Where a parameter's group is this rank alone nothing is copied: `gradient(i)` is `.grad()`
/// itself, in the parameter's own dtype; only 16-bit parameters with several micro-batches are
/// summed in float32 buffers.
///
/// Errors of a collective come out of `backward` or `finish` as CommError; the group and this
/// reducer are then unusable.
class GradientReducer {
 public:
  struct Options {
    int64_t bucket_bytes = 4 << 20;
    /// The ranks that hold each parameter, over which its gradient is summed; empty: `group` for
    /// all.
    std::vector<std::shared_ptr<Group>> groups = {};
    bool scatter =
        false;  ///< this rank keeps its share of the sums alone; no effect in a group of one
  };
  /// All ranks of a parameter's group pass the parameters of that group in the same order; all must
  /// require grad and be leaves.
  GradientReducer(const std::shared_ptr<Group>& group, std::vector<at::Tensor> parameters,
                  Options options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Before the first backward of a step: forgets the last step's sums (also those of a step that
  /// failed half-way).
  void begin();
  /// Before the last backward of a step; the backwards between `begin` and `arm` only accumulate.
  /// With `scatter` before every backward.
  void arm();
  /// After an armed backward: reduces what is left and waits for the sums.
  void finish();

  /// The sum for parameters[i], its shape, contiguous, valid from `finish` to the next `begin`: a
  /// view into a bucket (float32 or float64), or `.grad()`. May be scaled in place.
  at::Tensor gradient(size_t i) const;
  /// Makes `sums` what `gradient(i)` gives until the next `begin`: a step that was recorded wrote
  /// into them again. For parameters whose group is this rank alone.
  void replace(const std::vector<at::Tensor>& sums);
  /// Sums of this rank's share of bucket b, flat: its pieces back to back, then padding, if any.
  /// Valid as `gradient(i)`.
  at::Tensor share(size_t b) const;
  const std::vector<Bucket>& buckets() const;
  bool scatters() const;
  size_t size() const;
  const Group& group(size_t i) const;  ///< that of parameters[i]

  /// Seconds of the last step that this rank waited for the network: communication that backward
  /// did not hide.
  double exposed_s() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail
