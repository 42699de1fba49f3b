#pragma once

#include <vector>

namespace dovetail {

/// Returns the OS numbers of the processors (hardware threads) that this process may use, according
/// to hwloc. Processors outside the process's affinity mask are left out. The list starts with the
/// first hardware thread of each core; the second hardware threads follow. So its first n
/// processors belong to n different cores, if there are n cores.
std::vector<int> usable_processors();

/// Binds the calling thread to `processor`, an OS number from `usable_processors`. Throws
/// InternalError if the system refuses.
void bind_thread(int processor);

}  // namespace dovetail
