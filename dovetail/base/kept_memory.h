#pragma once

#include <cstdint>

namespace dovetail {

/// Returns the maximum bytes that a process holds for tensors after `keep_freed_memory`. Its
/// tensors use at most `bytes` at the same time. The difference, `bytes` / 16, is freed memory that
/// waits for reuse.
constexpr int64_t with_kept(int64_t bytes) { return bytes + bytes / 16; }
/// Inverse of `with_kept`: returns the bytes that tensors may use at the same time if the process
/// shall hold at most `bytes`. `with_kept` of the result is at most `bytes`.
constexpr int64_t within_kept(int64_t bytes) { return bytes - bytes / 17 - 1; }

/// Installs a CPU allocator that retains freed tensor memory and reuses it for tensors of similar
/// size. A training step allocates and frees the same sizes in each iteration, and each new page
/// costs a page fault. The process holds at most `with_kept(peak)`, where peak is the maximum of
/// tensor bytes in use so far. If an allocation would exceed this, the block that has been free the
/// longest is returned to the system. Training programs call this at their start. A second call has
/// no effect.
void keep_freed_memory();

/// Returns freed memory to the system: blocks retained by `keep_freed_memory`, and malloc's free
/// memory. The peak restarts at the tensor bytes now in use.
void give_back_freed_memory();

}  // namespace dovetail
