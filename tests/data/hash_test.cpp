#include "dovetail/base/hash.h"

#include <gtest/gtest.h>

#include <string>

namespace dovetail::data::hash_test {
namespace {

TEST(Xxh64, GivesThePublishedValues) {
  EXPECT_EQ(xxh64(""), 0xEF46DB3751D8E999u);
  EXPECT_EQ(xxh64("a"), 0xD24EC4F1A98C6E5Bu);
  EXPECT_EQ(xxh64("abc"), 0x44BC2CF5AD770999u);
  EXPECT_EQ(xxh64("xxhash"), 0x32DD38952C4BC720u);
  EXPECT_EQ(xxh64("Nobody inspects the spammish repetition"), 0xFBCEA83C8A378BF1u);
}

/// The self-test of the reference implementation hashes the first bytes of a fixed sequence.
TEST(Xxh64, GivesTheValuesOfTheReferencesSelfTest) {
  std::string bytes;
  uint64_t generator = 2654435761u;
  for (int i = 0; i < 222; ++i) {
    bytes.push_back(static_cast<char>(generator >> 56));
    generator *= 11400714785074694797u;
  }
  EXPECT_EQ(xxh64(bytes.substr(0, 1)), 0xE934A84ADB052768u);
  EXPECT_EQ(xxh64(bytes.substr(0, 4)), 0x9136A0DCA57457EEu);
  EXPECT_EQ(xxh64(bytes.substr(0, 14)), 0x8282DCC4994E35C8u);
  EXPECT_EQ(xxh64(bytes), 0xB641AE8CB691C174u);
}

}  // namespace
}  // namespace dovetail::data::hash_test
