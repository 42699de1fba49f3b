#pragma once

/// Mask of the instruction sets (targets) that Highway must not compile, one bit each. Every
/// *_simd.cpp includes this file before Highway. On x86, AVX-512 (bit 8), AVX2 (bit 9) and the
/// baseline SSE2 remain. Our kernels have blockings for these. The baseline is bit 14, if this
/// release of Highway has it. SVE is disabled, because its vectors have no size at compile time.
/// Targets are given by bit, because the names of other targets differ between the releases of
/// Debian 12 and Ubuntu 24.04.
#define HWY_DISABLED_TARGETS 0xF003CFFLL
