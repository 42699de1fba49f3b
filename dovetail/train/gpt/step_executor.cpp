#include "dovetail/train/gpt/step_executor.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"

namespace dovetail::train {

StepExecutor::StepExecutor(std::shared_ptr<models::GPT> replica, std::vector<at::Tensor> originals,
                           std::vector<at::Tensor> buffers, Options options)
    : replica_(std::move(replica)),
      originals_(std::move(originals)),
      parameters_(replica_->parameters()),
      original_buffers_(std::move(buffers)),
      buffers_(replica_->buffers()),
      layers_(moe::layers_of(*replica_)),
      options_(options) {
  DOVETAIL_CHECK(parameters_.size() == originals_.size(),
                 "{} parameters of a replica, {} of the owner", parameters_.size(),
                 originals_.size());
  DOVETAIL_CHECK(buffers_.size() == original_buffers_.size(),
                 "{} buffers of a replica, {} of the owner", buffers_.size(),
                 original_buffers_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& mine = parameters_[i];
    DOVETAIL_CHECK(mine.is_cpu() && mine.sizes() == originals_[i].sizes() &&
                       mine.scalar_type() == originals_[i].scalar_type(),
                   "parameter {} of a replica differs from the owner's", i);
    // Copies between pinned memory and a GPU are ten times as fast.
    if (owner_is_gpu()) mine.set_data(mine.detach().pin_memory());
  }
  const int threads = at::get_num_threads();
  thread_ = std::thread([this] { run(); });
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return started_; });
  at::set_num_threads(threads);  // also the number of threads that start later
}

StepExecutor::~StepExecutor() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void StepExecutor::start(Work work) {
  {
    const std::lock_guard lock(mutex_);
    DOVETAIL_CHECK(!work_, "start() twice without wait()");
    work_ = std::move(work);
    failure_ = nullptr;
  }
  changed_.notify_all();
}

const StepExecutor::Result& StepExecutor::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !work_; });
  if (failure_) std::rethrow_exception(failure_);
  return result_;
}

void StepExecutor::run() {
  at::get_num_threads();  // torch sets a thread's number at first use
  at::set_num_threads(static_cast<int>(options_.threads));
  std::unique_lock lock(mutex_);
  started_ = true;
  changed_.notify_all();
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || work_; });
    if (!work_) return;
    lock.unlock();
    std::exception_ptr failure;
    try {
      compute(*work_);
    } catch (...) {
      failure = std::current_exception();
    }
    lock.lock();
    failure_ = failure;
    work_.reset();
    changed_.notify_all();
  }
}

void StepExecutor::compute(const Work& work) {
  const double begin_s = now_seconds();
  if (work.copy_weights) copy_weights(work);
  const double copied_s = now_seconds();
  const int64_t samples = work.tokens.size(0);
  DOVETAIL_CHECK(samples % options_.micro_batch == 0, "{} samples in micro-batches of {}", samples,
                 options_.micro_batch);
  result_.micro_batches.resize(static_cast<size_t>(samples / options_.micro_batch));
  for (const auto& [name, layer] : layers_) layer->reset_load();
  moe::Pass pass = work.pass;
  for (size_t k = 0; k < result_.micro_batches.size(); ++k) {
    const at::Tensor tokens =
        work.tokens.narrow(0, static_cast<int64_t>(k) * options_.micro_batch, options_.micro_batch);
    models::LossSum loss;
    {
      const TraceSpan span("forward");
      loss = replica_->loss(tokens, pass);
    }
    const TraceSpan span("backward");
    loss.trained().backward();
    result_.micro_batches[k].loss = loss.sum.detach().to(at::kDouble);
    if (loss.router.defined())
      result_.micro_batches[k].router = loss.router.detach().to(at::kDouble);
    pass.first_token += tokens.size(0) * (tokens.size(1) - 1);
    keep_gradients(result_.micro_batches[k]);
  }
  result_.loads.clear();
  for (const auto& [name, layer] : layers_) result_.loads.push_back(layer->load());
  result_.copy_s = work.copy_weights ? copied_s - begin_s : 0;
  result_.compute_s = now_seconds() - copied_s;
}

void StepExecutor::copy_weights(const Work& work) {
  const TraceSpan span("copy weights");
  const at::NoGradGuard no_grad;
  const auto copy = [&] {
    for (size_t i = 0; i < parameters_.size(); ++i)
      parameters_[i].copy_(originals_[i], /*non_blocking=*/owner_is_gpu());
    for (size_t i = 0; i < buffers_.size(); ++i) buffers_[i].copy_(original_buffers_[i]);
  };
  if (!owner_is_gpu()) return copy();
  // A stream of its own: the GPU computes meanwhile.
  const c10::impl::VirtualGuardImpl gpu(c10::DeviceType::CUDA);
  const c10::Stream stream = gpu.getStreamFromGlobalPool(originals_.front().device());
  const c10::StreamGuard guard(stream);
  if (work.weights_ready) work.weights_ready->block(stream);
  copy();
  stream.synchronize();
}

/// Moves the gradients of the replica's parameters to `kept`.
void StepExecutor::keep_gradients(MicroBatch& kept) {
  const at::NoGradGuard no_grad;
  kept.gradients.resize(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& gradient = parameters_[i].mutable_grad();
    at::Tensor& place = kept.gradients[i];
    if (!owner_is_gpu() || !gradient.defined()) {
      place = std::exchange(gradient, {});
      continue;
    }
    if (!place.defined())
      place = at::empty(gradient.sizes(), gradient.options().pinned_memory(true));
    place.copy_(gradient);
    gradient.reset();
  }
}

}  // namespace dovetail::train
