#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace dovetail::data {

/// Computes the items of a sequence ahead of time, at most `ahead` of them, on a thread of its own.
/// The thread starts with the first call of `take`.
template <class Item>
class Prefetcher {
 public:
  /// `make(i)` computes item i. Only the thread of this object calls it, for one item at a time.
  explicit Prefetcher(std::function<Item(int64_t)> make, size_t ahead = 4)
      : make_(std::move(make)), ahead_(ahead) {}

  ~Prefetcher() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    if (thread_.joinable()) thread_.join();
  }
  Prefetcher(const Prefetcher&) = delete;
  Prefetcher& operator=(const Prefetcher&) = delete;

  /// Waits for item `index` and returns it. The thread then computes the items after it. Fast if
  /// indices rise by 1 from call to call; otherwise, items computed ahead are dropped. Rethrows
  /// exceptions of `make`.
  Item take(int64_t index) {
    std::unique_lock lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    if (ready_.empty() ? next_ != index : ready_.front().first != index) {
      ready_.clear();
      next_ = index;
      failure_ = nullptr;
      wake_.notify_all();
    }
    wake_.wait(lock, [&] { return !ready_.empty() || failure_ != nullptr; });
    if (ready_.empty()) std::rethrow_exception(failure_);
    Item item = std::move(ready_.front().second);
    ready_.pop_front();
    wake_.notify_all();
    return item;
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      wake_.wait(lock,
                 [&] { return stopping_ || (ready_.size() < ahead_ && failure_ == nullptr); });
      if (stopping_) return;
      const int64_t index = next_;
      Item item;
      std::exception_ptr error;
      lock.unlock();
      try {
        item = make_(index);
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (next_ != index) continue;  // another item was requested in the meantime
      failure_ = error;
      if (error == nullptr) {
        ready_.emplace_back(index, std::move(item));
        ++next_;
      }
      wake_.notify_all();
    }
  }

  std::function<Item(int64_t)> make_;
  const size_t ahead_;  ///< maximum number of items in `ready_`
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::pair<int64_t, Item>> ready_;  ///< computed items, consecutive: (index, item)
  int64_t next_ = 0;                            ///< index of the next item to compute
  std::exception_ptr failure_;                  ///< exception of make(next_), or null
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dovetail::data
