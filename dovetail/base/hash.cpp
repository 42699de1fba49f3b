#include "dovetail/base/hash.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>

namespace dovetail {
namespace {

constexpr uint64_t kPrime1 = 0x9E3779B185EBCA87, kPrime2 = 0xC2B2AE3D27D4EB4F,
                   kPrime3 = 0x165667B19E3779F9, kPrime4 = 0x85EBCA77C2B2AE63,
                   kPrime5 = 0x27D4EB2F165667C5;

static_assert(std::endian::native == std::endian::little,
              "words are read in the order of the machine");

template <class Word>
uint64_t word_at(const char* p) {
  Word word;
  std::memcpy(&word, p, sizeof(word));
  return word;
}

uint64_t round(uint64_t lane, uint64_t word) {
  return std::rotl(lane + word * kPrime2, 31) * kPrime1;
}

uint64_t merge(uint64_t hash, uint64_t lane) { return (hash ^ round(0, lane)) * kPrime1 + kPrime4; }

uint64_t stripes(const char*& p, const char* end) {
  uint64_t lane[4] = {kPrime1 + kPrime2, kPrime2, 0, 0 - kPrime1};
  for (; end - p >= 32; p += 32)
    for (int i = 0; i < 4; ++i) lane[i] = round(lane[i], word_at<uint64_t>(p + 8 * i));
  uint64_t hash = std::rotl(lane[0], 1) + std::rotl(lane[1], 7) + std::rotl(lane[2], 12) +
                  std::rotl(lane[3], 18);
  for (const uint64_t l : lane) hash = merge(hash, l);
  return hash;
}

}  // namespace

uint64_t xxh64(std::string_view bytes) {
  const char* p = bytes.data();
  const char* const end = p + bytes.size();
  uint64_t hash = (bytes.size() >= 32 ? stripes(p, end) : kPrime5) + bytes.size();
  for (; end - p >= 8; p += 8)
    hash = std::rotl(hash ^ round(0, word_at<uint64_t>(p)), 27) * kPrime1 + kPrime4;
  if (end - p >= 4) {
    hash = std::rotl(hash ^ word_at<uint32_t>(p) * kPrime1, 23) * kPrime2 + kPrime3;
    p += 4;
  }
  for (; p < end; ++p) hash = std::rotl(hash ^ word_at<uint8_t>(p) * kPrime5, 11) * kPrime1;
  hash = (hash ^ hash >> 33) * kPrime2;
  hash = (hash ^ hash >> 29) * kPrime3;
  return hash ^ hash >> 32;
}

uint64_t integer_key(int64_t integer) {
  std::array<char, 24> text;
  const char* const end = std::to_chars(text.data(), text.data() + text.size(), integer).ptr;
  return xxh64({text.data(), static_cast<size_t>(end - text.data())});
}

}  // namespace dovetail
