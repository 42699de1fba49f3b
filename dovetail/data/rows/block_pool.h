#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "dovetail/data/rows/row_reader.h"

namespace dovetail::data {

/// Pool of decoded blocks. Threads read wanted blocks ahead of their use; other blocks are
/// released.
class BlockPool {
 public:
  BlockPool(const RowReader& reader, int64_t threads) : reader_(reader), num_threads_(threads) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Keeps a block that was decoded before, as long as the pool lives.
  void keep(int64_t block, std::shared_ptr<const RowBlock> rows);

  /// Starts to read `blocks`, in this order. Releases all other blocks that are not kept.
  void want(const std::vector<int64_t>& blocks);

  /// Returns a wanted or kept block; waits until it is read. Rethrows the exception of a failed
  /// read.
  std::shared_ptr<const RowBlock> get(int64_t block);

 private:
  struct Entry {
    std::shared_ptr<const RowBlock> rows;
    std::exception_ptr failure;
    bool kept = false;
  };
  void read_blocks();

  const RowReader& reader_;
  int64_t num_threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int64_t, Entry> entries_;
  std::deque<int64_t> queue_;  ///< wanted blocks that no thread has started to read
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dovetail::data
