#include "dovetail/base/threads.h"

#include <ATen/Parallel.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <exception>

#include "dovetail/base/error.h"

#if defined(__SANITIZE_THREAD__)
#include <thread>
#include <vector>
#endif

/// Sets MKL's number of threads for the calling thread. Null if torch has no MKL.
extern "C" int MKL_Set_Num_Threads_Local(int threads) __attribute__((weak));

namespace dovetail {
namespace {

// Queue of the pieces that no thread has taken yet, with a flag that stops it.
class PieceQueue {
 public:
  PieceQueue(int64_t size, int64_t grain, const std::function<void(int64_t, int64_t)>& work)
      : size_(size), grain_(grain), work_(work) {}

  // Runs pieces until the queue is empty or a piece has failed. The first exception is stored for
  // `finish`.
  void drain() {
    while (!failed_.load(std::memory_order_relaxed)) {
      const int64_t begin = next_.fetch_add(1, std::memory_order_relaxed) * grain_;
      if (begin >= size_) return;
      try {
        work_(begin, std::min(begin + grain_, size_));
      } catch (...) {
        if (!failed_.exchange(true)) first_error_ = std::current_exception();
      }
    }
  }

  // Rethrows the first exception. Call after each thread has returned from `drain`.
  void finish() const {
    if (first_error_) std::rethrow_exception(first_error_);
  }

 private:
  const int64_t size_, grain_;
  const std::function<void(int64_t, int64_t)>& work_;
  std::atomic<int64_t> next_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr first_error_;
};

#if defined(__SANITIZE_THREAD__)

// The thread sanitizer does not see the barriers of libgomp and reports false races. Its builds use
// plain threads instead.
thread_local bool t_inside = false;

bool inside_parallel_region() { return t_inside; }

void run_on(int64_t workers, PieceQueue& queue) {
  std::vector<std::thread> threads;
  const auto drain = [&queue] {
    t_inside = true;
    queue.drain();
    t_inside = false;
  };
  for (int64_t i = 1; i < workers; ++i) threads.emplace_back(drain);
  drain();
  for (std::thread& thread : threads) thread.join();
}

#else

bool inside_parallel_region() { return at::in_parallel_region(); }

void run_on(int64_t workers, PieceQueue& queue) {
  at::parallel_for(0, workers, 1, [&queue](int64_t, int64_t) { queue.drain(); });
}

#endif

}  // namespace

int parallel_workers() { return inside_parallel_region() ? 1 : at::get_num_threads(); }

void compute_alone() {
  at::get_num_threads();
  omp_set_num_threads(1);
  // at::set_num_threads gives MKL a number of its own, which overrides OpenMP's.
  if (MKL_Set_Num_Threads_Local != nullptr) MKL_Set_Num_Threads_Local(1);
}

void parallel_pieces(int64_t size, int64_t grain,
                     const std::function<void(int64_t begin, int64_t end)>& work) {
  DOVETAIL_CHECK(size >= 0 && grain > 0, "parallel_pieces over {} in pieces of {}", size, grain);
  PieceQueue queue(size, grain, work);
  const int64_t pieces = size / grain + (size % grain != 0 ? 1 : 0);
  const int64_t workers = std::min<int64_t>(pieces, parallel_workers());
  if (workers > 1) {
    run_on(workers, queue);
  } else {
    queue.drain();
  }
  queue.finish();
}

}  // namespace dovetail
