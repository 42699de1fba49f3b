#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>

namespace dovetail::io {

/// Thread that runs tasks one after another, in the order of `push`. Each task owns a number of
/// bytes, such as rows to write. The bytes of unfinished tasks are limited. One thread at a time
/// may call these functions.
class WriteQueue {
 public:
  /// `limit_bytes`: maximum bytes of unfinished tasks. With 0, `push` runs each task itself.
  explicit WriteQueue(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  /// Drops tasks that have not begun, and waits for the others.
  ~WriteQueue();
  WriteQueue(const WriteQueue&) = delete;
  WriteQueue& operator=(const WriteQueue&) = delete;

  /// Returns true if tasks run on another thread than the caller's.
  bool beside() const { return limit_bytes_ > 0; }
  /// Adds a task that owns `bytes` bytes. Waits while the limit leaves no room for them, unless
  /// the queue is empty. The task must not throw.
  void push(int64_t bytes, std::function<void()> task);
  /// Waits until all tasks are done.
  void wait();

 private:
  void run();

  int64_t limit_bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::pair<int64_t, std::function<void()>>> tasks_;  ///< the first one may be running
  int64_t bytes_ = 0;                                            ///< bytes of tasks_
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace dovetail::io
