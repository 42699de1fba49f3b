#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <unordered_map>

namespace dovetail::plan {

/// Returns a 64-bit hash of memory, computed by all threads. Different contents give the same hash
/// with probability 2^-64.
uint64_t fingerprint(const void* data, int64_t bytes);

/// Hashes of storages on any device, to detect that a storage has changed since the previous look
/// at it.
class Fingerprints {
 public:
  /// Returns true if the storage has the same bytes as in the previous call with this index.
  /// Returns true in the first call.
  bool unchanged(int index, const c10::StorageImpl& storage);

 private:
  std::unordered_map<int, uint64_t> seen_;
};

}  // namespace dovetail::plan
