#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>

#include "dovetail/models/gpt.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/numerics/quantization.h"

namespace dovetail::train {

/// Returns the dtype of everything that a recipe does not quantize. `name` is its Precision::name.
/// The dtype is float32 for "fp32", float64 for "fp64" and bfloat16 for all others.
at::ScalarType compute_dtype(const std::string& name);

/// Moves `model` to `device` and sets the number formats in which it computes. Training,
/// evaluation, generation and export all call this function, so that they mean the same by a
/// recipe. `config` and `name` are as in the constructor of Quantization, which also lists the
/// errors.
Quantization set_precision(models::GPT& model, const PrecisionSection& config,
                           const std::string& name, c10::Device device = c10::kCPU);

/// Precision in which a trained model is used.
struct UsedPrecision {
  PrecisionSection config;
  std::string name;            ///< as Precision::name: "fp32", "bf16", "mxfp8", ...
  bool native_in_run = false;  ///< training multiplied natively; here products are emulated
};

/// Chooses the precision for --precision. `config` and `name` are the run's own.
///
/// - `asked` is empty or equal to `name`: the run's own precision, with its overrides.
/// - Otherwise: the recipe `asked` for the Linears of all blocks, without the run's overrides. It
///   is "float32" ("fp32"), "fp64", a built-in recipe or a recipe of the run's config.
///
/// Products are emulated, since a trained model is used on the CPU. Throws UserError that lists the
/// names if `asked` is none of them.
UsedPrecision choose_used_precision(const PrecisionSection& config, const std::string& name,
                                    const std::string& asked);

/// Precision of a model, for the output of commands.
struct PrecisionSummary {
  std::string name;     ///< as Precision::name
  int64_t linears = 0;  ///< Linears in the model, the head included
  int64_t quantized_linears = 0;
  bool native_in_run = false;  ///< as in UsedPrecision

  /// Returns "fp32", or "mxfp8 (12 of 13 Linears quantized)".
  std::string text() const;
  /// Returns {"recipe", "linears", "quantized_linears"}.
  nlohmann::ordered_json json() const;
};

/// Counts the Linears of `model`, which set_precision has prepared for `used`. A head that is tied
/// to the embedding counts as well.
PrecisionSummary summarize_precision(const models::GPT& model, const UsedPrecision& used);

}  // namespace dovetail::train
