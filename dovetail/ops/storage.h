#pragma once

namespace dovetail::ops {

/// Number format of a kernel's tensors in memory. Arithmetic is float32 for both formats. This is a
/// header of its own, since the *_simd.cpp files do not include ATen.
enum class Storage { kFloat32, kBFloat16 };

}  // namespace dovetail::ops
