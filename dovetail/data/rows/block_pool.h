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

namespace dovetail {

/// Decoded blocks: those that are wanted are read ahead on threads, the others are let go.
class BlockPool {
 public:
  BlockPool(const RowReader& reader, int64_t threads) : reader_(reader), num_threads_(threads) {}
  ~BlockPool();
  BlockPool(const BlockPool&) = delete;
  BlockPool& operator=(const BlockPool&) = delete;

  /// Holds a block that was decoded before, for good.
  void keep(int64_t block, std::shared_ptr<const RowBlock> rows);

  /// Begins to read `blocks`, in this order, and lets go of all others that are not kept.
  void want(const std::vector<int64_t>& blocks);

  /// A wanted or kept block; waits for it. Rethrows what reading it threw.
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
  std::deque<int64_t> queue_;  ///< wanted, not yet begun
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace dovetail
