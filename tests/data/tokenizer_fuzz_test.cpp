// ctest-labels: fuzz
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/text/sentencepiece.h"
#include "dovetail/data/text/tokenizer.h"
#include "dovetail/data/text/tokenizer_json.h"
#include "tests/fuzz.h"

namespace dovetail::data::tokenizer_fuzz_test {
namespace {

/// A tokenizer.json small enough that most mutations hit something other than a token's name.
std::string seed_file(const std::string& split) {
  return train_bpe({"the cat and the hat; 12 cats and 123 hats don't sit"}, 270, split);
}

TEST(TokenizerJsonFuzz, FilesAreReadOrRefused) {
  const std::string text = "the cats don't sit; 1234 <|endoftext|>\n \xff\xe2\x80 \u4e2d";
  test::fuzz({seed_file("gpt2"), seed_file("llama3")}, 500, 23, [&](const std::string& input) {
    const auto tokenizer = make_tokenizer("bpe", input, "fuzzed.json");
    for (const int32_t id : tokenizer->encode(text)) {
      ASSERT_GE(id, 0);
      ASSERT_LT(id, tokenizer->vocab_size());
    }
  });
}

TEST(TokenizerJsonFuzz, StructuresAreReadOrRefused) {
  // Without most of its vocabulary the file is short, so most mutations meet a rule of the format.
  std::mt19937_64 random(29);
  std::string seed = seed_file("llama3");
  const size_t vocabulary = seed.find("\"vocab\":{") + 9;
  seed.erase(vocabulary, seed.find('}', vocabulary) - vocabulary);
  for (int64_t i = test::fuzz_inputs(5000); i > 0; --i) {
    const std::string input = test::mutated(seed, random);
    try {
      parse_tokenizer_json(input, "fuzzed.json");
    } catch (const UserError&) {
      continue;
    } catch (const std::exception& e) {
      FAIL() << e.what() << "\n\"" << test::escaped(input) << "\"";
    }
  }
}

TEST(SentencePieceFuzz, ModelsAreReadOrRefused) {
  const auto model = [](const char* name) {
    return read_file(std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) / "tokenizers" /
                     name);
  };
  const std::string text = "the cats don't sit; 1234 \xff\xe2\x80 \u4e2d";
  test::fuzz({model("sp_bpe.model"), model("sp_unigram.model")}, 300, 31,
             [&](const std::string& input) {
               const auto tokenizer = sentencepiece_tokenizer(input, "fuzzed.model");
               for (const int32_t id : tokenizer->encode(text)) {
                 ASSERT_GE(id, 0);
                 ASSERT_LT(id, tokenizer->vocab_size());
               }
             });
}

TEST(SentencePieceFuzz, APieceThatBeginsWithNulIsRefused) {
  const std::string model = read_file(std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) /
                                      "tokenizers" / "sp_unigram.model");
  // A field of pieces: message of 8 bytes, piece of one NUL, score 0.
  const std::string piece("\x0a\x08\x0a\x01\x00\x15\x00\x00\x00\x00", 10);
  EXPECT_THROW(sentencepiece_tokenizer(model + piece, "nul.model"), UserError);
}

}  // namespace
}  // namespace dovetail::data::tokenizer_fuzz_test
