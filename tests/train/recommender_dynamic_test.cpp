// ctest-labels: threads
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/train/trainer.h"
#include "tests/comm/ranks.h"
#include "tests/train/clicks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::recommender_dynamic_test {
namespace {

using test::Clicks;
using test::expect_same_tensors;
using test::last_checkpoint;
using test::train_alone;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

/// Tables without a fixed vocabulary, large enough for all 40 users and 30 items.
RunConfig dynamic_config(const Clicks& data, const std::string& name) {
  RunConfig config = data.config("deepfm", name);
  config.schedule.decay = "constant";
  config.rows.sparse = {{.columns = {"user"}, .max_rows = 60},
                        {.columns = {"item"}, .max_rows = 60}};
  config.recommender.grain = 16;
  config.log.tables_every = 50;
  return config;
}

/// Config with few rows, which change their keys often.
RunConfig crowded_config(const Clicks& data, const std::string& name) {
  RunConfig config = dynamic_config(data, name);
  config.train.batch = 16;
  config.rows.sparse[0].max_rows = 30;
  DynamicSection& dynamic = config.embedding.dynamic;
  dynamic.admission = "count";
  dynamic.min_count = 3;
  dynamic.max_candidates = 5;
  dynamic.eviction = "age";
  dynamic.evict_steps = 3;
  dynamic.max_age = 6;
  return config;
}

void train_on(int ranks, const RunConfig& config) {
  expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
    train(config, group, {.quiet = true});
  });
}

std::vector<nlohmann::json> tables_of(const Clicks& data, const std::string& run) {
  std::vector<nlohmann::json> lines;
  std::istringstream in(read_file(data.file(run, "tables.jsonl").string()));
  for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TEST(RecommenderDynamic, LearnsWithoutAVocabulary) {
  const Clicks data;
  train_alone(dynamic_config(data, "run"));
  EXPECT_GT(data.metrics("run").back()["auc"], 0.8);
  const io::Snapshot end = last_checkpoint(dynamic_config(data, "run"));
  EXPECT_EQ(end.tensors.at("embedding.user.keys").numel(), 40);
  EXPECT_EQ(end.tensors.at("embedding.item.wide.weight").size(0), 30);
  const auto lines = tables_of(data, "run");
  ASSERT_EQ(lines.size(), 4);
  EXPECT_EQ(lines[0]["rows"],
            2 * (40 + 30));  // each feature has a table, and one more for the wide part
  int64_t seen = 0;
  for (const auto& line : lines) seen += line["found"].get<int64_t>();
  EXPECT_EQ(lines[0]["admitted"], 2 * (40 + 30));
  EXPECT_EQ(lines[3]["admitted"], 0);
  EXPECT_LE(seen, 200 * 128 * 4);
  EXPECT_GT(seen, 198 * 128 * 4);
}

TEST(RecommenderDynamic, CountsEveryAccess) {
  const Clicks data;
  train_alone(crowded_config(data, "run"));
  for (const auto& line : tables_of(data, "run")) {
    EXPECT_LE(line["rows"], 2 * (30 + 60));
    for (const char* counter : {"not_admitted", "refused_candidates", "evicted"})
      EXPECT_GT(line[counter], 0) << counter;
    const int64_t accesses = line["found"].get<int64_t>() + line["not_admitted"].get<int64_t>() +
                             line["refused_full"].get<int64_t>() +
                             line["refused_candidates"].get<int64_t>();
    EXPECT_LE(accesses, 50 * 16 * 4);  // except accesses that admitted their keys
    EXPECT_GE(accesses + 16 * line["admitted"].get<int64_t>(), 50 * 16 * 4);
  }
}

TEST(RecommenderDynamic, TheEstimateOfMemoryKnowsMaxBytes) {
  const Clicks data;
  RunConfig config = dynamic_config(data, "run");
  config.train.steps = 2;
  for (data::SparseConfig& feature : config.rows.sparse) {
    feature.max_rows = 50000000;
    feature.max_bytes = "1MiB";
  }
  train_alone(config);
  const auto run = nlohmann::json::parse(read_file(data.file("run", "machine.json").string()));
  EXPECT_LT(run["memory"]["estimate_bytes"], 40 << 20);
  EXPECT_GT(run["memory"]["estimate_bytes"], 22 << 20);
}

TEST(RecommenderDynamic, WarnsWhereIdsFindNoRoom) {
  const Clicks data;
  const auto said = [](const RunConfig& config) {
    ::testing::internal::CaptureStderr();
    train_alone(config);
    return ::testing::internal::GetCapturedStderr();
  };
  RunConfig config = dynamic_config(data, "room");
  config.train.steps = 20;
  EXPECT_THAT(said(config), Not(HasSubstr("without a vocabulary")));
  config = dynamic_config(data, "rows");
  config.train.steps = 20;
  config.rows.sparse[0].max_rows = 10;
  EXPECT_THAT(said(config),
              AllOf(HasSubstr("since max_rows are taken"), Not(HasSubstr("max_bytes"))));
  config.run.folder = data.file("bytes", "").string();
  config.rows.sparse[0] = {.columns = {"user"}, .max_rows = 60, .max_bytes = "2KiB"};
  EXPECT_THAT(said(config),
              AllOf(HasSubstr("since max_bytes are taken"), Not(HasSubstr("max_rows"))));
  config = crowded_config(data, "candidates");
  config.train.steps = 20;
  EXPECT_THAT(said(config), HasSubstr("are not counted, since max_candidates are"));
}

TEST(RecommenderDynamic, ResumesBitForBit) {
  const Clicks data;
  RunConfig whole = crowded_config(data, "whole"), first = crowded_config(data, "parts");
  whole.train.steps = 61;
  first.train.steps = 40;
  RunConfig rest = first;
  rest.train.steps = 61;
  for (const char* eviction : {"age", "frequency"}) {
    for (RunConfig* config : {&whole, &first, &rest}) {
      config->embedding.dynamic.eviction = eviction;
      config->embedding.dynamic.keep_rows = std::string(eviction) == "age" ? 0 : 12;
      config->checkpoint.every_steps = 7;
      config->checkpoint.full_every = config == &whole ? 1 : 4;
      config->run.folder = (data.file(eviction, "") / config->run.name).string();
    }
    train_alone(whole);
    train_alone(first);
    train_alone(rest);
    const io::Snapshot expected = last_checkpoint(whole), found = last_checkpoint(rest);
    EXPECT_GT(expected.tensors.at("embedding.user.candidate_keys").numel(), 0) << eviction;
    expect_same_tensors(expected, found);
  }
}

TEST(RecommenderDynamic, RanksHaveTheRowsOfOne) {
  const Clicks data;
  const auto compare = [](const io::Snapshot& a, const io::Snapshot& b, const std::string& what) {
    ASSERT_EQ(a.tensors.size(), b.tensors.size());
    for (const auto& [name, tensor] : a.tensors) {
      const at::Tensor& other = b.tensors.at(name);
      if (!at::isFloatingType(tensor.scalar_type())) {
        EXPECT_TRUE(at::equal(tensor, other)) << what << ": " << name;
        continue;
      }
      ASSERT_EQ(tensor.sizes(), other.sizes()) << what << ": " << name;
      const double scale = tensor.abs().max().item<double>() + 1e-30;
      EXPECT_LT((tensor - other).abs().max().item<double>() / scale, 64 * 0x1p-23)
          << what << ": " << name;
    }
  };
  RunConfig one = crowded_config(data, "one");
  one.train.steps = 60;
  train_alone(one);
  for (const char* sharding : {"table", "replicated", "auto"}) {
    RunConfig two = one;
    two.run.folder = data.file(sharding, "").string();
    two.embedding.sharding = sharding;
    two.train.micro_batch = 16;
    train_on(2, two);
    compare(last_checkpoint(one), last_checkpoint(two), sharding);
  }
  RunConfig alone = dynamic_config(data, "alone"), rows = dynamic_config(data, "rows");
  rows.embedding.sharding = "row";
  alone.train.steps = 60;
  rows.train.steps = 30;
  train_alone(alone);
  train_on(3, rows);
  rows.train.steps = 60;
  rows.embedding.sharding = "table";
  train_on(2, rows);
  compare(last_checkpoint(alone), last_checkpoint(rows), "row on 3 ranks, then table on 2");
}

/// Rows of 2500 users and 400 items. The config has memory for about a tenth of the bytes of their
/// rows and moments.
class LargeDynamic : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string text = "user\titem\tsize\tclicked\n";
    for (uint64_t i = 0; i < 4000; ++i) {
      const double u = random_uniform(1, RandomStream::kTest, i);
      const uint64_t item = random_below(2, RandomStream::kTest, i, 400);
      text += fmt::format("{}\t{}\t{}\t{:d}\n", static_cast<int64_t>(2500 * u * u), item, i % 10,
                          item % 7 < 3);
    }
    write_file_atomically(data_.file("", "") / "large.tsv", text);
  }

  RunConfig config(const std::string& name, const std::string& policy = "") const {
    RunConfig config = data_.config("dlrm", name);
    config.recommender.dim = 128;
    config.recommender.grain = 16;
    config.rows.files = {(data_.file("", "") / "large.tsv").string()};
    config.rows.sparse = {{.columns = {"user"}, .ids = "integer", .max_rows = 2500},
                          {.columns = {"item"}, .max_rows = 400}};
    config.rows.shuffle_window = 100;
    config.embedding.optimizer = "adam";
    config.embedding.lr = 0.01;
    config.embedding.dynamic = {.eviction = "age", .evict_steps = 5, .max_age = 60};
    config.schedule.decay = "constant";
    config.train.steps = 120;
    config.train.batch = 16;
    config.eval.every_steps = 30;
    config.log.tables_every = 20;
    config.checkpoint = {.every_steps = 20, .keep = 9, .full_every = 3};
    if (policy.empty()) return config;
    config.embedding.memory_bytes = kMemory;
    config.embedding.policy = policy;
    config.embedding.step_rows = 24;
    if (policy == "hot") config.embedding.warmup_steps = config.embedding.refresh_steps = 10;
    return config;
  }

  std::vector<nlohmann::json> lines(const std::string& run, const char* file) const {
    std::vector<nlohmann::json> lines;
    std::istringstream in(read_file(data_.file(run, file).string()));
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }

  void expect_same_figures(const std::string& found, const std::string& expected) const {
    const auto a = data_.metrics(found), b = data_.metrics(expected);
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i)
      for (const char* figure : {"loss", "validation_loss", "auc"})
        EXPECT_EQ(a[i].value(figure, -1.0), b[i].value(figure, -1.0)) << figure;
    auto c = lines(found, "tables.jsonl"), d = lines(expected, "tables.jsonl");
    for (auto* of_run : {&c, &d})
      for (nlohmann::json& line : *of_run) line.erase("bytes");
    EXPECT_EQ(c, d);
  }

  std::vector<double> hit_rates(const std::string& run) const {
    std::vector<double> rates;
    for (const nlohmann::json& line : lines(run, "timings.jsonl"))
      rates.push_back(line["hit_rate"]);
    return rates;
  }

  static constexpr int64_t kMemory = 2900 * 128 * 3 * 4 / 10;
  const Clicks data_;
};

TEST_F(LargeDynamic, ATenthOfTheMemoryChangesNoBit) {
  train_alone(config("plain"));
  const io::Snapshot plain = last_checkpoint(config("plain"));
  EXPECT_GT(plain.tensors.at("embedding.user.keys").numel(), 300);
  EXPECT_GT(lines("plain", "tables.jsonl").back()["evicted"], 10);
  for (const std::string policy : {"hot", "lru", "lfu"}) {
    train_alone(config(policy, policy));
    expect_same_tensors(last_checkpoint(config(policy)), plain);
    expect_same_figures(policy, "plain");
    for (const nlohmann::json& line : lines(policy, "tables.jsonl")) {
      EXPECT_LE(line["bytes"], kMemory);
      EXPECT_GT(line["bytes"], kMemory / 2);
    }
    const std::vector<double> rates = hit_rates(policy);
    EXPECT_GT(std::ranges::max(rates), 0.2);
    EXPECT_LT(std::ranges::min(rates), 0.9);
    // An evaluation leaves no trace in the tiers.
    RunConfig blind = config(policy + "_blind", policy);
    blind.eval.every_steps = 0;
    train_alone(blind);
    EXPECT_EQ(hit_rates(policy + "_blind"), rates);
  }
}

TEST_F(LargeDynamic, IsResumedWithAnotherMemory) {
  train_alone(config("whole"));
  RunConfig first = config("parts", "lru");
  first.train.steps = 40;
  train_alone(first);
  train_alone(config("parts", "hot"));
  expect_same_tensors(last_checkpoint(config("parts")), last_checkpoint(config("whole")));
  // A run evaluates its last step, the 40th.
  const auto found = data_.metrics("parts"), expected = data_.metrics("whole");
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) EXPECT_EQ(found[i]["loss"], expected[i]["loss"]);
}

TEST_F(LargeDynamic, IsSpreadOverRanks) {
  for (const char* sharding : {"row", "table"}) {
    for (const char* policy : {"", "hot"}) {
      RunConfig run = config(std::string(sharding) + policy, policy);
      run.embedding.sharding = sharding;
      run.train.micro_batch = 16;
      run.checkpoint.full_every = 2;
      train_on(2, run);
    }
    const std::string plain = sharding, tiers = plain + "hot";
    expect_same_tensors(last_checkpoint(config(tiers)), last_checkpoint(config(plain)));
    expect_same_figures(tiers, plain);
    EXPECT_LT(std::ranges::min(hit_rates(tiers)), 0.9);
  }
}

TEST_F(LargeDynamic, MemoryThatIsTooSmallIsRefusedByName) {
  RunConfig run = config("small", "hot");
  run.embedding.memory_bytes = 100000;
  EXPECT_THAT([&] { train_alone(run); },
              ::testing::ThrowsMessage<UserError>(
                  AllOf(HasSubstr("memory_bytes is 100000"), HasSubstr("table \"user\""))));
}

TEST(RecommenderDynamic, RefusesWhatItCannotDo) {
  const Clicks data;
  RunConfig column = dynamic_config(data, "column");
  column.embedding.sharding = "column";
  column.embedding.optimizer = "adagrad";
  EXPECT_THAT([&] { train_alone(column); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("no fixed vocabulary")));
  RunConfig run = dynamic_config(data, "run");
  run.train.steps = 10;
  train_alone(run);
  run.train.steps = 20;
  run.rows.sparse[0].max_rows = 61;
  EXPECT_THAT([&] { train_alone(run); },
              ::testing::ThrowsMessage<UserError>(HasSubstr("max_rows was 60, is 61")));
}

}  // namespace
}  // namespace dovetail::train::recommender_dynamic_test
