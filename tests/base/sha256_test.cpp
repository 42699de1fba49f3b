#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <string>
#include <vector>

#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/sha256_kernels.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::sha256_test {
namespace {

struct Vector {
  std::string text, digest;
};

// FIPS 180-4 examples and the long ones of the NIST test suite.
const std::vector<Vector>& published() {
  static const std::vector<Vector> vectors = {
      {"", "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"},
      {"abc", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
      {"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
       "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"},
      {"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqklmnopqrlmn"
       "opqrsmnopqrstnopqrstu",
       "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"},
      {std::string(1'000'000, 'a'),
       "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0"}};
  return vectors;
}

std::string random_text(uint64_t key, size_t size) {
  std::string text(size, '\0');
  for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>(philox(key, i / 4, 0)[i % 4]);
  return text;
}

TEST(Sha256, PublishedVectors) {
  for (const auto& [text, digest] : published()) EXPECT_EQ(sha256_of(text), digest) << text.size();
}

TEST(Sha256, PiecesDoNotMatter) {
  for (uint64_t trial = 0; trial < 300; ++trial) {
    const size_t size = random_below(1, RandomStream::kTest, trial, 700);
    const std::string text = random_text(trial, size);
    Sha256 hash;
    for (size_t at = 0, piece = 0; at < size; at += piece) {
      piece = std::min<size_t>(size - at, random_below(2 + at, RandomStream::kTest, trial, 150));
      hash.update(text.data() + at, piece);
      if (piece == 0) hash.update(text.data() + at, piece = 1);
    }
    EXPECT_EQ(hash.hex_digest(), sha256_of(text)) << size;
  }
}

TEST(Sha256, StartsAnewAfterADigest) {
  Sha256 hash;
  hash.update("something");
  hash.hex_digest();
  hash.update("abc");
  EXPECT_EQ(hash.hex_digest(), published()[1].digest);
}

TEST(Sha256, OfAFile) {
  const test::TemporaryFolder folder;
  for (const auto& [text, digest] : published()) {
    write_file_atomically(folder / "f", text);
    EXPECT_EQ(sha256_of_file(folder / "f"), digest);
  }
}

TEST(Sha256, BothKernelsAgree) {
  if (!sha256_kernels::has_sha_extensions()) GTEST_SKIP() << "this processor has no SHA extensions";
  for (uint64_t trial = 0; trial < 200; ++trial) {
    const size_t blocks = random_below(3, RandomStream::kTest, trial, 9);
    // One byte off, since the data of a caller has no alignment.
    const std::string data = random_text(trial, 64 * blocks + 1);
    const auto* bytes = reinterpret_cast<const uint8_t*>(data.data()) + 1;
    std::array<uint32_t, 8> portable{}, extensions{};
    for (size_t i = 0; i < 8; ++i) portable[i] = extensions[i] = philox(trial, i, 1)[0];
    sha256_kernels::compress_portable(portable.data(), bytes, blocks);
    sha256_kernels::compress_sha_extensions(extensions.data(), bytes, blocks);
    EXPECT_EQ(portable, extensions) << blocks;
  }
}

// The kernel that this machine does not choose is held against a published vector too.
TEST(Sha256, PortableKernelOnAPublishedVector) {
  std::array<uint32_t, 8> state = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                   0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block{'a', 'b', 'c', 0x80};
  block[63] = 24;
  sha256_kernels::compress_portable(state.data(), block.data(), 1);
  const std::array<uint32_t, 8> expected = {0xba7816bf, 0x8f01cfea, 0x414140de, 0x5dae2223,
                                            0xb00361a3, 0x96177a9c, 0xb410ff61, 0xf20015ad};
  EXPECT_EQ(state, expected);
}

}  // namespace
}  // namespace dovetail::sha256_test
