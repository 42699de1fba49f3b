#include "dovetail/train/vision/validation.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"

namespace dovetail::train {
namespace {

/// Number of pixels (or images) of each class, (classes) int64: right ones, in targets, and in
/// predictions.
struct ClassCounts {
  at::Tensor right, targets, predicted;

  explicit ClassCounts(int64_t classes)
      : right(at::zeros({classes}, at::kLong)),
        targets(at::zeros_like(right)),
        predicted(at::zeros_like(right)) {}

  void add(const at::Tensor& wanted, const at::Tensor& found) {
    const auto count = [&](at::Tensor& to, const at::Tensor& values) {
      to += at::bincount(values.reshape({-1}), {}, to.numel()).cpu();
    };
    count(right, wanted.masked_select(wanted.eq(found)));
    count(targets, wanted);
    count(predicted, found);
  }

  /// Adds up the numbers of all ranks.
  void add_up(comm::Group& group) {
    for (at::Tensor* each : {&right, &targets, &predicted}) {
      const at::Tensor own = each->to(at::kDouble);
      const auto* begin = own.const_data_ptr<double>();
      *each = at::tensor(sum_over_ranks(group, {begin, begin + own.numel()})).to(at::kLong);
    }
  }

  /// Returns the mean over classes of TP / (TP + FP + FN). Classes without a pixel are left out.
  double mean_iou() const {
    const at::Tensor both = right.to(at::kDouble),
                     either = (targets + predicted).to(at::kDouble) - both;
    const at::Tensor there = either > 0;
    return both.masked_select(there).div(either.masked_select(there)).mean().item<double>();
  }
};

}  // namespace

Validation validate(models::VisionModel& model, int64_t samples, int64_t batch,
                    const std::function<data::ImageBatch(int64_t begin, int64_t end)>& read,
                    comm::Group& group) {
  const at::NoGradGuard no_grad;
  const TraceSpan span("validate");
  const c10::Device device = model.parameters().front().device();
  ClassCounts counts(model.config().classes);
  at::Tensor sums = at::zeros({2}, at::kDouble);  // losses, targets
  const int64_t rank = group.rank(), ranks = group.size();
  const int64_t begin = samples * rank / ranks, end = samples * (rank + 1) / ranks;
  model.eval();
  for (int64_t first = begin; first < end; first += batch) {
    const data::ImageBatch now = read(first, std::min(first + batch, end));
    const at::Tensor targets = now.targets.to(device),
                     logits = model.forward(now.images.to(device)).to(at::kFloat);
    sums[0] += at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum).cpu();
    sums[1] += static_cast<double>(targets.numel());
    counts.add(targets, logits.argmax(1));
  }
  model.train();
  counts.add_up(group);
  const std::vector<double> all =
      sum_over_ranks(group, {sums[0].item<double>(), sums[1].item<double>()});
  Validation found{.loss = all[0] / all[1], .tokens = samples};
  ImageScores& scores = found.images.emplace();
  scores.accuracy = static_cast<double>(counts.right.sum().item<int64_t>()) / all[1];
  if (model.config().preset == "unet") scores.mean_iou = counts.mean_iou();
  return found;
}

}  // namespace dovetail::train
