#include "dovetail/train/resolve/resolve_attention.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/ops/gpu_attention.h"

namespace dovetail::train {
namespace {

using ops::GpuAttention;

AttentionKernel measure(const ResolvedRun& run) {
  const models::ModelConfig& model = run.config.model;
  const ops::GpuAttentionShape shape = {.batch = run.micro_batch,
                                        .length = model.context,
                                        .heads = model.heads,
                                        .kv_heads = model.kv_heads,
                                        .head_dim = model.head_dim};
  const double flash_ms = ops::measure_gpu_attention(GpuAttention::kFlash, shape, run.device),
               cudnn_ms = ops::measure_gpu_attention(GpuAttention::kCudnn, shape, run.device);
  if (std::isinf(flash_ms) && std::isinf(cudnn_ms)) return {};
  const bool cudnn = cudnn_ms < kMostOfFlash * flash_ms;
  return {
      .name = cudnn ? "cudnn" : "flash",
      .reason = std::isinf(flash_ms) || std::isinf(cudnn_ms)
                    ? "the other kernel does not take its heads"
                    : fmt::format("flash {:.3f} ms, cuDNN {:.3f} ms a block", flash_ms, cudnn_ms)};
}

AttentionKernel choose(const ResolvedRun& run, const std::optional<std::string>& kept) {
  const std::string& wanted = run.config.run.attention;
  const bool choice = run.device.is_cuda() && run.precision.compute == at::kBFloat16;
  if (!choice) {
    if (wanted == "auto") return {};
    throw UserError(fmt::format("run.attention = \"{}\" names a kernel of a GPU for bfloat16, but "
                                "this run computes in {} on {}",
                                wanted, run.precision.name, run.device.str()),
                    "leave run.attention out");
  }
  if (wanted == "auto" && kept) return {.name = *kept, .reason = ""};
  if (wanted == "auto") return measure(run);
  return {.name = wanted, .reason = ""};
}

}  // namespace

AttentionKernel resolve_attention(const ResolvedRun& run, const std::optional<std::string>& kept,
                                  comm::Group& group) {
  AttentionKernel chosen;
  comm::on_rank_zero(group, "choosing the attention kernel", [&] { chosen = choose(run, kept); });
  const nlohmann::json shared =
      comm::broadcast_json(group, {{"name", chosen.name}, {"reason", chosen.reason}});
  chosen = {.name = shared["name"], .reason = shared["reason"]};
  if (!chosen.name.empty())
    ops::use_gpu_attention(chosen.name == "cudnn" ? GpuAttention::kCudnn : GpuAttention::kFlash,
                           run.device);
  return chosen;
}

}  // namespace dovetail::train
