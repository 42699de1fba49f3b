#include "dovetail/train/numerics/model_precision.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/moe/layer.h"
#include "dovetail/mx/linear.h"

namespace dovetail::train {

at::ScalarType compute_dtype(const std::string& name) {
  if (name == "fp32") return at::kFloat;
  return name == "fp64" ? at::kDouble : at::kBFloat16;
}

Quantization set_precision(models::GPT& model, const PrecisionSection& config,
                           const std::string& name, c10::Device device) {
  model.set_compute_dtype(compute_dtype(name));
  model.to(device);
  Quantization quantization(model, config, name);
  for (const auto& [name_of_layer, layer] : moe::layers_of(model)) layer->share_expert_storage();
  return quantization;
}

UsedPrecision choose_used_precision(const PrecisionSection& config, const std::string& name,
                                    const std::string& asked) {
  UsedPrecision used = {.config = config, .name = asked == "float32" ? "fp32" : asked};
  if (used.name.empty()) used.name = name;
  if (used.name == name) {
    used.native_in_run = config.gemm == "native";
  } else {
    const std::vector<std::string> names = precision_names(config);
    if (std::ranges::find(names, used.name) == names.end())
      throw UserError(fmt::format("--precision {} is not a recipe", asked),
                      fmt::format("use one of float32, {}", fmt::join(names, ", ")));
    used.config.overrides.clear();
  }
  used.config.recipe = used.name;
  used.config.gemm = PrecisionSection().gemm;
  return used;
}

PrecisionSummary summarize_precision(const models::GPT& model, const UsedPrecision& used) {
  PrecisionSummary summary = {.name = used.name,
                              .linears = model.config().tied ? 1 : 0,
                              .native_in_run = used.native_in_run};
  for (const auto& module : model.modules(/*include_self=*/false)) {
    const auto* linear = module->as<mx::Linear>();
    if (linear == nullptr) continue;
    ++summary.linears;
    if (linear->quantized() != nullptr) ++summary.quantized_linears;
  }
  return summary;
}

std::string PrecisionSummary::text() const {
  if (quantized_linears == 0) return name;
  return fmt::format("{} ({} of {} Linears quantized{})", name, quantized_linears, linears,
                     native_in_run ? "; emulated here, native in training" : "");
}

nlohmann::ordered_json PrecisionSummary::json() const {
  return {{"recipe", name}, {"linears", linears}, {"quantized_linears", quantized_linears}};
}

}  // namespace dovetail::train
