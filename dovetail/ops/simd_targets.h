#pragma once

/// Choice of the compiled instruction set to which Highway dispatches. Numbers of instruction sets:
/// 0 baseline, 1 AVX2, 2 AVX-512 (SimdLevel in simd_level.h). This is a header of its own, since
/// *_simd.cpp files include neither ATen nor the precompiled header.
namespace dovetail::ops::simd {

/// Returns the number of the best instruction set that this processor supports.
int best_target();
/// Makes Highway dispatch to the best instruction set up to `highest`.
void restrict_targets(int highest);

}  // namespace dovetail::ops::simd
