#include "dovetail/train/optimizer.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/ops/adamw.h"

namespace dovetail {

Optimizer::Optimizer(const torch::nn::Module& model, const OptimizerSection& config) : config_(config) {
  for (const auto& item : model.named_parameters()) {
    DOVETAIL_CHECK(item.value().scalar_type() == at::kFloat, "{} is not float32", item.key());
    names_.push_back(item.key());
    // Shares the values: set_compute_dtype gives the parameter new storage where it changes the dtype, and the float32
    // values stay here.
    masters_.push_back(item.value().detach());
  }
}

void Optimizer::bind(const torch::nn::Module& model) {
  parameters_.clear();
  const auto named = model.named_parameters();
  DOVETAIL_CHECK(named.size() == names_.size(), "{} parameters became {}", names_.size(), named.size());
  for (size_t i = 0; i < names_.size(); ++i) {
    const at::Tensor& parameter = named[i].value();
    DOVETAIL_CHECK(named[i].key() == names_[i], "{} became {}", names_[i], named[i].key());
    parameters_.push_back(parameter);
    const bool own_master = parameter.scalar_type() == at::kFloat || parameter.scalar_type() == at::kDouble;
    if (own_master) masters_[i] = parameter.detach();
    masters_[i] = masters_[i].to(parameter.device());
    m_.push_back(at::zeros_like(masters_[i]));
    v_.push_back(at::zeros_like(masters_[i]));
  }
}

void Optimizer::step(const GradientReducer& gradients, double lr, double grad_scale) {
  std::vector<AdamWTensor> tensors(parameters_.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const bool has_master = parameters_[i].scalar_type() != masters_[i].scalar_type();
    // Matrices (Linear and embedding weights) decay; vectors (norms, biases) do not (Brown et al. 2020, and nanoGPT).
    tensors[i] = {.parameter = masters_[i],
                  .gradient = gradients.gradient(i),
                  .m = m_[i],
                  .v = v_[i],
                  .compute_copy = has_master ? parameters_[i].detach() : at::Tensor(),
                  .weight_decay = parameters_[i].dim() >= 2 ? config_.weight_decay : 0.0};
  }
  adamw_step(tensors, {.lr = lr,
                       .beta1 = config_.betas[0],
                       .beta2 = config_.betas[1],
                       .eps = config_.eps,
                       .grad_scale = grad_scale,
                       .step = updates_ + 1});
  ++updates_;
}

std::map<std::string, at::Tensor> Optimizer::tensors() const {
  std::map<std::string, at::Tensor> result;
  for (size_t i = 0; i < names_.size(); ++i) {
    result["model." + names_[i]] = masters_[i];
    result["optimizer.m." + names_[i]] = m_[i];
    result["optimizer.v." + names_[i]] = v_[i];
  }
  return result;
}

void Optimizer::load(const std::map<std::string, at::Tensor>& tensors, int64_t updates) {
  const std::map<std::string, at::Tensor> own = this->tensors();
  for (const auto& [name, value] : tensors) {
    user_check(own.contains(name), "the checkpoint holds a tensor \"{}\" that this model does not have", name);
  }
  const bool no_moments = std::none_of(tensors.begin(), tensors.end(),
                                       [](const auto& item) { return item.first.starts_with("optimizer."); });
  const c10::NoGradGuard no_grad;
  for (const auto& [name, target] : own) {
    const auto found = tensors.find(name);
    if (found == tensors.end() && no_moments && name.starts_with("optimizer.")) continue;
    user_check(found != tensors.end(), "the checkpoint lacks the tensor \"{}\" of this model", name);
    user_check(found->second.sizes() == target.sizes(), "\"{}\" has shape {} in the checkpoint and {} in this model",
               name, found->second.sizes().vec(), target.sizes().vec());
    target.copy_(found->second);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].scalar_type() != masters_[i].scalar_type()) parameters_[i].detach().copy_(masters_[i]);
  }
  updates_ = updates;
}

}  // namespace dovetail
