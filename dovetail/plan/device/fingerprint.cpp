#include "dovetail/plan/device/fingerprint.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include "dovetail/plan/device/step_device.h"

namespace dovetail::plan {
namespace {

constexpr int64_t kPiece = 256 << 10;
constexpr uint64_t kOdd = 0x9E3779B97F4A7C15;
constexpr int kRotation = 31;

/// Mixes a word into a hash. It is bijective in either argument, so one changed word always changes
/// the result.
uint64_t mix(uint64_t hash, uint64_t word) { return std::rotl((hash ^ word) * kOdd, kRotation); }

uint64_t of_piece(const std::byte* data, int64_t bytes) {
  constexpr int64_t kWord = sizeof(uint64_t), kLanes = 4;
  std::array<uint64_t, kLanes> lanes = {1, 2, 3, 4}, words = {};
  int64_t at = 0;
  for (; at + kLanes * kWord <= bytes; at += kLanes * kWord) {
    std::memcpy(words.data(), data + at, sizeof words);
    for (size_t lane = 0; lane < lanes.size(); ++lane) lanes[lane] = mix(lanes[lane], words[lane]);
  }
  words = {};
  std::memcpy(words.data(), data + at, static_cast<size_t>(bytes - at));
  uint64_t hash = static_cast<uint64_t>(bytes);
  for (size_t lane = 0; lane < lanes.size(); ++lane)
    hash = mix(hash, mix(lanes[lane], words[lane]));
  return hash;
}

}  // namespace

uint64_t fingerprint(const void* data, int64_t bytes) {
  const auto* begin = static_cast<const std::byte*>(data);
  std::vector<uint64_t> pieces(static_cast<size_t>((bytes + kPiece - 1) / kPiece));
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      pieces[i] = of_piece(begin + i * kPiece, std::min(kPiece, bytes - i * kPiece));
  });
  uint64_t hash = 0;
  for (const uint64_t piece : pieces) hash = mix(hash, piece);
  return hash;
}

bool Fingerprints::unchanged(int index, const c10::StorageImpl& storage) {
  if (storage.nbytes() == 0) return true;
  const uint64_t now = step_device(storage.device())
                           .fingerprint(storage.data(), static_cast<int64_t>(storage.nbytes()));
  const auto [found, first] = seen_.try_emplace(index, now);
  return first || std::exchange(found->second, now) == now;
}

}  // namespace dovetail::plan
