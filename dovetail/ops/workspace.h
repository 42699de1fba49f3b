#pragma once

#include <cstddef>

namespace dovetail::ops {

/// Use of a thread's scratch memory. Each use has its own buffer, so kernels with different uses
/// may nest.
enum class Workspace { kGemmRows, kGemmPanel, kAttention, kRows, kMadeRows, kRandomWords, kCount };

/// Returns `count` floats of this thread, aligned to a cache line, uninitialised. They are valid
/// until the thread calls this again for the same use. A buffer is kept for the lifetime of its
/// thread: a new allocation of megabytes costs a page fault every 4 KiB.
float* workspace(Workspace use, size_t count);

}  // namespace dovetail::ops
