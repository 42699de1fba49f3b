#include "dovetail/data/text/prepare.h"

#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/text/token_store.h"
#include "temporary_folder.h"

namespace dovetail::data::prepare_test {
namespace {

using ::testing::HasSubstr;

/// The split's text, with '|' where a document ends.
std::string text_of(const TokenStore& store, Split split) {
  std::vector<int64_t> ids(static_cast<size_t>(store.num_tokens(split)));
  store.read(split, 0, store.num_tokens(split), ids.data());
  std::string text;
  const auto end_of_document = static_cast<int64_t>(store.tokenizer().end_of_document());
  for (auto begin = ids.begin(); begin != ids.end();) {
    const auto end = std::find(begin, ids.end(), end_of_document);
    text += store.tokenizer().decode({begin, end});
    if (end != ids.end()) text += '|';
    begin = end == ids.end() ? end : end + 1;
  }
  return text;
}

class Prepare : public ::testing::Test {
 protected:
  /// 40 documents in folders, among them one duplicate and files that are no text.
  Prepare() {
    for (int i = 0; i < 40; ++i)
      folder_.write(fmt::format("text/{}/{:02}.txt", i % 3, i),
                    fmt::format("document {} says {}\n", i, i * i));
    folder_.write("text/0/copy.md", "document 3 says 9\n");
    folder_.write("text/0/picture.png", "not text");
    folder_.write("text/.hidden/x.txt", "hidden");
    folder_.write("text/empty.txt", "");
    config_.text = {(folder_.path() / "text").string()};
    config_.validation_fraction = 0.25;
  }

  PrepareResult run(const std::string& name = "out") {
    return prepare(config_, folder_.path() / name);
  }

  std::string refusal() {
    try {
      run("refused");
    } catch (const UserError& e) {
      return std::string(e.what()) + " / " + e.help() + " / " + e.place();
    }
    return "accepted";
  }

  TemporaryFolder folder_;
  DataConfig config_;
};

TEST_F(Prepare, KeepsEveryDocumentInOneSplit) {
  const PrepareResult result = run();
  EXPECT_EQ(result.documents, 41);
  const TokenStore store(result.folder, TokenStore::Verify::kChecksums);
  const std::string train = text_of(store, Split::kTrain),
                    validation = text_of(store, Split::kValidation);
  EXPECT_EQ(train.size(),
            result.train_bytes + static_cast<size_t>(std::count(train.begin(), train.end(), '|')));
  EXPECT_EQ(static_cast<int64_t>(train.size()), result.train_tokens);
  EXPECT_EQ(static_cast<int64_t>(validation.size()), result.validation_tokens);
  EXPECT_EQ(store.num_bytes(Split::kValidation), result.validation_bytes);
  int held_out = 0;
  for (int i = 0; i < 40; ++i) {
    if (i == 3) continue;  // it has a copy of another name
    const std::string document = fmt::format("document {} says {}\n|", i, i * i);
    const bool in_train = train.find(document) != std::string::npos;
    const bool in_validation = validation.find(document) != std::string::npos;
    EXPECT_NE(in_train, in_validation) << document;
    held_out += in_validation;
  }
  EXPECT_GT(held_out, 2);
  EXPECT_LT(held_out, 20);
  EXPECT_EQ(train.find("hidden"), std::string::npos);
  EXPECT_EQ(train.find("not text"), std::string::npos);
}

TEST_F(Prepare, SaysTheSameOnAnyNumberOfThreads) {
  const int before = at::get_num_threads();
  config_.tokenizer.kind = "bpe";
  config_.tokenizer.vocab_size = 300;
  std::set<std::string> manifests;
  for (const int threads : {1, 2, 4}) {
    at::set_num_threads(threads);
    manifests.insert(run(fmt::format("out{}", threads)).sha256);
  }
  at::set_num_threads(before);
  EXPECT_EQ(manifests.size(), 1u);
}

TEST_F(Prepare, WritesNoAbsolutePath) {
  const PrepareResult result = run();
  for (const auto& entry : std::filesystem::directory_iterator(result.folder))
    EXPECT_EQ(read_file(entry.path()).find(folder_.path().string()), std::string::npos)
        << entry.path();
  // So the same text in another place is the same data set.
  std::filesystem::rename(folder_.path() / "text", folder_.path() / "moved");
  config_.text = {(folder_.path() / "moved").string()};
  EXPECT_EQ(run("again").sha256, result.sha256);
}

TEST_F(Prepare, LeavesAnUpToDateFolderAsItIs) {
  const PrepareResult first = run();
  EXPECT_FALSE(first.reused);
  const auto time = std::filesystem::last_write_time(first.folder / "train-00000.tokens");
  const PrepareResult second = run();
  EXPECT_TRUE(second.reused);
  EXPECT_EQ(second.sha256, first.sha256);
  EXPECT_EQ(second.train_tokens, first.train_tokens);
  EXPECT_EQ(second.documents, first.documents);
  EXPECT_EQ(std::filesystem::last_write_time(first.folder / "train-00000.tokens"), time);
}

TEST_F(Prepare, NoticesEveryChange) {
  std::set<std::string> manifests = {run().sha256};
  const auto expect_new = [&](const char* what) {
    const PrepareResult result = run();
    EXPECT_FALSE(result.reused) << what;
    EXPECT_TRUE(manifests.insert(result.sha256).second) << what;
    const TokenStore store(result.folder, TokenStore::Verify::kChecksums);
    return text_of(store, Split::kTrain) + text_of(store, Split::kValidation);
  };
  folder_.write("text/0/00.txt", "document 0 says 1\n");  // same size as before
  EXPECT_THAT(expect_new("content"), HasSubstr("document 0 says 1\n"));
  std::filesystem::rename(folder_.path() / "text/0/00.txt", folder_.path() / "text/0/renamed.txt");
  expect_new("name");
  config_.validation_fraction = 0.3;
  expect_new("fraction");
  config_.deduplicate = true;
  expect_new("duplicates");
  config_.tokenizer.kind = "bpe";
  config_.tokenizer.vocab_size = 280;
  expect_new("tokenizer");
  config_.tokenizer.vocab_size = 290;
  expect_new("vocabulary");
  // Back to settings that were there before: their data set again, without the tokenizer.
  config_.tokenizer = {};
  const PrepareResult back = run();
  EXPECT_FALSE(back.reused);
  EXPECT_FALSE(manifests.insert(back.sha256).second);
  EXPECT_FALSE(std::filesystem::exists(folder_.path() / "out/tokenizer.json"));
}

TEST_F(Prepare, DropsDuplicatesAndLargeDocuments) {
  config_.deduplicate = true;
  config_.max_document_bytes = 100;
  folder_.write("text/large.txt", std::string(101, 'x'));
  const PrepareResult result = run();
  EXPECT_EQ(result.documents, 40);
  EXPECT_EQ(result.duplicates_skipped, 1);
  const TokenStore store(result.folder);
  const std::string all = text_of(store, Split::kTrain) + text_of(store, Split::kValidation);
  EXPECT_EQ(std::count(all.begin(), all.end(), '|'), 40);
  EXPECT_EQ(all.find("xxx"), std::string::npos);
  EXPECT_EQ(result.oversized_skipped, 1);
}

TEST_F(Prepare, GoesOnAfterItWasStopped) {
  config_.text = {folder_.write("large.txt", std::string(1000, 'y')).string(),
                  (folder_.path() / "text").string()};
  const PrepareResult undisturbed = run("undisturbed");
  // Stopped at each of its reports in turn: a killed process leaves what the exception leaves, and
  // temporaries.
  int stops = 0;
  for (bool finished = false; !finished; ++stops) {
    int reports = 0;
    try {
      prepare(config_, folder_.path() / "out", [&](const PrepareProgress&) {
        if (reports++ >= stops * 20) throw std::runtime_error("stopped");
      });
      finished = true;
    } catch (const std::runtime_error&) {
      EXPECT_THROW(TokenStore(folder_.path() / "out"), UserError);
    }
    folder_.write("out/.train-00000.tokens.1234.partial", "left behind");
  }
  EXPECT_GT(stops, 2);
  const PrepareResult result = run();
  EXPECT_EQ(result.sha256, undisturbed.sha256);
}

TEST_F(Prepare, RemovesWhatKilledProcessesLeft) {
  const auto left = folder_.write("out/.train-00000.tokens.1234.partial", "left behind");
  run();
  EXPECT_FALSE(std::filesystem::exists(left));
}

TEST_F(Prepare, StoppedWhileItReplacesAFolderLeavesNoMixture) {
  run();
  config_.validation_fraction = 0.4;
  const auto stop = [](const PrepareProgress& progress) {
    if (std::string(progress.stage) == "tokenizing") throw std::runtime_error("stopped");
  };
  EXPECT_THROW(prepare(config_, folder_.path() / "out", stop), std::runtime_error);
  EXPECT_THROW(TokenStore(folder_.path() / "out"), UserError);
  EXPECT_NO_THROW(run());
}

TEST_F(Prepare, UsesFinishedShardsAgain) {
  const PrepareResult first = run();
  const auto shard = first.folder / "train-00000.tokens";
  const auto time = std::filesystem::last_write_time(shard);
  std::filesystem::remove(first.folder / "manifest.json");
  const PrepareResult second = run();
  EXPECT_FALSE(second.reused);
  EXPECT_EQ(second.sha256, first.sha256);
  EXPECT_EQ(std::filesystem::last_write_time(shard), time);
  // A shard is not reused if its text differs or if it is cut short.
  std::filesystem::resize_file(shard, std::filesystem::file_size(shard) - 2);
  const PrepareResult third = run();
  EXPECT_FALSE(third.reused);
  EXPECT_EQ(third.sha256, first.sha256);
  EXPECT_NE(std::filesystem::last_write_time(shard), time);
}

TEST_F(Prepare, HoldsOutTheTail) {
  const std::string text = "0123456789abcdefghij";
  config_.text = {folder_.write("tail.txt", text).string()};
  config_.validation_split = "tail";
  config_.validation_fraction = 0.1;
  const PrepareResult result = run();
  const TokenStore store(result.folder);
  EXPECT_EQ(text_of(store, Split::kTrain), "0123456789abcdefgh|");
  EXPECT_EQ(text_of(store, Split::kValidation), "ij|");
  EXPECT_EQ(result.train_bytes, 18u);
  EXPECT_EQ(result.validation_bytes, 2u);
}

TEST_F(Prepare, CutsTheTailBetweenCharacters) {
  for (const double fraction : {0.1, 0.2, 0.3, 0.4, 0.5}) {
    config_.text = {folder_.write("tail.txt", "\u4e2d\u6587\u4e2d\u6587\U0001f600").string()};
    config_.validation_split = "tail";
    config_.validation_fraction = fraction;
    const TokenStore store(run().folder);
    std::string train = text_of(store, Split::kTrain),
                validation = text_of(store, Split::kValidation);
    EXPECT_NE(static_cast<unsigned char>(validation[0]) & 0xC0, 0x80) << fraction;
    train.pop_back();
    validation.pop_back();
    EXPECT_EQ(train + validation, "\u4e2d\u6587\u4e2d\u6587\U0001f600");
  }
}

TEST_F(Prepare, KeepsBytesThatAreNotUtf8WhereItCan) {
  config_.text = {folder_.write("latin.txt", "caf\xe9 caf\xe9 caf\xe9").string(),
                  folder_.write("utf8.txt", "caf\u00e9 and more of it, and more").string()};
  config_.validation_fraction = 0;
  for (const char* kind : {"bytes", "bpe"}) {
    config_.tokenizer.kind = kind;
    const PrepareResult result = run();
    EXPECT_EQ(result.invalid_skipped, 0);
    EXPECT_THAT(text_of(TokenStore(result.folder), Split::kTrain), HasSubstr("caf\xe9 caf\xe9"));
  }
  config_.tokenizer.kind = "sentencepiece";
  config_.tokenizer.path =
      (std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "tokenizers/sp_unigram.model")
          .string();
  const PrepareResult result = run();
  EXPECT_EQ(result.invalid_skipped, 1);
  EXPECT_EQ(result.documents, 1);
}

TEST_F(Prepare, TrainsOnTheTrainingSplitAlone) {
  // A word that only held-out documents have is not learnt.
  std::filesystem::remove(folder_.path() / "text/0/copy.md");
  const TokenStore bytes(run("bytes").folder);
  const std::string validation = text_of(bytes, Split::kValidation);
  for (int i = 0; i < 40; ++i) {
    const bool held_out = validation.find(fmt::format("document {} says", i)) != std::string::npos;
    folder_.write(fmt::format("text/{}/{:02}.txt", i % 3, i),
                  held_out ? "zebra zebra zebra" : "horse horse horse");
  }
  config_.tokenizer.kind = "bpe";
  config_.tokenizer.vocab_size = 300;
  const TokenStore store(run().folder);
  EXPECT_EQ(store.tokenizer().encode(" horse").size(), 1u);
  EXPECT_GT(store.tokenizer().encode(" zebra").size(), 1u);
}

TEST_F(Prepare, TakesAGivenTokenizer) {
  config_.tokenizer.kind = "bpe";
  config_.tokenizer.path =
      (std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "tokenizers/llama3.json")
          .string();
  const PrepareResult result = run();
  EXPECT_EQ(read_file(result.folder / "tokenizer.json"), read_file(config_.tokenizer.path));
  EXPECT_THAT(text_of(TokenStore(result.folder), Split::kTrain), HasSubstr("document 3 says 9\n|"));
}

TEST_F(Prepare, ReadsJsonLines) {
  std::string lines;
  std::set<std::string> texts;
  // Long enough for several pieces, so that lines lie across their borders.
  for (int i = 0; i < 900; ++i) {
    const std::string text =
        fmt::format("record {} ", i) + std::string(static_cast<size_t>(i * 37 % 11000), 'x');
    texts.insert(text);
    lines += nlohmann::json{{"id", i}, {"body", text}}.dump() + (i % 10 == 0 ? "\r\n\n" : "\n");
  }
  lines.pop_back();
  config_.text = {folder_.write("records.jsonl", lines).string()};
  config_.text_field = "body";
  const PrepareResult result = run();
  EXPECT_EQ(result.documents, 900);
  const TokenStore store(result.folder);
  std::string all = text_of(store, Split::kTrain) + text_of(store, Split::kValidation);
  std::set<std::string> found;
  for (size_t at = 0; at < all.size();) {
    const size_t end = all.find('|', at);
    found.insert(all.substr(at, end - at));
    at = end + 1;
  }
  EXPECT_EQ(found, texts);
  EXPECT_GT(result.validation_bytes, 0u);
}

TEST_F(Prepare, ReadsLinesThatBeginWhereAPieceBegins) {
  // Lines of 4 KiB: pieces are cut at whole mebibytes.
  std::string lines;
  for (int i = 0; i < 2100; ++i) {
    std::string line = fmt::format("{{\"text\": \"{:04}", i);
    line.resize(4093, 'x');
    lines += line + "\"}\n";
  }
  ASSERT_EQ(lines.size(), 2100u * 4096);
  config_.text = {folder_.write("aligned.jsonl", lines).string()};
  EXPECT_EQ(run().documents, 2100);
}

TEST_F(Prepare, NamesTheRecordThatIsWrong) {
  config_.text = {folder_.write("bad.jsonl", "{\"text\": \"fine\"}\n{\"body\": 1}\n").string()};
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("bad.jsonl:2"), HasSubstr("`body` (number)"),
                                          HasSubstr("text_field")));
  config_.text = {folder_.write("bad.jsonl", "{\"text\": \"fine\"}\n\n{\"text\"").string()};
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("bad.jsonl:3"), HasSubstr("JSON")));
  config_.text = {folder_.write("bad.jsonl", "[1]").string()};
  EXPECT_THAT(refusal(), HasSubstr("found array"));
  config_.text = {
      folder_.write("bad.jsonl", "{\"text\": \"\xff\"}\n{\"text\": \"fine\"}").string()};
  config_.validation_fraction = 0;
  EXPECT_EQ(run().invalid_skipped, 1);
}

TEST_F(Prepare, ExplainsWhatIsWrongWithItsInput) {
  config_.text = {(folder_.path() / "nothing").string()};
  EXPECT_THAT(refusal(), HasSubstr("does not exist"));
  config_.text = {(folder_.path() / "text" / "*.cpp").string()};
  EXPECT_THAT(refusal(), HasSubstr("*.cpp"));
  std::filesystem::create_directories(folder_.path() / "void");
  config_.text = {(folder_.path() / "void").string()};
  EXPECT_THAT(refusal(), HasSubstr("void"));
  config_.text = {};
  EXPECT_THAT(refusal(), HasSubstr("data.text"));
  config_.text = {folder_.write("one.txt", "one document").string()};
  EXPECT_THAT(refusal(), HasSubstr("validation_split=tail"));
  config_.text = {folder_.write("empty.txt", "").string()};
  EXPECT_THAT(refusal(), HasSubstr("no document"));
}

TEST_F(Prepare, RefusesAFolderOfSomethingElse) {
  folder_.write("out/manifest.json", "{\"name\": \"my web app\"}");
  EXPECT_THROW(run(), UserError);
  EXPECT_EQ(folder_.read("out/manifest.json"), "{\"name\": \"my web app\"}");
}

TEST_F(Prepare, ReportsProgress) {
  std::set<std::string> stages;
  uint64_t last = 0, total = 1;
  config_.tokenizer.kind = "bpe";
  prepare(config_, folder_.path() / "out", [&](const PrepareProgress& progress) {
    stages.insert(progress.stage);
    EXPECT_LE(progress.bytes_done, progress.bytes);
    EXPECT_LE(progress.documents_done, progress.documents);
    last = progress.bytes_done;
    total = progress.bytes;
  });
  EXPECT_THAT(stages,
              ::testing::UnorderedElementsAre("reading", "training the tokenizer", "tokenizing"));
  EXPECT_EQ(last, total);
}

}  // namespace
}  // namespace dovetail::data::prepare_test
