#include "dovetail/data/files/open_input.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "temporary_folder.h"

namespace dovetail::data::open_input_test {
namespace {

using namespace std::string_view_literals;
using ::testing::HasSubstr;

/// "a,b\n1,2\n" and "3,4\n" as two members, by Python's gzip and bz2 and by pyarrow's zstd.
constexpr std::string_view kText = "a,b\n1,2\n3,4\n";
constexpr std::string_view kGzip =
    "\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x4b\xd4\x49\xe2\x32\xd4\x31\xe2\x02\x00\x7b\x07\x97\x0a\x08\x00\x00\x00\x1f\x8b\x08\x00\x00\x00\x00\x00\x02\x03\x33\xd6\x31\xe1\x02\x00\x3e\x2d\x72\xa9\x04\x00\x00\x00"sv;
constexpr std::string_view kBzip2 =
    "\x42\x5a\x68\x39\x31\x41\x59\x26\x53\x59\xbf\x87\x40\x7f\x00\x00\x03\x59\x00\x00\x10\x00\x04\x30\x00\x30\x00\x20\x00\x30\xc0\x08\x69\xb2\x88\x23\x27\x8b\xb9\x22\x9c\x28\x48\x5f\xc3\xa0\x3f\x80\x42\x5a\x68\x39\x31\x41\x59\x26\x53\x59\x2d\x9f\xe7\x36\x00\x00\x01\x58\x00\x00\x10\x00\x04\x0c\x00\x20\x00\x21\x9a\x68\x33\x4d\x17\x3c\x5d\xc9\x14\xe1\x42\x40\xb6\x7f\x9c\xd8"sv;
constexpr std::string_view kZstd =
    "\x28\xb5\x2f\xfd\x00\x48\x41\x00\x00\x61\x2c\x62\x0a\x31\x2c\x32\x0a\x28\xb5\x2f\xfd\x00\x48\x21\x00\x00\x33\x2c\x34\x0a"sv;

class OpenInput : public ::testing::Test {
 protected:
  std::string bytes_of(const std::string& name, std::string_view content) {
    const MappedInput input(folder_.write(name, content));
    return std::string(input.bytes());
  }
  std::string streamed(const std::string& name, std::string_view content, size_t piece) {
    const auto path = folder_.write(name, content);
    const auto stream = open_input_stream(path, look_at_input(path));
    std::string all, part(piece, '\0');
    while (const size_t size = stream->read(part.data(), part.size())) all.append(part, 0, size);
    return all;
  }
  std::string name_of(std::string_view content) {
    return look_at_input(folder_.write("x", content)).name;
  }
  std::string refusal(std::string_view content) {
    try {
      bytes_of("x", content);
    } catch (const UserError& e) {
      return e.what();
    }
    return "accepted";
  }

  TemporaryFolder folder_;
};

TEST_F(OpenInput, UnpacksJoinedMembersUnderAnyName) {
  for (const std::string_view packed : {kGzip, kBzip2, kZstd}) {
    EXPECT_EQ(bytes_of("x.csv", packed), kText);
    EXPECT_EQ(streamed("x.csv", packed, 3), kText);
  }
  EXPECT_EQ(bytes_of("x.csv.gz", kText), kText);
}

TEST_F(OpenInput, PassesOverZerosAfterMembersOfGzip) {
  constexpr size_t kFirst = 28;
  for (const size_t zeros : {1, 600, 200'000}) {
    const std::string padding(zeros, '\0');
    const std::string between =
        std::string(kGzip.substr(0, kFirst)) + padding + std::string(kGzip.substr(kFirst));
    EXPECT_EQ(bytes_of("x.csv", std::string(kGzip) + padding), kText) << zeros;
    EXPECT_EQ(streamed("x.csv", between + padding, 3), kText) << zeros;
    EXPECT_THAT(refusal(std::string(kGzip) + padding + "x"), HasSubstr("damaged")) << zeros;
  }
}

TEST_F(OpenInput, RefusesStreamsThatEndEarlyOrAreDamaged) {
  // Damages a byte of a checksum, of data and of a block header. This Zstandard stream has no
  // checksum.
  for (const auto& [packed, at] :
       {std::pair(kGzip, 22), std::pair(kBzip2, 42), std::pair(kZstd, 6)}) {
    EXPECT_THAT(refusal(packed.substr(0, packed.size() - 3)), HasSubstr("ends early"));
    std::string damaged(packed);
    damaged[static_cast<size_t>(at)] ^= '\x55';
    EXPECT_NE(refusal(damaged), "accepted") << at;
  }
}

TEST_F(OpenInput, DropsMarksAndConvertsUtf16) {
  EXPECT_EQ(bytes_of("x", "\xEF\xBB\xBFgr\xC3\xBC\xC3\x9F"), "gr\xC3\xBC\xC3\x9F");
  EXPECT_EQ(streamed("x",
                     "\xEF\xBB\xBF"
                     "a",
                     1),
            "a");
  EXPECT_EQ(bytes_of("x",
                     "\xFF\xFE"
                     "a\0\xFC\0\x3D\xD8\x00\xDE\n\0"sv),
            "a\xC3\xBC\xF0\x9F\x98\x80\n");
  EXPECT_EQ(bytes_of("x", "\xFE\xFF\0a\0\xFC\xD8\x3D\xDE\x00\0\n"sv),
            "a\xC3\xBC\xF0\x9F\x98\x80\n");
  EXPECT_THAT(refusal("\xFF\xFE"
                      "a\0\x3D\xD8"sv),
              HasSubstr("half a surrogate pair"));
  EXPECT_THAT(refusal("\xFF\xFE"
                      "a\0b"sv),
              HasSubstr("ends within a character"));
}

TEST_F(OpenInput, TurnsLoneReturnsIntoLineFeeds) {
  EXPECT_EQ(bytes_of("x", "a\rb\r"), "a\nb\n");
  EXPECT_EQ(bytes_of("x", "a\r\nb\r\n"), "a\r\nb\r\n");
}

TEST_F(OpenInput, NamesKindsByTheirBytes) {
  EXPECT_EQ(name_of(""), "text");
  EXPECT_EQ(name_of("ORC stands for ores\n"), "text");
  EXPECT_EQ(name_of("PAR1 and so on"), "a Parquet file");
  EXPECT_EQ(name_of("\x93NUMPY\x01\0"sv), "a NumPy array");
  EXPECT_EQ(name_of("\xFD"
                    "7zXZ\0"sv),
            "xz-compressed data");
  EXPECT_EQ(name_of("\xFF\xFE\0\0a\0\0\0"sv), "text in UTF-32");
  EXPECT_EQ(name_of("a\0,\0b\0\n\0"sv), "text in UTF-16 without a byte order mark");
  EXPECT_EQ(name_of("ab\0\1\2"sv), "binary data");
  EXPECT_EQ(name_of(kGzip), "text (compressed by gzip)");
}

TEST_F(OpenInput, TheExtensionIsInLowerCaseAndBeforeThatOfThePacking) {
  const auto extension = [&](const std::string& name) {
    return look_at_input(folder_.write(name, "a")).extension;
  };
  EXPECT_EQ(extension("DATA.CSV"), ".csv");
  EXPECT_EQ(extension("data.Tsv.GZ"), ".tsv");
  EXPECT_EQ(extension("data"), "");
}

}  // namespace
}  // namespace dovetail::data::open_input_test
