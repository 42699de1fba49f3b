#pragma once

#include <vector>

namespace dovetail {

/// The processors that this process may use, by the system's numbers (hwloc, affinity respected):
/// one of each core first, then the second ones, so that as many threads as cores share no core.
std::vector<int> usable_processors();

/// Binds the calling thread to one of them. InternalError when the system refuses.
void bind_thread(int processor);

}  // namespace dovetail
