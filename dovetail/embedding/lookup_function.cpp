#include "dovetail/embedding/lookup_function.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::embedding {

TrainedTables::TrainedTables(PackSpec spec, UpdateTime time, at::Device device)
    : tables_(std::move(spec), PackedTables::Initial::kDrawn, device),
      time_(time),
      anchor_(at::zeros({}).requires_grad_()) {}

void TrainedTables::apply() {
  user_check(time_ == UpdateTime::kOnApply,
             "embedding: apply was called, but every backward has been a step already; make the tables with "
             "update = \"apply\"");
  if (queue_.empty()) return;
  std::sort(queue_.begin(), queue_.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PooledGradient> micro_batches;
  for (auto& [number, part] : queue_) micro_batches.push_back(std::move(part));
  queue_.clear();
  update(tables_, micro_batches);
}

class LookupFunction : public torch::autograd::Function<LookupFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& anchor,
                            const c10::intrusive_ptr<TrainedTables>& tables, const Jagged& batch) {
    context->save_for_backward({batch.values, batch.offsets, batch.weights});
    context->saved_data["tables"] = at::IValue::make_capsule(tables);
    context->saved_data["samples"] = batch.samples;
    context->saved_data["features"] = batch.features;
    context->saved_data["number"] = tables->lookups_++;
    return pool(tables->tables(), batch);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    PooledGradient part = {.batch = {.values = saved[0],
                                     .offsets = saved[1],
                                     .weights = saved[2],
                                     .features = context->saved_data["features"].toInt(),
                                     .samples = context->saved_data["samples"].toInt()},
                           .gradient = gradients[0]};
    const auto capsule = context->saved_data["tables"].toCapsule();
    auto& tables = static_cast<TrainedTables&>(*capsule);
    if (tables.time_ == UpdateTime::kInBackward) {
      update(tables.tables_, {part});
    } else {
      tables.queue_.emplace_back(context->saved_data["number"].toInt(), std::move(part));
    }
    return {at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor lookup(const c10::intrusive_ptr<TrainedTables>& tables, const Jagged& batch) {
  user_check(!batch.weights.defined() || !batch.weights.requires_grad(),
             "embedding: the weights of ids get no gradient, but they require one; detach them");
  if (!at::GradMode::is_enabled()) return pool(tables->tables(), batch);
  return LookupFunction::apply(tables->anchor_, tables, batch);
}

}  // namespace dovetail::embedding
