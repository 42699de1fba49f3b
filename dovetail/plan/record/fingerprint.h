#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <unordered_map>

namespace dovetail::plan {

/// A 64-bit hash of memory, by all threads: other bytes give the same value with a chance of 2^-64.
uint64_t fingerprint(const void* data, int64_t bytes);

/// Tells which storages have changed since they were last seen.
class Fingerprints {
 public:
  /// True if the bytes are the same as in the last call with this index, and in a first call.
  bool unchanged(int index, const c10::StorageImpl& storage);

 private:
  std::unordered_map<int, uint64_t> seen_;
};

}  // namespace dovetail::plan
