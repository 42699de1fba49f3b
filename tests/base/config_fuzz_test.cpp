// ctest-labels: fuzz
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/schema/schema.h"
#include "tests/base/sample_config.h"
#include "tests/fuzz.h"

namespace dovetail::config_fuzz_test {
namespace {

using test::SampleConfig;

const std::vector<std::string>& seeds() {
  static const std::vector<std::string> texts = {
      "name = \"small\"\nseed = 7\n\n[model]\nlayers = 12\nnorm = \"layernorm\"  # a comment\ntied "
      "= false\n"
      "[model.moe]\nexperts = 16\n\n[optimizer]\nlr = 6e-4\nbetas = [0.9, 0.95]\nwarmup_tokens = "
      "2e6\n",
      "[data]\ntext = ['a.txt', \"b\\u00e9.txt\"]\n[[data.phase]]\nfrom = 0.6\n"
      "mixture = [{ path = \"wiki\", weight = 0.7 }, { path = \"code\", weight = 0.3 "
      "}]\n[[data.phase]]\n"
      "[[data.phase.mixture]]\npath = '''\nmany\nlines'''\n",
      "seed = 0x7f\r\nscale = -inf\r\nmodel.layers = 1_000\r\n\"name\" = \"\"\"\\\n  folded \\t "
      "text\"\"\"\r\n"
      "optimizer = { lr = 0.5, milestones = [1, 2,\n 3] }\r\n"};
  return texts;
}

const std::vector<std::string>& tokens() {
  static const std::vector<std::string> pieces = {"[",
                                                  "]",
                                                  "[[",
                                                  "]]",
                                                  "{",
                                                  "}",
                                                  "=",
                                                  ",",
                                                  ".",
                                                  "\"",
                                                  "'",
                                                  "\"\"\"",
                                                  "'''",
                                                  "\\",
                                                  "\\u",
                                                  "\\U0010FFFF",
                                                  "\\uD800",
                                                  "#",
                                                  "\n",
                                                  "\r\n",
                                                  "\t",
                                                  " ",
                                                  "+",
                                                  "-",
                                                  "_",
                                                  "e",
                                                  "0x",
                                                  "0b",
                                                  "1e400",
                                                  "9223372036854775808",
                                                  "-9223372036854775808",
                                                  "nan",
                                                  "inf",
                                                  "true",
                                                  "2024-02-30",
                                                  "1979-05-27T07:32:00Z",
                                                  "12:61:00",
                                                  "\u00A1",
                                                  "\u00A0",
                                                  "\u3000",
                                                  "\uFEFF",
                                                  "\u2028",
                                                  "\U0001F642",
                                                  "\xFF",
                                                  "\xC0\x80",
                                                  "\xED\xA0\x80",
                                                  std::string(1, '\0'),
                                                  "\x7F",
                                                  "model",
                                                  "layers",
                                                  "data.phase",
                                                  "a.b.c.d"};
  return pieces;
}

/// A source of choices for one input.
class Choices {
 public:
  explicit Choices(uint64_t seed) : seed_(seed) {}
  size_t below(size_t bound) { return random_below(seed_, RandomStream::kTest, count_++, bound); }

 private:
  uint64_t seed_, count_ = 0;
};

void mutate(std::string& text, Choices& choose) {
  const size_t at = choose.below(text.size() + 1),
               length = choose.below(std::min<size_t>(text.size() - at, 12) + 1);
  switch (choose.below(6)) {
    case 0:
      text.insert(at, tokens()[choose.below(tokens().size())]);
      break;
    case 1:
      text.replace(at, length, tokens()[choose.below(tokens().size())]);
      break;
    case 2:
      text.erase(at, length);
      break;
    case 3:
      text.insert(choose.below(text.size() + 1), text.substr(at, length));
      break;
    case 4:
      if (at < text.size()) text[at] = static_cast<char>(choose.below(256));
      break;
    default: {
      const std::string& other = seeds()[choose.below(seeds().size())];
      text = text.substr(0, at) + other.substr(choose.below(other.size()));
    }
  }
}

// Law: an input is refused with a UserError that can be printed anywhere, or its values survive a
// write and a second read.
void expect_read_or_refused(const std::string& text, const std::vector<std::string>& overrides) {
  SampleConfig config, again;
  try {
    parse_config(config.describer(), text, "fuzz.toml", overrides);
  } catch (const UserError& error) {
    EXPECT_NO_THROW(nlohmann::json(describe_error(error)).dump());
    EXPECT_FALSE(error.place().empty());
    return;
  }
  const std::string toml = config_to_toml(config.describer());
  parse_config(again.describer(), toml, "again.toml");
  ASSERT_EQ(config_to_toml(again.describer()), toml);
}

TEST(ConfigFuzz, MutatedFiles) {
  const uint64_t inputs = static_cast<uint64_t>(test::fuzz_inputs(20'000));
  for (uint64_t i = 0; i < inputs; ++i) {
    Choices choose(i);
    std::string text = seeds()[choose.below(seeds().size())];
    for (size_t n = choose.below(5) + 1; n > 0; --n) mutate(text, choose);
    ASSERT_NO_THROW(expect_read_or_refused(text, {})) << "input " << i << ":\n" << text;
    if (HasFailure()) FAIL() << "input " << i << ":\n" << text;
  }
}

TEST(ConfigFuzz, MutatedOverrides) {
  static const std::vector<std::string> arguments = {
      "model.layers=12", "name=word", "optimizer.betas=[0.5, 0.6]",
      "data.phase=[{from=0.5, mixture=[{path='a'}]}]", "scale=-1e-3"};
  const uint64_t inputs = static_cast<uint64_t>(test::fuzz_inputs(20'000)) / 10;
  for (uint64_t i = 0; i < inputs; ++i) {
    Choices choose(mix_seed(i, 1));
    std::string argument = arguments[choose.below(arguments.size())];
    for (size_t n = choose.below(4) + 1; n > 0; --n) mutate(argument, choose);
    ASSERT_NO_THROW(expect_read_or_refused(seeds()[0], {argument}))
        << "input " << i << ": " << argument;
    if (HasFailure()) FAIL() << "input " << i << ": " << argument;
  }
}

}  // namespace
}  // namespace dovetail::config_fuzz_test
