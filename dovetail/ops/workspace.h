#pragma once

#include <cstddef>

namespace dovetail::ops {

/// Purpose of a thread's scratch memory. Each purpose has its own buffer, so a kernel that uses one
/// buffer may call a kernel with another purpose.
enum class Workspace {
  kGemmRows,
  kGemmPanel,
  kGemmSums,
  kAttention,
  kRows,
  kMadeRows,
  kRandomWords,
  kCount
};

/// Returns scratch memory of this thread: at least `count` floats, aligned to a cache line,
/// uninitialised. It is valid until the thread calls this function again for the same purpose. A
/// buffer is kept for the lifetime of its thread: a new allocation of megabytes costs a page fault
/// every 4 KiB.
float* workspace(Workspace use, size_t count);

}  // namespace dovetail::ops
