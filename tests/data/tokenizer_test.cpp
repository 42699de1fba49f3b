#include "dovetail/data/text/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <random>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/files/utf8.h"
#include "dovetail/data/text/split.h"

// The files are made by the PyPI packages `tokenizers` and `sentencepiece`:
// tools/make_tokenizer_fixtures.py.

namespace dovetail::data::tokenizer_test {
namespace {

using nlohmann::json;

std::filesystem::path fixture(const std::string& name) {
  const char* folder = std::getenv("DOVETAIL_TEST_DATA");
  return std::filesystem::path(folder != nullptr ? folder : "tests/data_files") / "tokenizers" /
         name;
}

json fixture_json(const std::string& name) { return json::parse(read_file(fixture(name))); }

std::string random_bytes(std::mt19937_64& random, size_t size) {
  std::string bytes(size, '\0');
  for (char& byte : bytes) byte = static_cast<char>(random());
  return bytes;
}

class Oracle : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string name() { return GetParam(); }
  static bool is_sentencepiece() { return name().starts_with("sp_"); }
  static std::unique_ptr<Tokenizer> load() {
    return load_tokenizer(fixture(name() + (is_sentencepiece() ? ".model" : ".json")));
  }
};

TEST_P(Oracle, GivesTheSameIds) {
  const auto tokenizer = load();
  const auto texts = fixture_json("texts.json").get<std::vector<std::string>>();
  const auto ids = fixture_json(name() + ".ids.json").get<std::vector<std::vector<int32_t>>>();
  ASSERT_EQ(texts.size(), ids.size());
  ASSERT_GT(texts.size(), 100u);
  for (size_t i = 0; i < texts.size(); ++i) {
    EXPECT_EQ(tokenizer->encode(texts[i]), ids[i]) << json(texts[i]).dump(-1, ' ', true);
    // Again: the second time words come from the cache.
    EXPECT_EQ(tokenizer->encode(texts[i]), ids[i]) << json(texts[i]).dump(-1, ' ', true);
  }
}

TEST_P(Oracle, DecodesToTheText) {
  if (name() == "sp_bpe") GTEST_SKIP() << "its normalization adds and removes spaces";
  const auto tokenizer = load();
  for (const auto& text : fixture_json("texts.json").get<std::vector<std::string>>()) {
    // SentencePiece writes a space as U+2581, so that this one character of a text becomes a space.
    if (is_sentencepiece() && text.find("\u2581") != std::string::npos) continue;
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text) << json(text).dump(-1, ' ', true);
  }
}

TEST_P(Oracle, ComesBackFromItsSerialization) {
  const auto tokenizer = load();
  const auto again = make_tokenizer(tokenizer->kind(), tokenizer->serialized(), "again");
  EXPECT_EQ(again->vocab_size(), tokenizer->vocab_size());
  EXPECT_EQ(again->end_of_document(), tokenizer->end_of_document());
  const std::string text = "Some text, 1234 times.\n";
  EXPECT_EQ(again->encode(text), tokenizer->encode(text));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Oracle,
                         ::testing::Values("gpt2", "llama3", "old_merges", "ignore_merges",
                                           "sp_bpe", "sp_unigram"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ByteLevelBpe, KeepsAnyBytes) {
  std::mt19937_64 random(3);
  for (const char* name : {"gpt2.json", "llama3.json"}) {
    const auto tokenizer = load_tokenizer(fixture(name));
    for (size_t size = 0; size < 300; ++size) {
      const std::string bytes = random_bytes(random, size);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(bytes)), bytes);
    }
  }
}

TEST(ByteLevelBpe, MergesALongWordInReasonableTime) {
  const auto tokenizer = load_tokenizer(fixture("gpt2.json"));
  const std::string word(1 << 20, 'a');
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(word)), word);
}

TEST(ByteLevelBpe, KnowsItsSpecialTokens) {
  const auto tokenizer = load_tokenizer(fixture("llama3.json"));
  ASSERT_GE(tokenizer->end_of_document(), 0);
  EXPECT_EQ(tokenizer->encode("<|endoftext|>"), std::vector<int32_t>{tokenizer->end_of_document()});
  EXPECT_EQ(tokenizer->decode({tokenizer->end_of_document()}), "<|endoftext|>");
  EXPECT_EQ(tokenizer->kind(), "bpe");
}

TEST(CharacterClasses, AreThoseOfTheRegularExpressions) {
  const json classes = fixture_json("classes.json");
  std::vector<CharacterClass> expected(0x110000, CharacterClass::kOther);
  const auto for_runs = [&](const char* name, const auto& visit) {
    const auto bounds = classes.at(name).get<std::vector<int32_t>>();
    for (size_t i = 0; i < bounds.size(); i += 2)
      for (int32_t code = bounds[i]; code <= bounds[i + 1]; ++code)
        visit(static_cast<size_t>(code));
  };
  for_runs("letter", [&](size_t code) { expected[code] = CharacterClass::kLetter; });
  for_runs("number", [&](size_t code) { expected[code] = CharacterClass::kNumber; });
  for_runs("space", [&](size_t code) { expected[code] = CharacterClass::kSpace; });
  // Only what all versions of Unicode at hand know; a newer one adds characters.
  size_t compared = 0;
  for_runs("compared", [&](size_t code) {
    ++compared;
    EXPECT_EQ(class_of(static_cast<int32_t>(code)), expected[code]) << "U+" << std::hex << code;
  });
  EXPECT_GT(compared, 140000u);
}

TEST(Utf8, RefusesWhatIsNotACharacter) {
  EXPECT_TRUE(is_valid_utf8("a\u00e9\u4e2d\U0001f600"));
  // Lone continuation, truncated, overlong, surrogate, past U+10FFFF.
  for (const char* bad :
       {"\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\xff"}) {
    EXPECT_FALSE(is_valid_utf8(bad));
    EXPECT_EQ(character_at(bad, 0).length, 1u);
  }
}

TEST(Utf8, MakesAnyBytesValid) {
  EXPECT_EQ(replace_invalid_utf8("a\u00e9\u4e2d"), "a\u00e9\u4e2d");
  EXPECT_EQ(replace_invalid_utf8("a\xff\xe4\xb8!"), "a\uFFFD\uFFFD\uFFFD!");
  EXPECT_EQ(replace_invalid_utf8(""), "");
}

/// Vocabulary and merges, without the token that ends a document.
json learned(const std::string& tokenizer_json) {
  json model = json::parse(tokenizer_json).at("model");
  model.at("vocab").erase("<|endoftext|>");
  return {{"vocab", model.at("vocab")}, {"merges", model.at("merges")}};
}

class TrainBpe : public ::testing::TestWithParam<const char*> {};

TEST_P(TrainBpe, LearnsWhatTheTrainerOfHuggingFaceLearns) {
  const std::string split = GetParam();
  const std::string text = read_file(fixture("training.txt"));
  EXPECT_EQ(learned(train_bpe({text}, 501, split)), fixture_json("trained_" + split + ".json"));
}

TEST_P(TrainBpe, DependsOnTheWordsAlone) {
  const std::string text = read_file(fixture("training.txt"));
  std::vector<std::string_view> lines;
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    lines.push_back(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  const std::string trained = train_bpe(lines, 400, GetParam());
  std::reverse(lines.begin(), lines.end());
  EXPECT_EQ(train_bpe(lines, 400, GetParam()), trained);
}

TEST_P(TrainBpe, MakesATokenizerThatKeepsText) {
  const std::string text = read_file(fixture("training.txt"));
  const auto tokenizer = make_tokenizer("bpe", train_bpe({text}, 600, GetParam()), "trained");
  EXPECT_EQ(tokenizer->vocab_size(), 600);
  EXPECT_EQ(tokenizer->end_of_document(), 599);
  const auto ids = tokenizer->encode(text);
  EXPECT_LT(ids.size(), text.size() / 2);
  EXPECT_EQ(tokenizer->decode(ids), text);
}

INSTANTIATE_TEST_SUITE_P(Splits, TrainBpe, ::testing::Values("gpt2", "llama3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(TrainBpe, StopsWhenNoPairIsLeft) {
  const auto tokenizer = make_tokenizer("bpe", train_bpe({"abc"}, 1000, "gpt2"), "trained");
  EXPECT_EQ(tokenizer->vocab_size(), 256 + 2 + 1);
  EXPECT_EQ(make_tokenizer("bpe", train_bpe({}, 1000, "gpt2"), "trained")->vocab_size(), 257);
}

TEST(TrainBpe, RefusesAVocabularyWithoutRoomForBytes) {
  EXPECT_THROW(train_bpe({"text"}, 256, "gpt2"), UserError);
  EXPECT_THROW(train_bpe({"text"}, 300, "gpt5"), UserError);
}

TEST(TrainSentencePiece, MakesATokenizerThatKeepsText) {
  const std::string text = read_file(fixture("training.txt"));
  const auto tokenizer =
      make_tokenizer("sentencepiece", train_sentencepiece({text}, 450), "trained");
  EXPECT_LE(tokenizer->vocab_size(), 450);
  EXPECT_GE(tokenizer->end_of_document(), 0);
  EXPECT_EQ(tokenizer->kind(), "sentencepiece");
  const std::string other = text + "\n\n  \tnever seen: \U0001f600 \u0e01\r\n  ";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(other)), other);
}

TEST(TrainSentencePiece, SaysWhenThereIsTooLittleText) {
  EXPECT_THROW(train_sentencepiece({}, 450), UserError);
}

TEST(Bytes, AreTheirOwnIds) {
  const auto tokenizer = bytes_tokenizer();
  EXPECT_EQ(tokenizer->vocab_size(), 257);
  EXPECT_EQ(tokenizer->end_of_document(), 256);
  EXPECT_EQ(tokenizer->encode("a\xff\n"), (std::vector<int32_t>{97, 255, 10}));
  EXPECT_EQ(tokenizer->decode({97, 256, 255}), "a\xff");
  EXPECT_THROW(tokenizer->decode({257}), InternalError);
}

/// The error for a tokenizer.json that is `gpt2.json` after `change`.
template <class Change>
std::string refusal(Change change) {
  json description = fixture_json("gpt2.json");
  change(description);
  try {
    make_tokenizer("bpe", description.dump(), "changed.json");
  } catch (const UserError& e) {
    EXPECT_EQ(e.place(), "changed.json");
    EXPECT_FALSE(e.help().empty());
    return e.what();
  }
  return "accepted";
}

TEST(TokenizerJson, NamesWhatItDoesNotSupport) {
  using ::testing::HasSubstr;
  EXPECT_EQ(refusal([](json&) {}), "accepted");
  EXPECT_THAT(refusal([](json& d) { d["normalizer"] = {{"type", "NFC"}}; }), HasSubstr("NFC"));
  EXPECT_THAT(refusal([](json& d) { d["truncation"] = {{"max_length", 5}}; }),
              HasSubstr("truncation"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["type"] = "WordPiece"; }), HasSubstr("WordPiece"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["dropout"] = 0.1; }), HasSubstr("dropout"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["unk_token"] = "?"; }), HasSubstr("unk_token"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["byte_fallback"] = true; }),
              HasSubstr("byte_fallback"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["end_of_word_suffix"] = "</w>"; }),
              HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(refusal([](json& d) { d["pre_tokenizer"] = {{"type", "Metaspace"}}; }),
              HasSubstr("Metaspace"));
  EXPECT_THAT(refusal([](json& d) { d["pre_tokenizer"]["add_prefix_space"] = true; }),
              HasSubstr("add_prefix_space"));
  EXPECT_THAT(refusal([](json& d) { d["pre_tokenizer"]["use_regex"] = false; }),
              HasSubstr("use_regex"));
  EXPECT_THAT(refusal([](json& d) { d["decoder"]["type"] = "Metaspace"; }), HasSubstr("decoder"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][0]["lstrip"] = true; }), HasSubstr("lstrip"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][0]["id"] = 5; }), HasSubstr("5"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][0]["id"] = 1000000000; }),
              HasSubstr("1000000000"));
  EXPECT_THAT(refusal([](json& d) { d["added_tokens"][0]["content"] = ""; }),
              HasSubstr("without content"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["vocab"].erase("a"); }), HasSubstr("byte 0x61"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["vocab"]["two words"] = 700; }), HasSubstr("700"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["merges"].push_back("a b c"); }),
              HasSubstr("not a pair"));
  EXPECT_THAT(refusal([](json& d) { d["model"]["merges"].push_back({"a", "never"}); }),
              HasSubstr("never"));
  const std::string other = fixture_json("llama3.json")["pre_tokenizer"].dump();
  json changed = json::parse(other);
  changed["pretokenizers"][0]["pattern"]["Regex"] = "\\w+";
  EXPECT_THAT(refusal([&](json& d) { d["pre_tokenizer"] = changed; }), HasSubstr("\\w+"));
}

TEST(TokenizerJson, TakesThePostProcessorForWhatItIs) {
  EXPECT_EQ(refusal([](json& d) {
              d["post_processor"] = {{"type", "ByteLevel"}, {"trim_offsets", false}};
            }),
            "accepted");
}

TEST(LoadTokenizer, TellsTheKindsApart) {
  EXPECT_EQ(load_tokenizer(fixture("gpt2.json"))->kind(), "bpe");
  EXPECT_EQ(load_tokenizer(fixture("sp_bpe.model"))->kind(), "sentencepiece");
  EXPECT_THROW(load_tokenizer(fixture("training.txt")), UserError);
  EXPECT_THROW(load_tokenizer(fixture("absent.json")), UserError);
  EXPECT_THROW(make_tokenizer("words", "", "x"), UserError);
}

TEST(SplitPattern, CutsWhereTheRegularExpressionsCut) {
  const json splits = fixture_json("splits.json");
  auto texts = fixture_json("texts.json").get<std::vector<std::string>>();
  for (const json& text : splits.at("more_texts")) texts.push_back(text.get<std::string>());
  for (const char* pattern : {"gpt2", "llama3"}) {
    const auto expected = splits.at(pattern).get<std::vector<std::vector<size_t>>>();
    ASSERT_EQ(expected.size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      std::vector<size_t> lengths;
      for (std::string_view rest = texts[i]; !rest.empty(); rest.remove_prefix(lengths.back()))
        lengths.push_back(first_word(rest, split_pattern(pattern)));
      EXPECT_EQ(lengths, expected[i]) << pattern << json(texts[i]).dump(-1, ' ', true);
    }
  }
}

TEST(SplitPattern, AlwaysTakesSomething) {
  std::mt19937_64 random(5);
  for (const SplitPattern pattern : {SplitPattern::kGpt2, SplitPattern::kLlama3})
    for (int i = 0; i < 2000; ++i) {
      std::string text(1 + random() % 12, '\0');
      for (char& c : text) c = "a1 \n\r'.\t\xc2\xa0\xe2\x80\xff"[random() % 12];
      for (std::string_view rest = text; !rest.empty();) {
        const size_t length = first_word(rest, pattern);
        ASSERT_GT(length, 0u);
        ASSERT_LE(length, rest.size());
        rest.remove_prefix(length);
      }
    }
}

}  // namespace
}  // namespace dovetail::data::tokenizer_test
