#pragma once

/// Compiled instruction set that Highway dispatches to: 0 baseline, 1 AVX2, 2 AVX-512 (see
/// dispatch.h). A header of its own, since *_simd.cpp files include neither ATen nor the
/// precompiled header.
namespace dovetail::ops::simd {

int best_target();
void restrict_targets(int highest);

}  // namespace dovetail::ops::simd
