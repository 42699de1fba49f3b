#pragma once

/// Instruction sets that Highway compiles; every *_simd.cpp includes this file before Highway. On
/// x86 these are AVX-512 (bit 8), AVX2 (bit 9) and the baseline, for which our kernels have
/// blockings. The baseline is SSE2, bit 14 where this release of Highway has it. SVE is disabled,
/// because its vectors have no size at compile time. Targets are given by bit. The names of other
/// targets differ between the releases of Debian 12 and Ubuntu 24.04.
#define HWY_DISABLED_TARGETS 0xF003CFFLL
