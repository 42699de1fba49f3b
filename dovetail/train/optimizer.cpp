#include "dovetail/train/optimizer.h"

#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"

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

void Optimizer::set_update(std::optional<Numbers> numbers) {
  now_.reset();
  if (!numbers) return;
  now_ = AdamWOptions{.lr = numbers->lr,
                      .beta1 = config_.betas[0],
                      .beta2 = config_.betas[1],
                      .eps = config_.eps,
                      .grad_scale = numbers->grad_scale,
                      .step = ++updates_};
}

void Optimizer::update(const GradientReducer& gradients) {
  for (const std::vector<size_t>& some : updated_together()) update_some(some, gradients);
}

std::vector<std::vector<size_t>> Optimizer::updated_together() const {
  int64_t elements = 0;
  for (const at::Tensor& parameter : parameters_) elements += parameter.numel();
  // Threads share the work best in one call. A plan has all that an operation reads and changes in memory at once, and
  // so gets an operation for each large parameter and for every few that are small beside the model.
  constexpr int64_t kParts = 32, kMost = 1 << 16;
  const int64_t most = operations_are_recorded() ? std::min(elements / kParts, kMost) : elements;
  std::vector<std::vector<size_t>> out;
  std::vector<size_t> small;
  int64_t together = 0;
  for (size_t i = 0; i < parameters_.size(); ++i) {
    const int64_t count = parameters_[i].numel();
    if (count >= most) {
      out.push_back({i});
      continue;
    }
    if (together + count > most) {
      out.push_back(std::exchange(small, {}));
      together = 0;
    }
    small.push_back(i);
    together += count;
  }
  if (!small.empty()) out.push_back(std::move(small));
  return out;
}

void Optimizer::update_some(const std::vector<size_t>& which, const GradientReducer& gradients) {
  Operands of;
  std::vector<double> decay;
  for (const size_t i : which) {
    const bool has_master = parameters_[i].scalar_type() != masters_[i].scalar_type();
    of.reads.push_back(gradients.gradient(i));
    for (const at::Tensor& tensor : {masters_[i], m_[i], v_[i], has_master ? parameters_[i].detach() : at::Tensor()})
      of.changes.push_back(tensor);
    // Matrices (Linear and embedding weights) decay; vectors (norms, biases) do not (Brown et al. 2020, and nanoGPT).
    decay.push_back(parameters_[i].dim() >= 2 ? config_.weight_decay : 0.0);
  }
  operation("dovetail::adamw", std::move(of), [this, decay](const Operands& given) {
    std::vector<AdamWTensor> tensors(decay.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      tensors[i] = {.parameter = given.changes[4 * i],
                    .gradient = given.reads[i],
                    .m = given.changes[4 * i + 1],
                    .v = given.changes[4 * i + 2],
                    .compute_copy = given.changes[4 * i + 3],
                    .weight_decay = decay[i]};
    if (now_) adamw_step(tensors, *now_);
    return std::vector<at::Tensor>();
  });
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (size_t i = 0; i < names_.size(); ++i) {
    if (!masters_[i].is_alias_of(parameters_[i])) out.emplace_back("master." + names_[i], masters_[i]);
    out.emplace_back("optimizer.m." + names_[i], m_[i]);
    out.emplace_back("optimizer.v." + names_[i], v_[i]);
  }
  return out;
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
  const auto check = [](bool fits, const std::string& fault) {
    if (!fits)
      throw UserError(fault,
                      "resume with the config that the checkpoint was written with (config.toml of its run), or "
                      "begin a new run with another run.name");
  };
  for (const auto& [name, value] : tensors)
    check(own.contains(name), fmt::format("the checkpoint holds a tensor \"{}\" that this model does not have", name));
  const bool no_moments = std::none_of(tensors.begin(), tensors.end(),
                                       [](const auto& item) { return item.first.starts_with("optimizer."); });
  const c10::NoGradGuard no_grad;
  for (const auto& [name, target] : own) {
    const auto found = tensors.find(name);
    if (found == tensors.end() && no_moments && name.starts_with("optimizer.")) continue;
    check(found != tensors.end(), fmt::format("the checkpoint lacks the tensor \"{}\" of this model", name));
    check(found->second.sizes() == target.sizes(),
          fmt::format("\"{}\" has shape {} in the checkpoint and {} in this model", name, found->second.sizes().vec(),
                      target.sizes().vec()));
    target.copy_(found->second);
  }
  for (size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].scalar_type() != masters_[i].scalar_type()) parameters_[i].detach().copy_(masters_[i]);
  }
  updates_ = updates;
}

}  // namespace dovetail
