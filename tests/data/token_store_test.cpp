// ctest-labels: fuzz
#include "dovetail/data/text/token_store.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>

#include "dovetail/base/error.h"
#include "dovetail/data/text/manifest.h"
#include "dovetail/data/text/prepare.h"
#include "dovetail/data/text/token_shard.h"
#include "temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::token_store_test {
namespace {

using ::testing::HasSubstr;

const std::string kFingerprint(64, 'a');

/// A folder of three training shards, one of them empty, whose token i is i % 257, written by hand.
class Store : public ::testing::Test {
 protected:
  Store() {
    manifest_.fingerprint = kFingerprint;
    manifest_.settings = "{}";
    manifest_.tokenizer = {"bytes", "", "", 257, 0};
    manifest_.documents = 3;
    manifest_.sources = {{"a.txt", 5, kFingerprint}};
    add(0, 100);
    add(0, 0);
    add(0, 77);
    add(1, 9);
    save();
  }

  void add(int split, size_t count) {
    auto& part = manifest_.splits[split];
    std::vector<int32_t> tokens(count);
    for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>((part.tokens + i) % 257);
    const std::string name = fmt::format("{}-{}.tokens", split, part.shards.size());
    const std::string sha256 =
        write_shard(folder_.path() / name, {2, count, count, kFingerprint}, {tokens});
    part.shards.push_back({name, count, count, sha256});
    part.tokens += count;
    part.text_bytes += count;
  }

  void save() { folder_.write(TokenManifest::kFile, write_manifest(manifest_)); }

  std::string refusal(TokenStore::Verify verify = TokenStore::Verify::kSizes) {
    try {
      TokenStore store(folder_.path(), verify);
    } catch (const UserError& e) {
      return std::string(e.what()) + " / " + e.help() + " / " + e.place();
    }
    return "accepted";
  }

  TemporaryFolder folder_;
  TokenManifest manifest_;
};

TEST_F(Store, ReadsAnyRangeAcrossShards) {
  const TokenStore store(folder_.path(), TokenStore::Verify::kChecksums);
  ASSERT_EQ(store.num_tokens(Split::kTrain), 177);
  EXPECT_EQ(store.num_tokens(Split::kValidation), 9);
  EXPECT_EQ(store.num_bytes(Split::kTrain), 177u);
  for (int64_t begin = 0; begin <= 177; ++begin)
    for (int64_t count = 0; begin + count <= 177; count += 1 + count / 7) {
      std::vector<int64_t> out(static_cast<size_t>(count) + 1, -7),
          expected(static_cast<size_t>(count));
      store.read(Split::kTrain, begin, count, out.data());
      EXPECT_EQ(out.back(), -7);
      out.pop_back();
      std::iota(expected.begin(), expected.end(), begin);
      ASSERT_EQ(out, expected);
    }
}

TEST_F(Store, RangesOutsideAreOurOwnMistake) {
  const TokenStore store(folder_.path());
  int64_t out[200];
  EXPECT_THROW(store.read(Split::kTrain, 0, 178, out), InternalError);
  EXPECT_THROW(store.read(Split::kTrain, -1, 2, out), InternalError);
  EXPECT_THROW(store.read(Split::kTrain, 178, 0, out), InternalError);
  EXPECT_THROW(store.read(Split::kTrain, 3, -1, out), InternalError);
  EXPECT_THROW(store.read(Split::kTrain, 5, INT64_MAX, out), InternalError);
}

TEST_F(Store, ItsNameIsTheManifestsChecksum) {
  EXPECT_EQ(TokenStore(folder_.path()).sha256(),
            sha256_of_file(folder_.path() / TokenManifest::kFile));
}

TEST_F(Store, RefusesWhatIsNotWhole) {
  const auto shard = folder_.path() / "0-2.tokens";
  const std::string whole = folder_.read("0-2.tokens");
  std::filesystem::resize_file(shard, whole.size() - 2);
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("77 tokens"), HasSubstr("0-2.tokens"),
                                          HasSubstr("prepare")));
  std::filesystem::resize_file(shard, 10);
  EXPECT_THAT(refusal(), HasSubstr("truncated"));
  folder_.write("0-2.tokens", std::string(whole.size(), 'x'));
  EXPECT_THAT(refusal(), HasSubstr("not a token shard"));
  std::string other = whole;
  other[8] = 9;
  folder_.write("0-2.tokens", other);
  EXPECT_THAT(refusal(), HasSubstr("version 9"));
  std::filesystem::remove(shard);
  EXPECT_THAT(refusal(), HasSubstr("0-2.tokens"));
  folder_.write("0-2.tokens", folder_.read("0-0.tokens"));
  EXPECT_THAT(refusal(), HasSubstr("does not belong"));
  folder_.write("0-2.tokens", whole);
  EXPECT_EQ(refusal(), "accepted");
}

TEST_F(Store, FindsDamageByItsChecksum) {
  std::string damaged = folder_.read("0-0.tokens");
  damaged.back() = static_cast<char>(damaged.back() ^ 1);
  folder_.write("0-0.tokens", damaged);
  EXPECT_EQ(refusal(), "accepted");
  EXPECT_THAT(refusal(TokenStore::Verify::kChecksums),
              ::testing::AllOf(HasSubstr("SHA-256"), HasSubstr("0-0.tokens")));
}

TEST_F(Store, FindsTokensOutsideTheVocabulary) {
  const std::vector<int32_t> tokens = {1, 257};
  const std::string sha256 =
      write_shard(folder_.path() / "1-0.tokens", {2, 2, 2, kFingerprint}, {tokens});
  manifest_.splits[1].shards = {{"1-0.tokens", 2, 2, sha256}};
  manifest_.splits[1].tokens = manifest_.splits[1].text_bytes = 2;
  save();
  EXPECT_THAT(refusal(TokenStore::Verify::kChecksums), HasSubstr("vocabulary of 257"));
}

TEST_F(Store, RefusesForeignAndOtherManifests) {
  const auto with = [&](const auto& change) {
    nlohmann::json json = nlohmann::json::parse(write_manifest(manifest_));
    change(json);
    folder_.write(TokenManifest::kFile, json.dump());
    return refusal();
  };
  EXPECT_EQ(with([](auto&) {}), "accepted");
  EXPECT_THAT(with([](auto& m) { m["format"] = "other"; }), HasSubstr("not of a folder"));
  EXPECT_THAT(with([](auto& m) { m["version"] = 2; }), HasSubstr("version 2"));
  EXPECT_THAT(with([](auto& m) { m.erase("train"); }), HasSubstr("`train`"));
  EXPECT_THAT(with([](auto& m) { m["train"]["tokens"] = 178; }), HasSubstr("sums"));
  EXPECT_THAT(with([](auto& m) { m["train"]["tokens"] = -1; }), HasSubstr("count"));
  EXPECT_THAT(with([](auto& m) { m["train"]["shards"][0]["file"] = "../0-0.tokens"; }),
              HasSubstr("outside"));
  EXPECT_THAT(with([](auto& m) { m["tokenizer"]["vocab_size"] = 300; }), HasSubstr("300"));
  EXPECT_THAT(with([](auto& m) { m["tokenizer"]["kind"] = "runes"; }), HasSubstr("`file`"));
  folder_.write(TokenManifest::kFile, "{");
  EXPECT_THAT(refusal(), HasSubstr("JSON"));
  std::filesystem::remove(folder_.path() / TokenManifest::kFile);
  EXPECT_THAT(refusal(),
              ::testing::AllOf(HasSubstr("not a prepared folder"), HasSubstr("dovetail prepare")));
}

TEST_F(Store, ManifestComesBackAsItWas) {
  const std::string text = write_manifest(manifest_);
  EXPECT_EQ(write_manifest(parse_manifest(text, "x")), text);
}

TEST_F(Store, WideTokensForLargeVocabularies) {
  EXPECT_EQ(token_width(257), 2u);
  EXPECT_EQ(token_width(65536), 2u);
  EXPECT_EQ(token_width(65537), 4u);
  const std::vector<int32_t> tokens = {0, 65535, 65536, 2147483647};
  const auto path = folder_.path() / "wide.tokens";
  write_shard(path, {4, 4, 11, kFingerprint}, {tokens});
  const std::string file = folder_.read("wide.tokens");
  const ShardHeader header = read_shard_header(std::as_bytes(std::span(file)), "wide");
  EXPECT_EQ(header.width, 4u);
  EXPECT_EQ(header.count, 4u);
  EXPECT_EQ(header.text_bytes, 11u);
  EXPECT_EQ(header.fingerprint, kFingerprint);
  EXPECT_EQ(std::memcmp(file.data() + ShardHeader::kBytes, tokens.data(), 16), 0);
}

TEST_F(Store, FuzzedManifestsAreReadOrRefused) {
  test::fuzz({write_manifest(manifest_)}, 3000, 17, [](const std::string& input) {
    const TokenManifest manifest = parse_manifest(input, "fuzzed");
    // A manifest that was read can be written and read again.
    EXPECT_EQ(write_manifest(parse_manifest(write_manifest(manifest), "again")),
              write_manifest(manifest));
  });
}

TEST_F(Store, FuzzedShardHeadersAreReadOrRefused) {
  test::fuzz({folder_.read("0-2.tokens")}, 20000, 19, [](const std::string& input) {
    const ShardHeader header = read_shard_header(std::as_bytes(std::span(input)), "fuzzed");
    EXPECT_EQ(ShardHeader::kBytes + header.count * header.width, input.size());
  });
}

}  // namespace
}  // namespace dovetail::data::token_store_test
