#pragma once

#include <cstdint>
#include <functional>

namespace dovetail {

/// Returns the number of threads that `parallel_pieces` uses: at::get_num_threads(), or 1 inside a
/// parallel region.
int parallel_workers();

/// Limits parallel regions and MKL calls of the calling thread to one thread. Call it before the
/// first parallel region: torch sets this number at first use.
void compute_alone();

/// Calls `work(begin, end)` for consecutive pieces of [0, size), each with `grain` indices except
/// the last. Threads fetch pieces dynamically, so that a slow or interrupted core processes fewer.
/// Pieces depend on `size` and `grain` alone. Results that depend on the pieces are therefore the
/// same for every number of threads. After an exception no further piece starts; the first
/// exception is rethrown after all running pieces have stopped.
void parallel_pieces(int64_t size, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& work);

}  // namespace dovetail
