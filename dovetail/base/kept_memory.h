#pragma once

#include <cstdint>

namespace dovetail {

/// Maximum bytes that a process holds for tensors whose peak is `bytes`, with the freed blocks that
/// are kept.
constexpr int64_t with_kept(int64_t bytes) { return bytes + bytes / 16; }
/// Peak of tensors for which a process holds no more than `bytes`.
constexpr int64_t within_kept(int64_t bytes) { return bytes - bytes / 17 - 1; }

/// Keeps memory that tensors on the CPU free, for the next tensor of about the same size. A
/// training step takes and frees the same sizes in each iteration, and each page from the system
/// costs a fault. The process holds at most `with_kept` of the maximum that tensors have held at
/// once. Before it takes more, it gives back the block that has been free the longest. Programs
/// that train call this at their start; a second call does nothing.
void keep_freed_memory();

/// Gives freed memory back to the system: blocks that `keep_freed_memory` kept, and malloc's. The
/// maximum that tensors have held counts from now.
void give_back_freed_memory();

}  // namespace dovetail
