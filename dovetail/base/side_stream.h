#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <optional>

namespace dovetail {

/// Stream of a GPU beside the stream on which a step runs, for work of a later step. On the CPU,
/// work runs at once and nothing is waited for.
class SideStream {
 public:
  explicit SideStream(at::Device device);

  /// Runs `work` with this stream as the current one. Its work on the GPU does not wait for the
  /// current stream's.
  void run(const std::function<void()>& work) const;
  /// Makes the current stream wait for all work so far.
  void join() const;
  /// Lends a tensor that `run` has made to the current stream. Once the tensor is freed, its memory
  /// is reused only after the work that this stream has by then. Does nothing for tensors on the
  /// CPU.
  void lend(const at::Tensor& made) const;
  /// Makes the host wait for all work so far.
  void synchronize() const;

 private:
  std::optional<c10::Stream> stream_;  ///< unset on the CPU
};

}  // namespace dovetail
