#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "dovetail/models/gpt.h"
#include "dovetail/moe/layer.h"
#include "dovetail/moe/pass.h"

namespace dovetail::train {

/// Group of CPU threads that computes micro-batches of a step with a replica of the model. It works
/// beside the owner of the weights, another group of threads or a GPU. Usage:
///
///     executor.start({.tokens = tokens, ...});
///     ... the owner computes its own micro-batches ...
///     for (const auto& one : executor.wait().micro_batches) add(one.gradients);
///
/// Gradients of each micro-batch stay separate. So the owner can add them in the order of the
/// micro-batches. With an owner on a GPU, weights and gradients are in pinned memory.
class StepExecutor {
 public:
  struct Options {
    int64_t threads = 1;      ///< CPU threads of the group
    int64_t micro_batch = 1;  ///< samples per micro-batch
  };
  /// `replica`: model on the CPU with the config and the compute dtype of the owner's; its weights
  /// and buffers are overwritten. `originals`: the owner's parameters, in the order of
  /// replica->parameters(). `buffers`: the owner's buffers, such as the biases of routers.
  StepExecutor(std::shared_ptr<models::GPT> replica, std::vector<at::Tensor> originals,
               std::vector<at::Tensor> buffers, Options options);
  /// Waits for the running work.
  ~StepExecutor();
  StepExecutor(const StepExecutor&) = delete;
  StepExecutor& operator=(const StepExecutor&) = delete;

  /// Work of one step.
  struct Work {
    at::Tensor tokens;  ///< (samples, T + 1) int64 on the CPU; whole micro-batches
    moe::Pass pass;     ///< forward pass of the first micro-batch
    /// True: copy the weights of the owner first. They must not change until `wait` has returned.
    bool copy_weights = true;
    /// Event after which the owner's weights are complete. Only with an owner on a GPU.
    std::optional<c10::Event> weights_ready = {};
  };
  /// Begins to work. Call `wait` before the next `start`.
  void start(Work work);

  /// Result of one micro-batch.
  struct MicroBatch {
    /// Gradients of the sum of the losses, one per parameter, in the parameter's dtype. Undefined
    /// for a parameter without a gradient.
    std::vector<at::Tensor> gradients;
    /// Float64 scalars. `loss`: sum of the targets' losses in nats. `router`: losses of the
    /// routers; undefined without experts.
    at::Tensor loss, router;
  };
  struct Result {
    std::vector<MicroBatch> micro_batches;
    std::vector<moe::Layer::Load> loads;  ///< each layer with experts, in the model's order
    /// Seconds of copying the weights (0: not copied), and of forward and backward.
    double copy_s = 0, compute_s = 0;
  };
  /// Waits until the work is done. Rethrows its exception. The result is valid until the next
  /// `start`. Without a `start` before, returns an empty result.
  const Result& wait();

 private:
  void run();
  void compute(const Work& work);
  void copy_weights(const Work& work);
  void keep_gradients(MicroBatch& kept);
  bool owner_is_gpu() const { return originals_.front().is_cuda(); }

  std::shared_ptr<models::GPT> replica_;
  std::vector<at::Tensor> originals_, parameters_, original_buffers_, buffers_;
  moe::Layers layers_;  ///< layers of the replica that have experts
  Options options_;
  Result result_;

  std::mutex mutex_;  ///< protects the members below
  std::condition_variable changed_;
  std::optional<Work> work_;  ///< from `start` until the work is done
  std::exception_ptr failure_;
  bool started_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace dovetail::train
