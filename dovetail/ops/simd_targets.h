#pragma once

/// Which of the compiled instruction sets Highway dispatches to; 0 baseline, 1 AVX2, 2 AVX-512 (see
/// dispatch.h). Kept apart from dispatch.h: the *_simd.cpp files see neither ATen nor the
/// precompiled header.
namespace dovetail::simd {

int best_target();
void restrict_targets(int highest);

}  // namespace dovetail::simd
