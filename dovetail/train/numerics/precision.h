#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/mx/recipe.h"

namespace dovetail::train {

/// Number format in which a run computes. A recipe is a value of precision.recipe
/// (PrecisionSection): a dtype, or formats to which operands of Linears are quantized. Recipes that
/// quantize compute everything else in bfloat16.
struct Precision {
  at::ScalarType compute = at::kFloat;  ///< dtype of everything that is not quantized
  std::string recipe;                   ///< value of precision.recipe: "auto" or a name
  /// Recipe in use, never "auto": "fp32", "bf16", "fp64", "mxfp8", ...
  std::string name;
  /// Reason for the choice of "auto", for the log and the report. Empty if there was no choice.
  std::string reason;
  /// Measured FLOP/s of matrix products on one rank: in dtype `compute`, or of FP8 codes if Linears
  /// multiply them. 0: not measured (fp64).
  double peak_flops = 0;
};

/// Minimum speed of matrix products in BF16, divided by their speed in FP32, for which "auto"
/// chooses BF16. Casts and FP32 masters do not get faster, so a smaller gain does not pay.
inline constexpr double kMinBFloat16Gain = 1.25;

/// Chooses the precision for `recipe`, a value of precision.recipe. Rank 0 chooses for all ranks;
/// all call this together.
///
/// - New run (`kept` is nullopt): "auto" chooses BF16 or FP32 by the measured speed of products.
/// - Resumed run: `kept` is the name of its precision. "auto" chooses `kept`. Any other recipe than
///   `kept` throws UserError.
Precision resolve_precision(const std::string& recipe, const std::optional<std::string>& kept,
                            c10::Device device, comm::Group& group);

/// Sets precision.peak_flops to the measured FLOP/s of FP8 products if Linears of `recipes`
/// multiply FP8 codes on `device`. Rank 0 measures for all ranks; all call this together.
void measure_float8_peak(Precision& precision, const std::vector<mx::LinearRecipe>& recipes,
                         c10::Device device, comm::Group& group);

}  // namespace dovetail::train
