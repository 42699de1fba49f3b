#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/sha256_kernels.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace dovetail {
namespace sha256_kernels {
namespace {

// Fractional parts of the cube roots of the first 64 primes.
alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t load_big_endian(const uint8_t* p) {
  return uint32_t{p[0]} << 24 | uint32_t{p[1]} << 16 | uint32_t{p[2]} << 8 | uint32_t{p[3]};
}

}  // namespace

void compress_portable(uint32_t state[8], const uint8_t* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    uint32_t w[64];
    for (int t = 0; t < 16; ++t) w[t] = load_big_endian(data + 4 * t);
    for (int t = 16; t < 64; ++t) {
      const uint32_t s0 = std::rotr(w[t - 15], 7) ^ std::rotr(w[t - 15], 18) ^ (w[t - 15] >> 3);
      const uint32_t s1 = std::rotr(w[t - 2], 17) ^ std::rotr(w[t - 2], 19) ^ (w[t - 2] >> 10);
      w[t] = w[t - 16] + s0 + w[t - 7] + s1;
    }
    uint32_t a = state[0], b = state[1], c = state[2], d = state[3];
    uint32_t e = state[4], f = state[5], g = state[6], h = state[7];
    for (int t = 0; t < 64; ++t) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kRound[t] + w[t];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1;
      d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t sum[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += sum[i];
  }
}

#if defined(__x86_64__)

bool has_sha_extensions() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kSha = 1U << 29;
  return (b & kSha) != 0 && __builtin_cpu_supports("sse4.1") != 0;
}

// The instructions hold the state as (a b e f) and (c d g h) and run two rounds each.
__attribute__((target("sha,sse4.1"))) void compress_sha_extensions(uint32_t state[8],
                                                                   const uint8_t* data,
                                                                   size_t blocks) {
  const __m128i big_endian = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
  const __m128i dcba = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state));
  const __m128i hgfe = _mm_loadu_si128(reinterpret_cast<const __m128i*>(state + 4));
  const __m128i cdab = _mm_shuffle_epi32(dcba, 0xB1), efgh = _mm_shuffle_epi32(hgfe, 0x1B);
  __m128i abef = _mm_alignr_epi8(cdab, efgh, 8), cdgh = _mm_blend_epi16(efgh, cdab, 0xF0);

  for (; blocks > 0; --blocks, data += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i) {
      w[i] =
          _mm_shuffle_epi8(_mm_loadu_si128(reinterpret_cast<const __m128i*>(data) + i), big_endian);
    }
    for (int i = 0; i < 16;
         ++i) {  // four rounds each; w[i & 3] holds the schedule words 4i .. 4i+3
      __m128i& now = w[i & 3];
      if (i >= 4) {
        const __m128i& last = w[(i + 3) & 3];
        const __m128i middle =
            _mm_alignr_epi8(last, w[(i + 2) & 3], 4);  // words t-7 for the four new words
        now = _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(now, w[(i + 1) & 3]), middle),
                                   last);
      }
      const __m128i sum =
          _mm_add_epi32(now, _mm_load_si128(reinterpret_cast<const __m128i*>(kRound + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, sum);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(sum, 0x0E));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }

  const __m128i feba = _mm_shuffle_epi32(abef, 0x1B), dchg = _mm_shuffle_epi32(cdgh, 0xB1);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state), _mm_blend_epi16(feba, dchg, 0xF0));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(state + 4), _mm_alignr_epi8(dchg, feba, 8));
}

#else

bool has_sha_extensions() { return false; }

void compress_sha_extensions(uint32_t[8], const uint8_t*, size_t) {
  DOVETAIL_CHECK(false, "this processor has no SHA extensions that are known here");
}

#endif

}  // namespace sha256_kernels

namespace {

void compress(uint32_t state[8], const uint8_t* data, size_t blocks) {
  static const sha256_kernels::Compress kernel = sha256_kernels::has_sha_extensions()
                                                     ? sha256_kernels::compress_sha_extensions
                                                     : sha256_kernels::compress_portable;
  kernel(state, data, blocks);
}

// Fractional parts of the square roots of the first eight primes.
constexpr std::array<uint32_t, 8> kInitial = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};

}  // namespace

Sha256::Sha256() { std::copy(kInitial.begin(), kInitial.end(), state_); }

void Sha256::update(const void* data, size_t bytes) {
  if (bytes == 0) return;
  const auto* at = static_cast<const uint8_t*>(data);
  const size_t held = length_ % 64;
  length_ += bytes;
  if (held > 0) {
    const size_t taken = std::min(bytes, 64 - held);
    std::memcpy(block_ + held, at, taken);
    if (held + taken < 64) return;
    compress(state_, block_, 1);
    at += taken;
    bytes -= taken;
  }
  compress(state_, at, bytes / 64);
  if (bytes % 64 > 0) std::memcpy(block_, at + bytes / 64 * 64, bytes % 64);
}

std::string Sha256::hex_digest() {
  const uint64_t bits = length_ * 8;
  uint8_t tail[72] = {0x80};
  const size_t padding = (length_ % 64 < 56 ? 56 : 120) - length_ % 64;
  for (int i = 0; i < 8; ++i)
    tail[padding + static_cast<size_t>(i)] = static_cast<uint8_t>(bits >> (56 - 8 * i));
  update(tail, padding + 8);
  std::string digest;
  for (const uint32_t word : state_) digest += fmt::format("{:08x}", word);
  *this = Sha256();
  return digest;
}

std::string sha256_of(std::string_view text) {
  Sha256 hash;
  hash.update(text);
  return hash.hex_digest();
}

std::string sha256_of_file(const std::filesystem::path& path) {
  const MappedFile file(path);
  constexpr size_t kBlockBytes = size_t{8} << 20;
  constexpr size_t kAround = size_t{64} << 10;  // a page fault also maps pages before the address
  Sha256 hash;
  for (size_t begin = 0; begin < file.bytes().size(); begin += kBlockBytes) {
    const auto block =
        file.bytes().subspan(begin, std::min(kBlockBytes, file.bytes().size() - begin));
    hash.update(block.data(), block.size());
    file.release(begin - std::min(begin, kAround), begin + block.size());
  }
  return hash.hex_digest();
}

}  // namespace dovetail
