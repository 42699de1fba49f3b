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

/// Pool of decoded blocks of rows (see RowReader). Its threads read requested blocks before they
/// are used. Memory holds only the blocks of the last call of `want` and the permanent blocks
/// (`keep`).
class BlockPool {
 public:
  /// Reads blocks of `reader`, which must outlive this object, on `threads` threads.
  BlockPool(const RowReader& reader, int64_t threads) : reader_(reader), num_threads_(threads) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Adds block number `block`, which the caller has already decoded, as a permanent block. It
  /// stays in memory as long as the pool lives.
  void keep(int64_t block, std::shared_ptr<const RowBlock> rows);

  /// Requests `blocks`: the threads start to read them, in this order, except blocks already in
  /// memory. Releases all blocks that are neither in `blocks` nor permanent.
  void want(const std::vector<int64_t>& blocks);

  /// Waits until a requested block is read and returns it. Returns a permanent block at once.
  /// Rethrows the exception if the read failed.
  std::shared_ptr<const RowBlock> get(int64_t block);

 private:
  struct Entry {
    std::shared_ptr<const RowBlock> rows;  ///< null until the block is read
    std::exception_ptr failure;
    bool kept = false;  ///< true for a permanent block
  };
  void read_blocks();

  const RowReader& reader_;
  int64_t num_threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::map<int64_t, Entry> entries_;
  std::deque<int64_t> queue_;  ///< requested blocks that no thread has started to read
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dovetail::data
