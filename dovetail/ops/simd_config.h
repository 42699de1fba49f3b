#pragma once

/// Included before Highway by every *_simd.cpp. Of the x86 instruction sets only AVX-512 (bit 8),
/// AVX2 (bit 9) and the baseline (SSE2, bit 14, where this release of Highway has it) are compiled:
/// those our kernels have blockings for. SVE is out because its vectors have no size at compile
/// time. By bit, since the names of the others differ between the releases of Debian 12 and
/// Ubuntu 24.04.
#define HWY_DISABLED_TARGETS 0xF003CFFLL
