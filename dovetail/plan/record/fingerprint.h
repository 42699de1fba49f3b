#pragma once

#include <c10/core/StorageImpl.h>

#include <cstdint>
#include <unordered_map>

namespace dovetail::plan {

/// Returns a 64-bit hash of memory, computed by all threads. Different bytes give the same value
/// with probability 2^-64.
uint64_t fingerprint(const void* data, int64_t bytes);

/// Detects storages that changed since they were last seen.
class Fingerprints {
 public:
  /// Returns true if the bytes equal the bytes of the previous call with this index. Returns true
  /// in the first call.
  bool unchanged(int index, const c10::StorageImpl& storage);

 private:
  std::unordered_map<int, uint64_t> seen_;
};

}  // namespace dovetail::plan
