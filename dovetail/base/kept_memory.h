#pragma once

namespace dovetail {

/// Keeps memory that tensors on the CPU free, for the next tensor of about the same size. A training step takes and
/// frees the same sizes in each iteration, and each page from the system costs a fault. The process keeps at most a
/// sixteenth beyond the maximum that tensors have held at once. Before it takes more, it gives back the block that has
/// been free the longest. Programs that train call this at their start; a second call does nothing.
void keep_freed_memory();

/// Gives freed memory back to the system: blocks that `keep_freed_memory` kept, and malloc's. The maximum that tensors
/// have held counts from now.
void give_back_freed_memory();

}  // namespace dovetail
