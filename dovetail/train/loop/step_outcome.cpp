#include "dovetail/train/loop/step_outcome.h"

#include <cmath>
#include <utility>
#include <vector>

#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/train/optimizer/gradient_clipping.h"

namespace dovetail::train {

void StepClock::start() {
  operation_once("dovetail::start_clock", {}, [this](const Operands&) {
    start_s_ = now_seconds();
    return std::vector<at::Tensor>();
  });
}

void StepClock::stop() {
  operation_once("dovetail::stop_clock", {}, [this](const Operands&) {
    seconds += now_seconds() - start_s_;
    return std::vector<at::Tensor>();
  });
}

void prepare_update(StepOutcome& outcome, const UpdateNumbers& numbers, Optimizer& optimizer) {
  outcome.skipped = !std::isfinite(outcome.loss) || !std::isfinite(outcome.grad_norm);
  if (outcome.skipped) return optimizer.set_update(std::nullopt);
  optimizer.set_update(Optimizer::Numbers{
      .lr = numbers.lr,
      .grad_scale = clip_factor(outcome.grad_norm, numbers.max_norm) / numbers.weight});
}

void judge(const at::Tensor& marker, std::vector<at::Tensor> squares,
           const std::vector<at::Tensor>& losses,
           std::function<void(double squares, std::span<const at::Tensor> losses)> decide) {
  const size_t count = squares.size();
  Operands of{.reads = std::move(squares), .changes = {marker}};
  of.reads.insert(of.reads.end(), losses.begin(), losses.end());
  operation("dovetail::judge", std::move(of),
            [count, decide = std::move(decide)](const Operands& given) {
              const UnrecordedAllocations of_the_group;
              const std::vector<at::Tensor> reads = read_together(given.reads);
              const std::span all(reads);
              decide(sum_of_pieces(all.first(count)), all.subspan(count));
              return std::vector<at::Tensor>();
            });
}

plan::StepTensors tensors_of_step(const torch::nn::Module& model, const Optimizer& optimizer,
                                  const at::Tensor& marker) {
  plan::StepTensors tensors;
  for (const auto& item : model.named_parameters())
    tensors.parameters.emplace_back(item.key(), item.value());
  tensors.state = optimizer.state();
  tensors.state.emplace_back("judged", marker);
  return tensors;
}

}  // namespace dovetail::train
