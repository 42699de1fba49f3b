#pragma once

#include <cstdint>
#include <functional>

namespace dovetail {

/// Threads that `parallel_pieces` uses: what at::get_num_threads() says, 1 inside a parallel
/// region.
int parallel_workers();

/// Run `work(begin, end)` over [0, size) in pieces of `grain`, handed out while it runs (a slow or
/// interrupted core takes fewer). Pieces are fixed by `grain` alone, so results that depend on the
/// piece are the same for any thread count. The first exception is rethrown after all pieces have
/// stopped.
void parallel_pieces(int64_t size, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace dovetail
