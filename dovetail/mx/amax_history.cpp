#include "dovetail/mx/amax_history.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include "dovetail/mx/codec.h"

namespace dovetail::mx {

AmaxHistories::AmaxHistories(const std::vector<Format>& formats, int64_t length,
                             at::Device device) {
  std::vector<float> largest;
  largest.reserve(formats.size());
  for (const Format format : formats) largest.push_back(largest_number(format));
  largest_ = at::tensor(largest).to(device);
  histories_ = at::zeros({largest_.size(0), length}, largest_.options());
  seen_ = at::zeros(largest_.sizes(), largest_.options().dtype(at::kInt));
  amax_ = largest_.clone();
}

DelayedScaling AmaxHistories::of(int64_t operand) const {
  return {histories_[operand], amax_[operand], seen_[operand]};
}

void AmaxHistories::begin_step() { seen_.zero_(); }

void AmaxHistories::end_step(const std::function<at::Tensor(const at::Tensor&)>& over_ranks) {
  const at::NoGradGuard no_grad;
  const at::Tensor finite = at::where(seen_ < static_cast<int64_t>(bits::kInfinity), seen_, 0);
  const at::Tensor newest = over_ranks(finite.view(at::kFloat));
  histories_.copy_(at::roll(histories_, 1, 1));
  histories_.select(1, 0).copy_(newest);
  restored();
}

void AmaxHistories::restored() {
  const at::Tensor most = histories_.amax(1);
  amax_.copy_(at::where(most > 0, most, largest_));
}

}  // namespace dovetail::mx
