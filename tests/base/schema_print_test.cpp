#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdio.h>
#include <stdlib.h>

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/schema/schema.h"
#include "tests/base/sample_config.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::schema_print_test {
namespace {

using test::SampleConfig;
using ::testing::HasSubstr;

constexpr auto kStream = RandomStream::kTest;

// Characters that a printer can get wrong.
std::string random_string(uint64_t key) {
  static const std::vector<std::string> kPieces = {
      "a",    "é", "漢", "🙂", "\"", "\\",     "'", "\n",      "\t",     "\r", "\x01",
      "\x7F", "#", "=",  "[",  "]",  "\"\"\"", " ", "\\u0041", "\u0085", ","};
  std::string out;
  const uint64_t length = random_below(key, kStream, 0, 8);
  for (uint64_t i = 1; i <= length; ++i)
    out += kPieces[random_below(key, kStream, i, kPieces.size())];
  return out;
}

// Any finite double: its bits are random, subnormals and huge ones included.
double random_double(uint64_t key) {
  for (uint64_t i = 0;; ++i) {
    const auto words = philox(key, i, 7);
    const double value = std::bit_cast<double>(uint64_t{words[0]} << 32 | words[1]);
    if (std::isfinite(value)) return value;
  }
}

SampleConfig random_config(uint64_t key) {
  SampleConfig config;
  config.name = random_string(mix_seed(key, 1));
  config.seed = std::bit_cast<int64_t>(mix_seed(key, 2));
  config.scale = random_double(key);
  config.model = {
      1 + static_cast<int64_t>(random_below(key, kStream, 3, 100)), "layernorm", key % 2 == 0, {7}};
  for (uint64_t i = 0; i < key % 4; ++i)
    config.data.text.push_back(random_string(mix_seed(key, 10 + i)));
  for (uint64_t i = 0; i < key % 3; ++i) {
    SampleConfig::Phase phase{random_uniform(key, kStream, 20 + i), {}};
    for (uint64_t j = 0; j < (key / 3 + i) % 3; ++j) {
      phase.mixture.push_back({random_string(mix_seed(key, 30 + j)),
                               std::abs(random_double(mix_seed(key, j))) + 1e-300});
    }
    config.data.phase.push_back(phase);
  }
  config.optimizer.lr = random_uniform(key, kStream, 40) + 1e-9;
  config.optimizer.betas = {random_uniform(key, kStream, 41), 0.1};
  config.optimizer.milestones.assign(key % 5, std::bit_cast<int64_t>(mix_seed(key, 3)));
  return config;
}

TEST(ConfigToToml, ParsesBackToTheSameValues) {
  for (uint64_t key = 0; key < 300; ++key) {
    SampleConfig config = random_config(key), again;
    const std::string toml = config_to_toml(config.describer());
    parse_config(again.describer(), toml, "stored.toml");
    ASSERT_EQ(again, config) << toml;
    EXPECT_EQ(std::signbit(again.scale), std::signbit(config.scale));
  }
}

TEST(ConfigToJson, ReadsBackToTheSameValues) {
  for (uint64_t key = 0; key < 300; ++key) {
    SampleConfig config = random_config(key), again;
    const std::string json = config_to_json(config.describer()).dump();
    config_from_json(again.describer(), nlohmann::json::parse(json), "config.json");
    ASSERT_EQ(again, config) << json;
  }
}

TEST(ConfigToToml, IsReadable) {
  SampleConfig config;
  config.data.phase = {{0.5, {{"wiki", 2}}}};
  EXPECT_EQ(
      config_to_toml(config.describer()),
      "name = \"run\"\nseed = 1\nscale = 1.0\n"
      "\n[model]\nlayers = 4\nnorm = \"rmsnorm\"\ntied = true\n"
      "\n[model.moe]\nexperts = 0\n"
      "\n[data]\ntext = []\n"
      "\n[[data.phase]]\nfrom = 0.5\n"
      "\n[[data.phase.mixture]]\npath = \"wiki\"\nweight = 2.0\n"
      "\n[optimizer]\nlr = 0.0006\nbetas = [0.9, 0.95]\nmilestones = []\nwarmup_tokens = 0\n");
}

TEST(ConfigPrinters, KeepWhatIsNoFiniteNumber) {
  for (const double value : {double{INFINITY}, -double{INFINITY}, double{NAN}, -0.0}) {
    SampleConfig config, from_toml, from_json;
    config.scale = value;
    parse_config(from_toml.describer(), config_to_toml(config.describer()), "a");
    const auto json = nlohmann::json::parse(config_to_json(config.describer()).dump());
    config_from_json(from_json.describer(), json, "b");
    for (const SampleConfig& again : {from_toml, from_json}) {
      EXPECT_TRUE(again.scale == value || (std::isnan(again.scale) && std::isnan(value)));
      EXPECT_EQ(std::signbit(again.scale), std::signbit(value));
    }
  }
}

// Returns the TOML files of a folder as Python's independent parser reads them, in the order of
// their names.
nlohmann::json python_reads(const std::filesystem::path& folder) {
  const char* python = ::getenv("DOVETAIL_PYTHON");
  const std::string script =  // words: off
      "import json, pathlib, sys, tomllib; "
      "print(json.dumps([tomllib.loads(p.read_bytes().decode()) for p in "
      "sorted(pathlib.Path(sys.argv[1]).iterdir())]))";
  // words: on
  const std::string command = std::string(python != nullptr ? python : "python3") + " -c '" +
                              script + "' " + folder.string();
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string out;
  char buffer[4096];
  while (const size_t n = ::fread(buffer, 1, sizeof(buffer), pipe.get())) out.append(buffer, n);
  return nlohmann::json::parse(out);
}

TEST(ConfigPrinters, PythonReadsTheSame) {
  const test::TemporaryFolder folder;
  nlohmann::json expected = nlohmann::json::array();
  for (uint64_t key = 1000; key < 1050; ++key) {
    SampleConfig config = random_config(key);
    write_file_atomically(folder / (std::to_string(key) + ".toml"),
                          config_to_toml(config.describer()));
    expected.push_back(config_to_json(config.describer()));
  }
  EXPECT_EQ(python_reads(folder.path()), expected);
}

TEST(ConfigFromJson, ErrorsNameTheFileAndTheKey) {
  const auto error_of = [](const nlohmann::json& json) -> std::string {
    SampleConfig config;
    try {
      config_from_json(config.describer(), json, "manifest.json");
    } catch (const UserError& error) {
      return describe_error(error);
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(error_of({{"model", {{"layers", 0}}}}),
              HasSubstr("model.layers = 0 is out of range\n  --> manifest.json"));
  EXPECT_THAT(error_of({{"modle", 1}}), HasSubstr("did you mean `model`?"));
  EXPECT_THAT(error_of({{"seed", "x"}}), HasSubstr("seed must be an integer"));
  EXPECT_THAT(error_of({{"seed", 18446744073709551615ULL}}), HasSubstr("seed must be an integer"));
  EXPECT_THAT(error_of({{"seed", nullptr}}), HasSubstr("seed must be an integer, not null"));
  EXPECT_THAT(error_of({{"seed", "nan"}}), HasSubstr("seed must be an integer, not the string"));
  EXPECT_THAT(error_of({{"scale", "wide"}}), HasSubstr("scale must be a number"));
  EXPECT_THAT(error_of(nlohmann::json::array()), HasSubstr("not a JSON object"));
}

TEST(ConfigReference, HasATableForEverySection) {
  SampleConfig config;
  const std::string page = config_reference(config.describer());
  for (const char* heading :
       {"## `[model]`", "## `[model.moe]`", "## `[data]`", "## `[[data.phase]]`",
        "## `[[data.phase.mixture]]`", "## `[optimizer]`"}) {
    EXPECT_THAT(page, HasSubstr(heading));
  }
  EXPECT_THAT(
      page, HasSubstr("| `layers` | integer | `4` | blocks | 1 to 10000 | Transformer blocks |\n"));
  EXPECT_THAT(page, HasSubstr("| `path` | string | (required) |"));
  EXPECT_THAT(page, HasSubstr("Decay of the moments \\| two numbers |"));
  // Every row of a table has the six cells of its head.
  std::istringstream lines(page);
  for (std::string line; std::getline(lines, line);) {
    int bars = 0;
    for (size_t i = 0; i < line.size(); ++i)
      bars += line[i] == '|' && (i == 0 || line[i - 1] != '\\');
    EXPECT_EQ(bars, line.starts_with('|') ? 7 : 0) << line;
  }
}

TEST(ExplainKey, SaysWhatTheKeyIs) {
  SampleConfig config;
  EXPECT_EQ(explain_key(config.describer(), "model.layers"),
            "model.layers: Transformer blocks\n"
            "  type     integer\n"
            "  default  4\n"
            "  allowed  1 to 10000\n"
            "  unit     blocks\n");
  EXPECT_THAT(explain_key(config.describer(), "model.norm"),
              HasSubstr("allowed  \"rmsnorm\", \"layernorm\""));
  EXPECT_THAT(explain_key(config.describer(), "data.phase.mixture.path"),
              HasSubstr("default  (required)"));
  EXPECT_EQ(explain_key(config.describer(), "model"),
            "[model]: The model\n  keys     layers, norm, tied, moe\n");
  EXPECT_EQ(explain_key(config.describer(), "data.phase"),
            "[[data.phase]]: Phases in their order\n  keys     from, mixture\n");
}

TEST(ExplainKey, NamesTheNearest) {
  SampleConfig config;
  const auto help_of = [&](const char* key) -> std::string {
    try {
      explain_key(config.describer(), key);
    } catch (const UserError& error) {
      return error.help();
    }
    return "nothing was thrown";
  };
  EXPECT_EQ(help_of("model.layrs"), "did you mean `model.layers`?");
  EXPECT_EQ(help_of("modell.layers"), "did you mean `model`?");
  EXPECT_THAT(help_of("model.zzz"), HasSubstr("known in [model]: layers"));
  for (const char* key : {"", ".", "model.", "name.more", "model.layers.more"}) {
    EXPECT_NE(help_of(key), "nothing was thrown") << key;
  }
}

}  // namespace
}  // namespace dovetail::schema_print_test
