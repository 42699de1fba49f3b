#include "dovetail/train/recommender/loss.h"

#include <ATen/ATen.h>

namespace dovetail::train {

at::Tensor task_scales(const at::Tensor& labels, const std::vector<double>& weights,
                       comm::Group& group) {
  const int64_t tasks = labels.size(1);
  if (tasks == 1 && weights.empty()) return at::ones({1}, at::kFloat);
  const at::Tensor samples = at::full({1}, labels.size(0), at::kDouble);
  at::Tensor counts = at::cat({labels.isnan().logical_not().sum(0).to(at::kDouble), samples});
  group.all_reduce(counts);
  const at::Tensor there = counts.narrow(0, 0, tasks);
  at::Tensor scales = at::where(there.gt(0), counts[tasks] / there, 0.0);
  if (!weights.empty()) scales = scales * at::tensor(weights, at::kDouble);
  return scales.to(at::kFloat);
}

at::Tensor loss_sum(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scales) {
  const at::Tensor missing = labels.isnan();
  const at::Tensor weights = scales.expand_as(labels).masked_fill(missing, 0);
  return at::binary_cross_entropy_with_logits(logits, labels.masked_fill(missing, 0), weights, {},
                                              at::Reduction::Sum);
}

}  // namespace dovetail::train
