#include "dovetail/base/schema/schema.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "tests/base/sample_config.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::schema_test {
namespace {

using test::SampleConfig;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Overrides = std::vector<std::string>;

SampleConfig parsed(const std::string& toml, const Overrides& overrides = {}) {
  SampleConfig config;
  parse_config(config.describer(), toml, "run.toml", overrides);
  return config;
}

// The error as the command prints it.
std::string error_of(const std::string& toml, const Overrides& overrides = {}) {
  try {
    parsed(toml, overrides);
  } catch (const UserError& error) {
    return describe_error(error);
  }
  return "nothing was thrown";
}

TEST(ParseConfig, AnEmptyFileIsTheDefaults) { EXPECT_EQ(parsed(""), SampleConfig{}); }

TEST(ParseConfig, EveryKindOfKey) {
  const SampleConfig config = parsed(R"(
name = "small \"mixture\""
seed = -7
scale = 3
[model]
layers = 12
norm = "layernorm"
tied = false
[model.moe]
experts = 16
[data]
text = ["a.txt", 'b\*.txt']
[[data.phase]]
mixture = [{ path = "wiki", weight = 0.7 }, { path = "code", weight = 0.3 }]
[[data.phase]]
from = 0.6
[[data.phase.mixture]]
path = "curated"
[optimizer]
lr = 1e-3
betas = [0, 0.99]
milestones = [1, 2e3, 0x10]
warmup_tokens = 2e6
)");
  EXPECT_EQ(config.name, "small \"mixture\"");
  EXPECT_EQ(config.seed, -7);
  EXPECT_EQ(config.scale, 3.0);
  EXPECT_EQ(config.model, (SampleConfig::Model{12, "layernorm", false, {16}}));
  EXPECT_THAT(config.data.text, ElementsAre("a.txt", "b\\*.txt"));
  ASSERT_EQ(config.data.phase.size(), 2U);
  EXPECT_THAT(config.data.phase[0].mixture,
              ElementsAre(SampleConfig::Source{"wiki", 0.7}, SampleConfig::Source{"code", 0.3}));
  EXPECT_EQ(config.data.phase[1], (SampleConfig::Phase{0.6, {{"curated", 1.0}}}));
  EXPECT_EQ(config.optimizer.lr, 1e-3);
  EXPECT_THAT(config.optimizer.betas, ElementsAre(0.0, 0.99));
  EXPECT_THAT(config.optimizer.milestones, ElementsAre(1, 2000, 16));
  EXPECT_EQ(config.optimizer.warmup_tokens, 2'000'000);
}

TEST(ParseConfig, AStringIsAListOfOne) {
  EXPECT_THAT(parsed("data.text = 'a.txt'").data.text, ElementsAre("a.txt"));
}

TEST(ParseConfig, ListsReplaceWhatWasThere) {
  SampleConfig config;
  config.data.phase.resize(3);
  config.data.text = {"a", "b"};
  parse_config(config.describer(), "[data]\ntext = []\n[[data.phase]]\nfrom = 0.5", "run.toml");
  EXPECT_TRUE(config.data.text.empty());
  EXPECT_EQ(config.data.phase, (std::vector<SampleConfig::Phase>{{0.5, {}}}));
  parse_config(config.describer(), "", "run.toml");
  EXPECT_EQ(config.data.phase.size(), 1U);
  parse_config(config.describer(), "data.phase = []", "run.toml");
  EXPECT_TRUE(config.data.phase.empty());
}

TEST(ParseConfig, IntegersToTheirLimits) {
  EXPECT_EQ(parsed("seed = 9223372036854775807").seed, INT64_MAX);
  EXPECT_EQ(parsed("seed = -9223372036854775808").seed, INT64_MIN);
  EXPECT_EQ(parsed("seed = -9223372036854775808.0").seed, INT64_MIN);
  EXPECT_EQ(parsed("seed = 1e18").seed, 1'000'000'000'000'000'000);
  for (const char* value : {"9223372036854775808.0", "1e300", "inf", "nan", "1.5"}) {
    EXPECT_THAT(error_of(std::string("seed = ") + value), HasSubstr("seed must be an integer"))
        << value;
  }
}

TEST(ConfigErrors, UnknownKey) {
  EXPECT_EQ(error_of("[model]\nlayers = 2\n\n[precison]\nrecipe = 1"),
            "error: unknown key `precison` in [root]\n"
            "  --> run.toml:4:2\n"
            "   |\n"
            " 4 | [precison]\n"
            "   |  ^^^^^^^^ known here: name, seed, scale, model, data, optimizer");
  EXPECT_EQ(error_of("[model]\n  layres = 2"),
            "error: unknown key `layres` in [model]\n"
            "  --> run.toml:2:3\n"
            "   |\n"
            " 2 |   layres = 2\n"
            "   |   ^^^^^^ did you mean `layers`?");
}

TEST(ConfigErrors, UnknownKeyThatBelongsElsewhere) {
  EXPECT_THAT(error_of("lr = 1e-3"), HasSubstr("unknown key `lr` in [root]"));
  EXPECT_THAT(error_of("lr = 1e-3"), HasSubstr("there is a `optimizer.lr`"));
}

TEST(ConfigErrors, TheFirstMistakeOfTheFileIsNamed) {
  EXPECT_THAT(error_of("zebra = 1\nape = 2"), HasSubstr("`zebra`"));
}

TEST(ConfigErrors, PointToDottedQuotedInlineAndNestedKeys) {
  EXPECT_THAT(error_of("model.layerz = 2"),
              HasSubstr("run.toml:1:7\n   |\n 1 | model.layerz = 2\n   |       ^^^^^^ "));
  EXPECT_THAT(error_of("\"nam\" = 2"), HasSubstr("run.toml:1:1"));
  EXPECT_THAT(
      error_of("[model.moo]\nexperts = 2"),
      HasSubstr("run.toml:1:8\n   |\n 1 | [model.moo]\n   |        ^^^ did you mean `moe`?"));
  const std::string in_list = error_of("data.phase = [\n  { from = 0.1 },\n  { form = 0.2 },\n]");
  EXPECT_THAT(in_list, HasSubstr("unknown key `form` in [data.phase[1]]"));
  EXPECT_THAT(
      in_list,
      HasSubstr("run.toml:3:5\n   |\n 3 |   { form = 0.2 },\n   |     ^^^^ did you mean `from`?"));
}

TEST(ConfigErrors, WrongType) {
  EXPECT_EQ(error_of("[model]\nlayers = \"many\""),
            "error: model.layers must be an integer, not the string \"many\"\n"
            "  --> run.toml:2:10\n"
            "   |\n"
            " 2 | layers = \"many\"\n"
            "   |          ^^^^^^ for example: layers = 4");
  EXPECT_THAT(error_of("seed = '" + std::string(59, 'a') + "éé'"),
              HasSubstr(std::string(59, 'a') + "...\""));
  EXPECT_THAT(error_of("model.tied = 1"),
              HasSubstr("model.tied must be a bool, not the integer 1"));
  EXPECT_THAT(error_of("name = 1"), HasSubstr("name must be a string, not the integer 1"));
  EXPECT_THAT(error_of("scale = true"), HasSubstr("scale must be a number, not true"));
  EXPECT_THAT(error_of("scale = 2024-01-01"),
              HasSubstr("scale must be a number, not a date or time"));
  EXPECT_THAT(error_of("seed = [1]"), HasSubstr("seed must be an integer, not a list of 1"));
  EXPECT_THAT(error_of("seed = {a = 1}"), HasSubstr("seed must be an integer, not a table"));
  EXPECT_THAT(error_of("optimizer.betas = 0.9"),
              HasSubstr("optimizer.betas must be a list of numbers"));
  EXPECT_THAT(error_of("optimizer.milestones = [1, 'x']"), HasSubstr("run.toml:1:28"));
  EXPECT_THAT(error_of("data.text = ['a', 2]"), HasSubstr("data.text[1] must be a string"));
  EXPECT_THAT(error_of("model = 3"), HasSubstr("model must be a table, not the integer 3"));
  EXPECT_THAT(error_of("[[model]]\nlayers = 3"),
              HasSubstr("model must be a table, not a list of 1"));
  EXPECT_THAT(error_of("[data.phase]\nfrom = 0.1"),
              HasSubstr("data.phase must be a list of tables, not a table"));
  EXPECT_THAT(error_of("[data.phase]\nfrom = 0.1"), HasSubstr("[[data.phase]]"));
  EXPECT_THAT(error_of("data.phase = [1]"), HasSubstr("data.phase must be a list of tables"));
}

TEST(ConfigErrors, OutOfRange) {
  EXPECT_EQ(error_of("[model]\nlayers = 10001"),
            "error: model.layers = 10001 is out of range\n"
            "  --> run.toml:2:10\n"
            "   |\n"
            " 2 | layers = 10001\n"
            "   |          ^^^^^ allowed: 1 to 10000 blocks");
  EXPECT_THAT(error_of("optimizer.lr = 0"), HasSubstr("allowed: above 0, at most 1"));
  EXPECT_THAT(error_of("optimizer.lr = nan"), HasSubstr("out of range"));
  EXPECT_THAT(error_of("optimizer.betas = [0.9, 1.5]"),
              HasSubstr("optimizer.betas[1] = 1.5 is out of range"));
  EXPECT_THAT(error_of("optimizer.warmup_tokens = -1"), HasSubstr("allowed: at least 0 tokens"));
  EXPECT_EQ(parsed("model.layers = 1\noptimizer.betas = [0, 1]").model.layers, 1);
  EXPECT_EQ(parsed("model.layers = 10000\noptimizer.lr = 1.0").optimizer.lr, 1.0);
  EXPECT_EQ(parsed("scale = -inf").scale, -INFINITY);
}

TEST(ConfigErrors, Choices) {
  EXPECT_THAT(error_of("model.norm = 'rmsnrom'"), HasSubstr("did you mean \"rmsnorm\"?"));
  EXPECT_THAT(error_of("model.norm = 'batch'"),
              HasSubstr("choose one of \"rmsnorm\", \"layernorm\""));
}

TEST(ConfigErrors, MissingRequiredKey) {
  const std::string error = error_of("[[data.phase]]\n[[data.phase.mixture]]\nweight = 1");
  EXPECT_THAT(error, HasSubstr("data.phase[0].mixture[0].path is missing\n  --> run.toml:2:1"));
  EXPECT_THAT(error, HasSubstr("Folder of token shards (string)"));
  struct Needed {
    std::string text;
    void describe(Section& s) { s.value("text", text, "Files").required(); }
  };
  struct Outer {
    Needed data;
    void describe(Section& s) { s.section("data", data, "Data"); }
  } outer;
  const Describe describe = [&](Section& s) { outer.describe(s); };
  EXPECT_THROW(parse_config(describe, "", "run.toml"), UserError);
  parse_config(describe, "", "run.toml", {"data.text=x"});
  EXPECT_EQ(outer.data.text, "x");
}

TEST(ConfigErrors, Syntax) {
  for (const char* toml : {"a = ", "[model", "name = \"open", "seed = 1\nseed = 2", "name = word",
                           "\xFF\xFE", "a = 1 b = 2"}) {
    const std::string error = error_of(toml);
    EXPECT_THAT(error, HasSubstr("this is not TOML")) << toml;
    EXPECT_THAT(error, HasSubstr("--> run.toml:")) << toml;
  }
}

TEST(ConfigErrors, OtherBlanksAndLettersInKeysAreRefusedNotUndefined) {
  for (const char* toml : {"a\u00A1 = 1", "\u00A1 = 1", "\u3041 = 1", "a = \u00A1", "\u2070 = 1",
                           "\uFEFE = 1", "[\u00AD]"}) {
    EXPECT_THAT(error_of(toml), HasSubstr("this is not TOML")) << toml;
  }
}

TEST(ConfigErrors, AbsurdInputEndsInAnError) {
  const auto nested = [](const std::string& segment, int depth) {
    std::string header = "[a";
    for (int i = 0; i < depth; ++i) header += "." + segment;
    return header + "]\n";
  };
  EXPECT_THAT(error_of(nested("a", 150)), HasSubstr("unknown key `a`"));
  EXPECT_THAT(error_of(nested("a", 8000)), HasSubstr("this line has more than 200 dots"));
  EXPECT_THAT(error_of(nested("\",\"", 4000)), HasSubstr("unknown key `a`"));
  EXPECT_THAT(error_of("", {"a=" + std::string(5000, '.')}), HasSubstr("unknown key `a`"));
  EXPECT_THAT(error_of(std::string(20'000, 'a') + " = 1"), HasSubstr("this line has 20004 bytes"));
  EXPECT_THAT(error_of("a = " + std::string(1000, '[')), HasSubstr("this is not TOML"));
}

TEST(Overrides, ReplaceTheFileAndTheLastWins) {
  const std::string toml = "[model]\nlayers = 2\n[optimizer]\nbetas = [0.1, 0.2]\n";
  const SampleConfig config =
      parsed(toml, {"model.layers=3", "model.layers=5", "optimizer.betas=[0.5,0.6]",
                    "model.moe.experts = 2e1", "scale=-1e-3"});
  EXPECT_EQ(config.model.layers, 5);
  EXPECT_EQ(config.model.moe.experts, 20);
  EXPECT_THAT(config.optimizer.betas, ElementsAre(0.5, 0.6));
  EXPECT_EQ(config.scale, -1e-3);
}

TEST(Overrides, WordsAreStrings) {
  const auto name = [](const std::string& value) { return parsed("", {"name=" + value}).name; };
  EXPECT_EQ(name("word"), "word");
  EXPECT_EQ(name("two words"), "two words");
  EXPECT_EQ(name("\"quoted # text\""), "quoted # text");
  EXPECT_EQ(name("'a=b'"), "a=b");
  EXPECT_EQ(name("a=b"), "a=b");
  EXPECT_EQ(name("7"), "7");
  EXPECT_EQ(name("007"), "007");
  EXPECT_EQ(name("1e3"), "1e3");
  EXPECT_EQ(name("true"), "true");
  EXPECT_EQ(name("2024-01-01"), "2024-01-01");
  EXPECT_EQ(name("../shared/a b.txt"), "../shared/a b.txt");
  EXPECT_EQ(name("é"), "é");
  EXPECT_EQ(name(""), "");
  EXPECT_EQ(parsed("", {"model.tied=false"}).model.tied, false);
  EXPECT_THAT(parsed("", {"data.text=../a.txt"}).data.text, ElementsAre("../a.txt"));
  EXPECT_THAT(parsed("", {"data.text=[\"a\", 'b']"}).data.text, ElementsAre("a", "b"));
}

TEST(Overrides, SetWholeLists) {
  const SampleConfig config =
      parsed("[[data.phase]]\nfrom = 0.1\n", {"data.phase=[{from=0.5}, {from=0.7}]"});
  ASSERT_EQ(config.data.phase.size(), 2U);
  EXPECT_EQ(config.data.phase[1].from, 0.7);
}

TEST(Overrides, ErrorsPointToTheArgument) {
  EXPECT_EQ(error_of("", {"model.layres=3"}),
            "error: unknown key `layres` in [model]\n  --> --set model.layres=3\nhelp: did you "
            "mean `layers`?");
  EXPECT_EQ(error_of("", {"modle.layers=3"}),
            "error: unknown key `modle` in [root]\n  --> --set modle.layers=3\nhelp: did you mean "
            "`model`?");
  EXPECT_THAT(error_of("", {"model.layers=many"}),
              HasSubstr("not the string \"many\"\n  --> --set model.layers=many"));
  EXPECT_THAT(error_of("", {"model.layers=0"}), HasSubstr("model.layers = 0 is out of range"));
  EXPECT_THAT(error_of("", {"model.layers"}), HasSubstr("has no `=`"));
  for (const char* argument : {"=3", ".a=3", "model.=3", "model..layers=3"}) {
    EXPECT_THAT(error_of("", {argument}), HasSubstr("has an empty key")) << argument;
  }
  EXPECT_THAT(error_of("name = 'x'", {"name.layers=3"}), HasSubstr("`name` is not a section"));
  EXPECT_THAT(error_of("[[data.phase]]", {"data.phase.from=0.1"}),
              HasSubstr("`data.phase` is a list"));
  EXPECT_THAT(error_of("", {"optimizer.betas=[0.1"}), HasSubstr("this value is not TOML"));
  EXPECT_THAT(error_of("", {"name=\"open"}), HasSubstr("this value is not TOML"));
  EXPECT_THAT(error_of("", {"name=a\nseed = 3"}), HasSubstr("control characters"));
  EXPECT_THAT(error_of("", {"name=\xFF"}), HasSubstr("not UTF-8"));
  EXPECT_THAT(error_of("", {std::string(2000, 'a') + "=1"}), HasSubstr("too long"));
}

TEST(LoadConfig, ReadsAFile) {
  const test::TemporaryFolder folder;
  write_file_atomically(folder / "run.toml", "seed = 5");
  SampleConfig config;
  load_config(config.describer(), folder / "run.toml", {"scale=2"});
  EXPECT_EQ(config.seed, 5);
  EXPECT_EQ(config.scale, 2.0);
  EXPECT_THROW(load_config(config.describer(), folder / "none.toml"), UserError);
}

TEST(Declaration, RefusesTheSameKeyTwice) {
  int64_t a = 0;
  const Describe twice = [&](Section& s) {
    s.value("a", a, "first");
    s.value("a", a, "second");
  };
  EXPECT_THROW(parse_config(twice, "", "run.toml"), InternalError);
}

TEST(NearestWord, FindsWhatWasMeant) {
  const std::vector<std::string> known = {"precision", "layers", "lr", "warmup_tokens", "min_lr"};
  EXPECT_EQ(nearest_word("precison", known), "precision");
  EXPECT_EQ(nearest_word("layesr", known), "layers");
  EXPECT_EQ(nearest_word("LR", known), "lr");
  EXPECT_EQ(nearest_word("min-lr", known), "min_lr");
  EXPECT_EQ(nearest_word("warmup", known), "warmup_tokens");
  EXPECT_EQ(nearest_word("optimizer", known), "");
  EXPECT_EQ(nearest_word("", known), "");
  EXPECT_EQ(nearest_word("x", {}), "");
  EXPECT_EQ(nearest_word(std::string(100'000, 'x'), known), "");
}

}  // namespace
}  // namespace dovetail::schema_test
