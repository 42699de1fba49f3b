#pragma once

namespace dovetail {

/// Keeps memory that tensors on the CPU free, for the next tensor of about the same size. A training step takes and
/// frees the same sizes again and again, and each page that comes from the system costs a fault. The process never
/// keeps more than a sixteenth beyond the most that tensors have held at once: before it takes more it gives back what
/// has been free the longest. For programs that train, at their start; a second call does nothing.
void keep_freed_memory();

/// Gives freed memory back to the system: blocks that `keep_freed_memory` kept, and malloc's. The most that tensors
/// have held counts from now.
void give_back_freed_memory();

}  // namespace dovetail
