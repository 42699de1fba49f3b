// ctest-labels: fuzz
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/data/tokenizer.h"
#include "dovetail/data/tokenizer_json.h"
#include "fuzz.h"

namespace dovetail::tokenizer_fuzz_test {
namespace {

/// A tokenizer.json small enough that most mutations hit something other than a token's name.
std::string seed_file(const std::string& split) {
  return train_bpe({"the cat and the hat; 12 cats and 123 hats don't sit"}, 270, split);
}

TEST(TokenizerJsonFuzz, FilesAreReadOrRefused) {
  std::mt19937_64 random(23);
  const std::string seeds[] = {seed_file("gpt2"), seed_file("llama3")};
  const std::string text = "the cats don't sit; 1234 <|endoftext|>\n \xff\xe2\x80 \u4e2d";
  int64_t read = 0;
  for (int64_t i = fuzz_inputs(500); i > 0; --i) {
    const std::string input = mutated(seeds[i % 2], random);
    try {
      const auto tokenizer = make_tokenizer("bpe", input, "fuzzed.json");
      for (const int32_t id : tokenizer->encode(text)) {
        ASSERT_GE(id, 0);
        ASSERT_LT(id, tokenizer->vocab_size());
      }
      ++read;
    } catch (const UserError&) {
    }
  }
  EXPECT_GT(read, 0);
}

TEST(TokenizerJsonFuzz, StructuresAreReadOrRefused) {
  // Without the vocabulary nearly every mutation meets a rule of the format; most end as UserError before it is needed.
  std::mt19937_64 random(29);
  std::string seed = seed_file("llama3");
  const size_t vocabulary = seed.find("\"vocab\":{") + 9;
  seed.erase(vocabulary, seed.find('}', vocabulary) - vocabulary);
  for (int64_t i = fuzz_inputs(5000); i > 0; --i) {
    try {
      parse_tokenizer_json(mutated(seed, random), "fuzzed.json");
    } catch (const UserError&) {
    }
  }
}

}  // namespace
}  // namespace dovetail::tokenizer_fuzz_test
