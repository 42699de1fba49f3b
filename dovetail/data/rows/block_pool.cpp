#include "dovetail/data/rows/block_pool.h"

#include <algorithm>

#include "dovetail/base/error.h"

namespace dovetail::data {

BlockPool::~BlockPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

void BlockPool::keep(int64_t block, std::shared_ptr<const RowBlock> rows) {
  const std::lock_guard lock(mutex_);
  entries_[block] = {std::move(rows), nullptr, true};
}

void BlockPool::want(const std::vector<int64_t>& blocks) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [&](const auto& entry) {
    return !entry.second.kept &&
           std::find(blocks.begin(), blocks.end(), entry.first) == blocks.end();
  });
  std::erase_if(queue_, [&](int64_t block) { return !entries_.contains(block); });
  for (const int64_t block : blocks)
    if (entries_.try_emplace(block).second) queue_.push_back(block);
  if (queue_.empty()) return;
  while (static_cast<int64_t>(threads_.size()) < num_threads_)
    threads_.emplace_back([this] { read_blocks(); });
  wake_.notify_all();
}

std::shared_ptr<const RowBlock> BlockPool::get(int64_t block) {
  std::unique_lock lock(mutex_);
  const auto found = entries_.find(block);
  DOVETAIL_CHECK(found != entries_.end(), "block {} was not asked for", block);
  Entry& entry = found->second;
  wake_.wait(lock, [&] { return entry.rows != nullptr || entry.failure != nullptr; });
  if (entry.failure != nullptr) std::rethrow_exception(entry.failure);
  return entry.rows;
}

void BlockPool::read_blocks() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stopping_ || !queue_.empty(); });
    if (stopping_) return;
    const int64_t block = queue_.front();
    queue_.pop_front();
    lock.unlock();
    Entry done;
    try {
      done.rows = std::make_shared<RowBlock>(reader_.read(block));
    } catch (...) {
      done.failure = std::current_exception();
    }
    lock.lock();
    // The block may have been released in the meantime.
    if (const auto entry = entries_.find(block); entry != entries_.end())
      entry->second = std::move(done);
    wake_.notify_all();
  }
}

}  // namespace dovetail::data
