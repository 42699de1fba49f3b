#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "dovetail/comm/buckets.h"
#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Sums the gradients of one optimizer step over micro-batches and over ranks. The sums over ranks
/// begin while backward is still running. Usage:
///
///     reducer.begin();
///     for (size_t k = 0; k < micro_batches.size(); ++k) {
///       if (k + 1 == micro_batches.size()) reducer.arm();
///       model.loss(micro_batches[k]).sum.backward();
///     }
///     reducer.finish();
///     ... reducer.gradient(i) ...
///
/// The reducer owns the gradients from `begin` to the next `begin`: read `gradient(i)`, never
/// `parameter.grad()`. Results are sums, never means: the caller divides once by the global token
/// count (AdamWOptions::grad_scale). A parameter without a gradient counts as zero. Sums are
/// float64 for float64 parameters, and float32 for float32, bfloat16 and float16 ones. So
/// micro-batches and ranks are never summed in a 16-bit type. The same world size gives the same
/// bits.
///
/// Parameters are put into buckets (comm/buckets.h) in reverse order of their list (backward's
/// order). The backward after `arm` is called the armed backward. During it, a bucket is
/// all-reduced as soon as all its gradients have been computed. Every rank starts buckets in the
/// same order, so a bucket that is ready early waits for its turn.
///
/// The reducer hooks into the parameters' gradient accumulators (autograd nodes). So make it after
/// the module has its final dtype and device. In the armed backward each parameter may get a
/// gradient only once (InternalError otherwise). A parameter shared by two nested backward calls is
/// not supported.
///
/// A share is the contiguous part of a bucket that belongs to one rank (comm/buckets.h). With
/// Options::scatter, a rank keeps only the sums of its share of each bucket (ZeRO-2, Rajbhandari et
/// al. 2020):
///
/// - Read `share(b)`, never `gradient(i)`.
/// - Every micro-batch needs its own `arm` and `finish`, and all ranks must have the same number of
///   micro-batches.
/// - A bucket's memory lives from its first gradient until its reduce-scatter.
/// - At most two reduce-scatters run at a time.
///
/// Nothing is copied if a parameter's group is this rank alone: `gradient(i)` is `.grad()` itself,
/// in the parameter's own dtype. The exception is 16-bit parameters with several micro-batches,
/// which are summed in float32 buffers.
///
/// Errors of a collective are thrown by `backward` or `finish` as CommError. The group and this
/// reducer are then unusable.
class GradientReducer {
 public:
  struct Options {
    int64_t bucket_bytes = 4 << 20;  ///< maximum bytes of gradient sums in a bucket
    /// For each parameter: the ranks over which its gradient is summed. Empty: the constructor's
    /// `group` for all.
    std::vector<std::shared_ptr<Group>> groups = {};
    /// True: keep only this rank's share of the sums. No effect in a group of one.
    bool scatter = false;
  };
  /// All ranks of a group pass the parameters of that group in the same order. Every parameter must
  /// be a leaf that requires grad.
  GradientReducer(const std::shared_ptr<Group>& group, std::vector<at::Tensor> parameters,
                  Options options);
  ~GradientReducer();
  GradientReducer(const GradientReducer&) = delete;
  GradientReducer& operator=(const GradientReducer&) = delete;

  /// Call before the first backward of a step. Discards the sums of the previous step, even if that
  /// step failed half-way.
  void begin();
  /// Call before the last backward of a step. The backward passes between `begin` and `arm` only
  /// accumulate. With `scatter` call it before every backward.
  void arm();
  /// Call after an armed backward. Reduces the remaining buckets and waits for the sums.
  void finish();

  /// Returns the summed gradient of parameters[i], in its shape, contiguous. Valid from `finish` to
  /// the next `begin`. The result is `.grad()` or a view into a bucket (float32 or float64). The
  /// caller may scale it in place.
  at::Tensor gradient(size_t i) const;
  /// Adds `gradient`, computed elsewhere for other samples of this step, to the sum of
  /// parameters[i]. It has the parameter's shape, dtype and device. The sum has the bits that it
  /// would have if a further backward of this step had returned `gradient`. Call it after the
  /// step's own backward passes; do not arm them. Only for parameters whose group is this rank
  /// alone (InternalError otherwise).
  void add(size_t i, const at::Tensor& gradient);
  /// Makes `gradient(i)` return sums[i] until the next `begin`. Use it for a step that is replayed
  /// from a recording: the replay writes its gradients into `sums`. Only for parameters whose group
  /// is this rank alone (InternalError otherwise).
  void replace(const std::vector<at::Tensor>& sums);
  /// Returns the summed gradients in this rank's share of bucket b, as a flat tensor. It holds the
  /// elements of Bucket::pieces(rank), piece after piece without gaps, then padding if there is
  /// any. The tensor is valid from `finish` to the next `begin`.
  at::Tensor share(size_t b) const;
  const std::vector<Bucket>& buckets() const;
  bool scatters() const;               ///< true with `scatter` and more than one rank
  size_t size() const;                 ///< number of parameters
  const Group& group(size_t i) const;  ///< ranks over which the gradient of parameters[i] is summed

  /// Returns the seconds for which this rank waited for the network in the last step. It is the
  /// time of communication that backward did not hide.
  double exposed_s() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::comm
