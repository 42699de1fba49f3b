#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// What a task's cross-entropy is multiplied by in a sum over all samples, so that the sum over the
/// batch divided by its samples is the sum over tasks of weight times the mean over the rows that
/// have the task's label: for task k, weight_k * samples / labels_k of the whole batch, over all
/// ranks and before it is cut into micro-batches; 0 without a label. All ranks together.
///
/// labels (B, tasks) float32, NaN where there is none; weights as recommender.task_weights. Returns
/// (tasks) float32.
at::Tensor task_scales(const at::Tensor& labels, const std::vector<double>& weights, Group& group);

/// Sum over samples and tasks of the cross-entropy in nats times the task's scale. logits and
/// labels (B, tasks).
at::Tensor loss_sum(const at::Tensor& logits, const at::Tensor& labels, const at::Tensor& scales);

}  // namespace dovetail
