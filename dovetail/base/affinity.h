#pragma once

#include <vector>

namespace dovetail {

/// Returns the processors that this process may use, by OS number, from hwloc. The affinity mask is
/// respected. The list starts with the first hardware thread of each core. The second hardware
/// threads follow, so that up to as many threads as cores never share a core.
std::vector<int> usable_processors();

/// Binds the calling thread to `processor`, an OS number from `usable_processors`. Throws
/// InternalError if the system refuses.
void bind_thread(int processor);

}  // namespace dovetail
