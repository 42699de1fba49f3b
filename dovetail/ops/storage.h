#pragma once

namespace dovetail {

/// How a kernel's tensors lie in memory; arithmetic is float32 in both. For the *_simd.cpp files,
/// which do not see ATen.
enum class Storage { kFloat32, kBFloat16 };

}  // namespace dovetail
