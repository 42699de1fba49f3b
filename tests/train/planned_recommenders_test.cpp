// Recommenders whose dense part trains within a memory budget.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/train/memory/config_section.h"
#include "tests/train/planned_recommender.h"

namespace dovetail::train::planned_recommenders_test {
namespace {

using namespace test;
using ::testing::HasSubstr;

class PlannedRecommender : public ::testing::TestWithParam<std::pair<const char*, SlowTier>> {};

TEST_P(PlannedRecommender, GivesTheSameBitsWithinItsBudget) {
  const auto [model, tier] = GetParam();
  gives_the_same_bits_within_its_budget(model, tier == SlowTier::kDisk ? "0.6x" : "0.95x", tier);
}

INSTANTIATE_TEST_SUITE_P(Models, PlannedRecommender,
                         ::testing::Values(std::pair("wide_deep", SlowTier::kNone),
                                           std::pair("deepfm", SlowTier::kDisk),
                                           std::pair("dlrm", SlowTier::kDisk),
                                           std::pair("dcnv2", SlowTier::kNone),
                                           std::pair("mmoe", SlowTier::kNone)));

TEST(PlannedRecommenders, InBFloat16GiveTheSameBits) {
  const Histories data;
  for (const char* const model : {"dlrm", "dien"}) {
    RunConfig plain = config_of(model, data, std::string(model) + " plain"),
              planned = config_of(model, data, std::string(model) + " planned");
    plain.precision.recipe = planned.precision.recipe = "bf16";
    planned.memory.budget = "0.95x";
    expect_the_same_bits(plain, planned);
    expect_within_budget(planned);
  }
}

TEST(PlannedRecommenders, ResumeBitForBit) {
  const Histories data;
  const RunConfig uncut = config_of("dlrm", data, "uncut");
  RunConfig cut = config_of("dlrm", data, "cut");
  cut.memory.budget = "0.6x";
  cut.memory.folder = data.file("", "").string();
  cut.train.steps = 20;
  RunConfig first = cut;
  first.train.steps = 9;  // two of them by the plan
  RunConfig whole = uncut;
  whole.train.steps = 20;
  train_alone(whole);
  train_alone(first);
  train_alone(cut);
  expect_same_tensors(last_checkpoint(cut), last_checkpoint(whole));
  expect_within_budget(cut);
}

TEST(PlannedRecommenders, OfRowsOnTheDiskAndWithoutAVocabulary) {
  const Clicks data;
  const auto config = [&](const std::string& name) {
    RunConfig config = wide(data.config("deepfm", name));
    config.rows.sparse[0].num_rows = 0;
    config.rows.sparse[0].max_rows = 100;
    config.rows.sparse[1].num_rows = 4000;
    config.embedding.memory_bytes = 60'000;
    config.embedding.step_rows = 100;
    config.embedding.policy = "lru";
    return config;
  };
  const RunConfig plain = config("plain");
  RunConfig planned = config("planned");
  planned.memory.budget = "0.95x";
  expect_the_same_bits(plain, planned);
  expect_within_budget(planned);
}

TEST(PlannedRecommenders, SkipAStepThatIsNotFinite) {
  const Clicks data;
  std::string rows = clicks(6000);
  size_t at = 0;
  for (int line = 0; line < 3000; ++line) at = rows.find('\n', at) + 1;
  rows.insert(at, "u1\ti1\t1e30\t1\n");  // products of features overflow, in about steps 3 and 9
  write_file_atomically(data.file("", "overflow.tsv"), rows);
  const auto config = [&](const std::string& name) {
    RunConfig config = wide(data.config("dcnv2", name));
    config.rows.files = {data.file("", "overflow.tsv").string()};
    config.rows.dense[0].transform = "none";
    config.eval.every_steps = 0;
    return config;
  };
  const RunConfig plain = config("plain");
  RunConfig planned = config("planned");
  planned.memory.budget = "0.95x";
  expect_the_same_bits(plain, planned);
  int skipped = 0;
  for (const auto& line : data.metrics("planned"))
    skipped += line["step"] > 7 && line.contains("skipped");
  EXPECT_EQ(skipped, 1);
}

TEST(PlannedRecommenders, SayWhatTheyCannotDo) {
  const Clicks data;
  const auto refusal = [&](const std::function<void(RunConfig&)>& change) {
    RunConfig config = wide(data.config("deepfm"));
    config.memory.budget = "0.6x";
    change(config);
    try {
      train_alone(config);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal([](RunConfig& c) { c.memory.budget = "0.01x"; }),
              HasSubstr("below the floor"));
  RunConfig by_day = wide(data.config("deepfm"));
  by_day.memory.budget = "0.6x";
  by_day.rows.day = "size";
  try {
    check_memory(by_day);
    ADD_FAILURE() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("memory.budget does not work with rows.day = \"size\": the last step of a day"));
  }
}

}  // namespace
}  // namespace dovetail::train::planned_recommenders_test
