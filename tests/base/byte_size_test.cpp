#include "dovetail/base/byte_size.h"

#include <gtest/gtest.h>

namespace dovetail::byte_size_test {
namespace {

TEST(ByteSize, IsANumberWithAUnit) {
  EXPECT_EQ(parse_byte_size("64MiB"), int64_t{64} << 20);
  EXPECT_EQ(parse_byte_size("1.5 GB"), 1500000000);
  EXPECT_EQ(parse_byte_size("1e9"), 1000000000);
  EXPECT_EQ(parse_byte_size("7B"), 7);
  EXPECT_EQ(parse_byte_size("3KiB"), 3072);
  EXPECT_EQ(parse_byte_size("2TiB"), int64_t{2} << 40);
}

TEST(ByteSize, IsNothingElse) {
  for (const char* text :
       {"", "MiB", "-1", "0", "0.5", "nan", "inf", "64 mib", "64MiB.", "1e30", "0.5x", " 64"})
    EXPECT_EQ(parse_byte_size(text), std::nullopt) << text;
}

}  // namespace
}  // namespace dovetail::byte_size_test
