#pragma once

#include <cstddef>

namespace dovetail {

/// What a thread's scratch memory is for; each use has a buffer of its own, so kernels may nest
/// across uses.
enum class Workspace { kGemmRows, kGemmPanel, kAttention, kRows, kMadeRows, kRandomWords, kCount };

/// `count` floats of this thread, aligned to a cache line, uninitialised; valid until the thread
/// asks again for the same use. Kept for the thread's lifetime, since a fresh allocation of
/// megabytes costs a page fault every 4 KiB.
float* workspace(Workspace use, size_t count);

}  // namespace dovetail
