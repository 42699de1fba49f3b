#include "dovetail/train/numerics/precision.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/comm/collective.h"
#include "dovetail/mx/float8_product.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/train/numerics/model_precision.h"

namespace dovetail::train {
namespace {

Precision probe(c10::Device device) {
  const double fp32 = measure_gemm_rate(GemmType::kFloat32, device);
  const GemmType type = ops::bfloat16_gemm_type(device);
  if (type == GemmType::kFloat32)
    return {.name = "fp32", .reason = "bf16 products run in fp32 here", .peak_flops = fp32};
  const double bf16 = measure_gemm_rate(type, device);
  const bool faster = bf16 >= kMinBFloat16Gain * fp32;
  return {.name = faster ? "bf16" : "fp32",
          .reason = fmt::format("bf16 probed: {:.2f}x the speed of fp32 here", bf16 / fp32),
          .peak_flops = faster ? bf16 : fp32};
}

Precision decide(const std::string& recipe, const std::optional<std::string>& kept,
                 c10::Device device) {
  if (kept && recipe != "auto" && recipe != *kept) {
    throw UserError(
        fmt::format("precision.recipe = \"{}\", but this run was trained in {} so far", recipe,
                    *kept),
        fmt::format("use \"{}\" or \"auto\" to resume it, or another run.name to begin a new run",
                    *kept));
  }
  if (recipe == "auto" && !kept) return probe(device);
  Precision precision = {.name = kept.value_or(recipe),
                         .reason = kept && recipe == "auto" ? "as the run began" : ""};
  const at::ScalarType compute = compute_dtype(precision.name);
  if (compute == at::kFloat) precision.peak_flops = measure_gemm_rate(GemmType::kFloat32, device);
  if (compute == at::kBFloat16)
    precision.peak_flops = measure_gemm_rate(ops::bfloat16_gemm_type(device), device);
  return precision;
}

}  // namespace

Precision resolve_precision(const std::string& recipe, const std::optional<std::string>& kept,
                            c10::Device device, comm::Group& group) {
  Precision precision;
  comm::on_rank_zero(group, "choosing the precision",
                     [&] { precision = decide(recipe, kept, device); });
  const nlohmann::json shared = comm::broadcast_json(group, {{"name", precision.name},
                                                             {"reason", precision.reason},
                                                             {"peak_flops", precision.peak_flops}});
  precision = {.recipe = recipe,
               .name = shared["name"],
               .reason = shared["reason"],
               .peak_flops = shared["peak_flops"]};
  precision.compute = compute_dtype(precision.name);
  return precision;
}

void measure_float8_peak(Precision& precision, const std::vector<mx::LinearRecipe>& recipes,
                         c10::Device device, comm::Group& group) {
  if (!device.is_cuda()) return;
  double peak = precision.peak_flops;
  comm::on_rank_zero(group, "measuring FP8 products", [&] {
    const auto multiplies = [&](const auto& recipe) {
      return mx::has_float8_products(recipe, device);
    };
    if (std::ranges::any_of(recipes, multiplies))
      peak = measure_gemm_rate(GemmType::kFloat8, device);
  });
  precision.peak_flops = comm::broadcast_json(group, {{"peak", peak}})["peak"];
}

}  // namespace dovetail::train
