#include "dovetail/io/write_queue.h"

namespace dovetail::io {

WriteQueue::~WriteQueue() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void WriteQueue::push(int64_t bytes, std::function<void()> task) {
  if (!beside()) return task();
  std::unique_lock lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
  changed_.wait(lock, [&] { return tasks_.empty() || bytes_ + bytes <= limit_bytes_; });
  bytes_ += bytes;
  tasks_.emplace_back(bytes, std::move(task));
  changed_.notify_all();
}

void WriteQueue::wait() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return tasks_.empty(); });
}

void WriteQueue::run() {
  std::unique_lock lock(mutex_);
  while (true) {
    changed_.wait(lock, [&] { return stopping_ || !tasks_.empty(); });
    if (stopping_) return;
    std::function<void()> task = std::move(tasks_.front().second);
    lock.unlock();
    task();
    task = nullptr;  // frees the bytes before the queue takes others
    lock.lock();
    bytes_ -= tasks_.front().first;
    tasks_.pop_front();
    changed_.notify_all();
  }
}

}  // namespace dovetail::io
