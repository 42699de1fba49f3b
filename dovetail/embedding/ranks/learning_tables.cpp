#include "dovetail/embedding/ranks/learning_tables.h"

#include <map>
#include <mutex>

#include "dovetail/base/error.h"

namespace dovetail::embedding {

namespace {

/// Tables of this process by handle. A handle is never used twice.
struct Handles {
  std::mutex mutex;
  std::map<int64_t, std::weak_ptr<LearningTables>> tables;
  int64_t last = 0;
};

Handles& handles() {
  static Handles all;
  return all;
}

}  // namespace

OwnedTables::OwnedTables(std::shared_ptr<LearningTables> tables) : tables_(std::move(tables)) {
  const std::lock_guard lock(handles().mutex);
  handle_ = ++handles().last;
  handles().tables.emplace(handle_, tables_);
}

OwnedTables::~OwnedTables() {
  const std::lock_guard lock(handles().mutex);
  handles().tables.erase(handle_);
}

std::shared_ptr<LearningTables> tables_of(int64_t handle) {
  const std::lock_guard lock(handles().mutex);
  const auto found = handles().tables.find(handle);
  std::shared_ptr<LearningTables> tables =
      found == handles().tables.end() ? nullptr : found->second.lock();
  user_check(tables != nullptr,
             "embedding: this process has no tables with handle {}; their EmbeddingCollection no "
             "longer exists, or is in another process",
             handle);
  return tables;
}

}  // namespace dovetail::embedding
