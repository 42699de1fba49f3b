#pragma once

#include <cstdint>
#include <functional>

namespace dovetail {

/// Returns the number of threads that `parallel_pieces` uses: at::get_num_threads(), or 1 inside a
/// parallel region.
int parallel_workers();

/// Runs `work(begin, end)` over [0, size) in pieces of `grain`. Threads fetch pieces dynamically,
/// so that a slow or interrupted core processes fewer. Pieces depend on `grain` alone. Results that
/// depend on the pieces are therefore the same for every number of threads. The first exception is
/// rethrown after all pieces have stopped.
void parallel_pieces(int64_t size, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace dovetail
