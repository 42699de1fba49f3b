#pragma once

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/models/vision.h"
#include "dovetail/plan/record/batch.h"
#include "dovetail/plan/record/capture.h"
#include "dovetail/plan/run/device_model.h"

namespace dovetail::plan {

/// Training step: forward, backward and SGD with momentum, with one operation that updates all
/// parameters. ReLUs write a separate output tensor, like the operations of MO-SOS.
class VisionStep {
 public:
  VisionStep(const std::string& preset, int64_t batch, int64_t size, int64_t base_width = 64)
      : model_(models::make_vision_model({.preset = preset,
                                          .height = size,
                                          .width = size,
                                          .base_width = base_width,
                                          .in_place = false})),
        images_(at::zeros({batch, 3, size, size})),
        targets_(preset == "unet" ? at::zeros({batch, size, size}, at::kLong)
                                  : at::zeros({batch}, at::kLong)) {
    const at::NoGradGuard no_grad;  // zeros suffice: the step is only recorded
    for (const auto& item : model_->named_parameters()) {
      names_.push_back(item.key());
      parameters_.push_back(item.value().zero_());
      momenta_.push_back(at::zeros_like(item.value()));
    }
  }

  std::vector<at::Tensor> operator()() {
    for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
    const models::LossSum loss = model_->loss(images_, targets_);
    const at::Tensor mean = loss.sum / static_cast<double>(loss.weight);
    torch::autograd::backward({mean}, {});
    const at::NoGradGuard no_grad;
    std::vector<at::Tensor> gradients;
    for (const at::Tensor& parameter : parameters_) gradients.push_back(parameter.grad());
    at::_foreach_mul_(momenta_, 0.9);
    at::_foreach_add_(momenta_, gradients);
    at::_foreach_add_(parameters_, momenta_, -1e-3);
    return {mean.detach()};
  }

  CapturedStep record() {
    StepTensors tensors{.inputs = {{"images", images_}, {"targets", targets_}}};
    for (size_t p = 0; p < names_.size(); ++p) {
      tensors.parameters.emplace_back(names_[p], parameters_[p]);
      tensors.state.emplace_back(names_[p] + ".momentum", momenta_[p]);
    }
    return record_step([this] { return (*this)(); }, tensors);
  }

 private:
  std::shared_ptr<models::VisionModel> model_;
  at::Tensor images_, targets_;
  std::vector<std::string> names_;
  std::vector<at::Tensor> parameters_, momenta_;
};

/// Returns the step of a model at a batch that is too large for this machine. It is extrapolated
/// from two recordings at small batches.
inline CapturedStep vision_step_at(const std::string& preset, int64_t batch, int64_t size) {
  const CapturedStep one = VisionStep(preset, 1, size).record(),
                     two = VisionStep(preset, 2, size).record();
  return at_batch({one, 1}, {two, 2}, batch);
}

}  // namespace dovetail::plan
