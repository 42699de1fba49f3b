#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::train {

/// Returns a factor for each task's cross-entropy, (tasks) float32. Task k predicts label k. Its
/// factor is weight_k * samples / labels_k, or 0 if no row has its label. `samples` is the number
/// of rows and `labels_k` the number of rows with label k. Both count the whole batch over all
/// ranks, before it is cut into micro-batches. So loss_sum / samples is the sum over tasks of
/// weight_k times the mean loss of the rows with label k. All ranks call this together.
///
/// labels: (B, tasks) float32, NaN where a label is missing. weights: recommender.task_weights.
at::Tensor task_scales(const at::Tensor& labels, const std::vector<double>& weights,
                       comm::Group& group);

/// Returns the sum over samples and tasks of cross-entropy (nats) times `scales`, the result of
/// task_scales. The shape of logits and labels is (B, tasks).
at::Tensor loss_sum(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scales);

}  // namespace dovetail::train
