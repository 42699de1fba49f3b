#include "dovetail/ops/simd_config.h"
#include "dovetail/ops/simd_targets.h"
#include "hwy/highway.h"

namespace dovetail::ops::simd {

int best_target() {
  // Queried once: a later answer would be the restricted target.
  static const int best = [] {
    const int64_t targets = hwy::SupportedTargets();
    return targets & HWY_AVX3 ? 2 : targets & HWY_AVX2 ? 1 : 0;
  }();
  return best;
}

void restrict_targets(int highest) {
  best_target();
  int64_t targets = HWY_STATIC_TARGET;
  if (highest >= 1) targets |= HWY_AVX2;
  if (highest >= 2) targets |= HWY_AVX3;
  hwy::SetSupportedTargetsForTest(targets);
  hwy::GetChosenTarget().Update(targets);
}

}  // namespace dovetail::ops::simd
