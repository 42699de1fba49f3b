// ctest-labels: threads
#include "dovetail/data/rows/row_loader.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/hash.h"
#include "temporary_folder.h"

namespace dovetail::data::row_loader_test {
namespace {

using ::testing::HasSubstr;

/// Row i of the files: label i % 2, number n = i or nothing, id i, and i % 3 tags with weights.
std::string line(int64_t i) {
  std::string tags, weights;
  for (int64_t j = 0; j < i % 3; ++j) {
    tags += fmt::format("{}tag{}", j == 0 ? "" : "|", i + j);
    weights += fmt::format("{}{}", j == 0 ? "" : "|", j + 1);
  }
  return fmt::format("{}\t{}\t{}\t{}\t{}\tuser{}\n", i % 2, i % 10 == 7 ? "" : std::to_string(i), i,
                     tags, weights, i % 5);
}

class RowLoaderTest : public ::testing::Test {
 protected:
  static constexpr int64_t kRows = 331, kTrain = 265;  // a fifth is for validation

  RowLoaderTest() {
    // Each file is a block: uneven ones, with an empty one among them.
    int64_t row = 0, number = 0;
    for (const int64_t rows : {40, 7, 100, 0, 1, 83, 100}) {
      std::string content;
      for (int64_t i = 0; i < rows; ++i) content += line(row++);
      config_.files.push_back(folder_.write(fmt::format("part{}.tsv", number++), content).string());
    }
    config_.header = false;
    config_.columns = {"y", "n", "id", "tags", "weights", "user"};
    config_.label = {"y", "n > 100"};
    config_.missing_label = "mask";
    config_.dense = {{.columns = {"n"}},
                     {.columns = {"n"}, .missing = "mean", .transform = "standard"}};
    config_.sparse = {
        {.columns = {"id"}, .ids = "integer", .num_rows = kRows},
        {.columns = {"tags"}, .num_rows = 1000, .separator = "|", .weights = "weights"}};
    config_.group = "user";
    config_.validation_fraction = 0.2;
    config_.shuffle_window = 30;
  }

  static std::vector<RowBatch> steps(const RowsConfig& config, const RowLoaderOptions& options,
                                     int64_t begin, int64_t end) {
    RowLoader loader(config, options);
    std::vector<RowBatch> out;
    for (int64_t step = begin; step < end; ++step) out.push_back(loader.step(step));
    return out;
  }

  static int64_t id_of(const RowBatch& batch, int64_t row) {
    return batch.values[row].item<int64_t>();
  }

  /// Every part of a row, looked up as the layout says.
  static std::string describe(const RowBatch& batch, int64_t b) {
    const int64_t rows = batch.labels.size(0);
    std::string text;
    for (int64_t f = 0; f < 2; ++f)
      for (int64_t i = batch.offsets[f * rows + b].item<int64_t>();
           i < batch.offsets[f * rows + b + 1].item<int64_t>(); ++i)
        text += fmt::format("{}:{}:{} ", f, batch.values[i].item<int64_t>(),
                            batch.weights[i].item<float>());
    return text + fmt::format("{} {} {} {} {}", batch.dense[b][0].item<float>(),
                              batch.dense[b][1].item<float>(), batch.labels[b][0].item<float>(),
                              batch.labels[b][1].item<float>(), batch.groups[b].item<int64_t>());
  }

  static std::vector<std::string> rows_of(const std::vector<RowBatch>& batches) {
    std::vector<std::string> rows;
    for (const RowBatch& batch : batches)
      for (int64_t b = 0; b < batch.labels.size(0); ++b) rows.push_back(describe(batch, b));
    return rows;
  }

  TemporaryFolder folder_;
  RowsConfig config_;
};

TEST_F(RowLoaderTest, GivesEachRowAsItsLineSays) {
  RowLoader loader(config_, {.seed = 3, .batch = 20});
  EXPECT_EQ(loader.num_train_rows(), kTrain);
  EXPECT_EQ(loader.num_validation_rows(), kRows - kTrain);
  double sum = 0, squares = 0, count = 0;
  for (int64_t i = 0; i < kTrain; ++i)
    if (i % 10 != 7) {
      sum += static_cast<double>(i);
      squares += static_cast<double>(i * i);
      ++count;
    }
  const double mean = sum / count, deviation = std::sqrt(squares / count - mean * mean);
  for (int64_t step = 0; step < 14; ++step) {
    const RowBatch batch = loader.step(step);
    ASSERT_EQ(batch.dense.sizes(), (std::vector<int64_t>{20, 2}));
    ASSERT_EQ(batch.labels.sizes(), (std::vector<int64_t>{20, 2}));
    ASSERT_EQ(batch.offsets.sizes(), (std::vector<int64_t>{41}));
    ASSERT_EQ(batch.offsets[40].item<int64_t>(), batch.values.size(0));
    ASSERT_EQ(batch.weights.size(0), batch.values.size(0));
    for (int64_t b = 0; b < 20; ++b) {
      const int64_t i = id_of(batch, b);
      const bool there = i % 10 != 7;
      EXPECT_EQ(batch.offsets[b].item<int64_t>(), b);
      EXPECT_EQ(batch.labels[b][0].item<float>(), static_cast<float>(i % 2));
      if (there) {
        EXPECT_EQ(batch.labels[b][1].item<float>(), i > 100 ? 1 : 0);
      } else {
        EXPECT_TRUE(std::isnan(batch.labels[b][1].item<float>()));
      }
      EXPECT_EQ(batch.dense[b][0].item<float>(), there ? static_cast<float>(i) : 0);
      EXPECT_NEAR(batch.dense[b][1].item<float>(),
                  there ? (static_cast<double>(i) - mean) / deviation : 0, 1e-6);
      EXPECT_EQ(batch.groups[b].item<int64_t>(),
                static_cast<int64_t>(xxh64(fmt::format("user{}", i % 5))));
      const int64_t first = batch.offsets[20 + b].item<int64_t>();
      ASSERT_EQ(batch.offsets[20 + b + 1].item<int64_t>() - first, i % 3);
      for (int64_t j = 0; j < i % 3; ++j) {
        EXPECT_EQ(batch.values[first + j].item<int64_t>(),
                  static_cast<int64_t>(xxh64(fmt::format("tag{}", i + j)) % 1000));
        EXPECT_EQ(batch.weights[first + j].item<float>(), static_cast<float>(j + 1));
        EXPECT_EQ(batch.weights[b].item<float>(), 1);
      }
    }
  }
}

TEST_F(RowLoaderTest, TakesEachRowOnceAnEpochWithinItsWindow) {
  const auto batches = steps(config_, {.seed = 3, .batch = 5}, 0, 2 * kTrain / 5);
  std::vector<int64_t> order;
  for (const RowBatch& batch : batches)
    for (int64_t b = 0; b < 5; ++b) order.push_back(id_of(batch, b));
  for (const int64_t epoch : {0, 1}) {
    const std::set<int64_t> seen(order.begin() + epoch * kTrain,
                                 order.begin() + (epoch + 1) * kTrain);
    EXPECT_EQ(seen.size(), static_cast<size_t>(kTrain));
    EXPECT_EQ(*seen.rbegin(), kTrain - 1);
    for (int64_t p = 0; p < kTrain; ++p)
      EXPECT_EQ(order[static_cast<size_t>(epoch * kTrain + p)] / 30, p / 30);
  }
  EXPECT_FALSE(std::equal(order.begin(), order.begin() + kTrain, order.begin() + kTrain))
      << "epochs differ";
  EXPECT_FALSE(std::is_sorted(order.begin(), order.begin() + kTrain));
  EXPECT_NE(rows_of(steps(config_, {.seed = 4, .batch = 5}, 0, 1)),
            rows_of(steps(config_, {.seed = 3, .batch = 5}, 0, 1)));
}

TEST_F(RowLoaderTest, WindowsOfOneAndOfAll) {
  config_.shuffle_window = 1;
  const auto in_order = steps(config_, {.seed = 3, .batch = 53}, 0, 6);
  for (int64_t p = 0; p < 6 * 53; ++p)
    EXPECT_EQ(id_of(in_order[static_cast<size_t>(p / 53)], p % 53), p % kTrain);
  config_.shuffle_window = 0;
  int64_t far = 0;
  const auto mixed = steps(config_, {.seed = 3, .batch = 53}, 0, 5);
  for (int64_t p = 0; p < kTrain; ++p)
    far += std::abs(id_of(mixed[static_cast<size_t>(p / 53)], p % 53) - p) > 60;
  EXPECT_GT(far, kTrain / 4);
}

/// Windows, blocks that are read again, epochs, ranks and resumption change nothing.
TEST_F(RowLoaderTest, IsAFunctionOfTheStep) {
  for (const int64_t window : {1, 30, 90, 0}) {
    config_.shuffle_window = window;
    for (const int64_t batch : {12, 700}) {
      config_.cache_bytes = int64_t{1} << 30;
      RowLoaderOptions options{.seed = 8, .batch = batch};
      const int64_t end = batch == 12 ? 60 : 3;
      const auto expected = steps(config_, options, 0, end);
      config_.cache_bytes = 0;
      EXPECT_EQ(rows_of(steps(config_, options, 0, end)), rows_of(expected))
          << "read again, window " << window;
      const auto resumed = steps(config_, options, end / 2, end);
      EXPECT_EQ(rows_of(resumed), rows_of({expected.begin() + end / 2, expected.end()}));
      for (const int world : {2, 3}) {
        options.world = world;
        std::vector<std::vector<RowBatch>> of_rank;
        for (options.rank = 0; options.rank < world; ++options.rank)
          of_rank.push_back(steps(config_, options, end / 2, end));
        for (size_t s = 0; s < of_rank[0].size(); ++s) {
          std::vector<RowBatch> parts;
          for (const auto& rank : of_rank) parts.push_back(rank[s]);
          EXPECT_EQ(rows_of(parts), rows_of({expected[s + static_cast<size_t>(end / 2)]}));
        }
        options = {.seed = 8, .batch = batch};
      }
    }
  }
}

TEST_F(RowLoaderTest, GivesThePartThatItIsTold) {
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{1} << 30}) {
    config_.cache_bytes = cache_bytes;
    const auto expected = steps(config_, {.seed = 8, .batch = 12}, 0, 6);
    RowLoader first(config_, {.seed = 8, .batch = 12, .rank = 0, .world = 2}),
        second(config_, {.seed = 8, .batch = 12, .rank = 1, .world = 2});
    for (int64_t step = 0; step < 6; ++step) {
      if (step > 0) {
        first.set_part(0, step < 4 ? 11 : 2);
        second.set_part(step < 4 ? 11 : 2, 12);
      }
      EXPECT_EQ(rows_of({first.step(step), second.step(step)}),
                rows_of({expected[static_cast<size_t>(step)]}))
          << step;
    }
  }
}

TEST_F(RowLoaderTest, GivesAnyStepInAnyOrder) {
  config_.cache_bytes = 0;
  const auto expected = steps(config_, {.seed = 8, .batch = 12}, 0, 60);
  RowLoader loader(config_, {.seed = 8, .batch = 12});
  for (const int64_t step : {59, 0, 1, 2, 31, 31, 30, 58, 4})
    EXPECT_EQ(rows_of({loader.step(step)}), rows_of({expected[static_cast<size_t>(step)]})) << step;
}

TEST_F(RowLoaderTest, ValidationIsTheLastRowsInOrder) {
  for (const int64_t cache_bytes : {int64_t{0}, int64_t{1} << 30}) {
    config_.cache_bytes = cache_bytes;
    RowLoader loader(config_, {.seed = 1, .batch = 4});
    loader.step(0);
    int64_t row = 0;
    for (const int64_t rows : {1, 0, 20, 33, 12}) {
      const RowBatch batch = loader.validation(row, row + rows);
      ASSERT_EQ(batch.labels.size(0), rows);
      for (int64_t b = 0; b < rows; ++b) EXPECT_EQ(id_of(batch, b), kTrain + row + b);
      row += rows;
    }
    EXPECT_EQ(row, loader.num_validation_rows());
    EXPECT_THAT(loader.summary(), HasSubstr(cache_bytes == 0 ? "read again" : "kept"));
  }
}

TEST_F(RowLoaderTest, LeavesOutBadRowsOrRefusesThem) {
  config_.files.push_back(
      folder_.write("bad.tsv", line(1000) + "0\tx\n" + line(5) + line(2000)).string());
  const auto refusal = [&] {
    try {
      RowLoader(config_, {});
    } catch (const UserError& e) {
      return std::string(e.what()) + " / " + e.help();
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal(), ::testing::AllOf(
                             HasSubstr("bad.tsv: row 1, column `id`: the id 1000 is out of range"),
                             HasSubstr("rows.bad_row")));
  config_.bad_row = "skip";
  config_.max_bad_rows = 2;
  EXPECT_THAT(refusal(), ::testing::AllOf(HasSubstr("bad.tsv: row 1"),
                                          HasSubstr("bad.tsv: row 2: 2 fields, not 6"),
                                          HasSubstr("bad.tsv: row 4")));
  config_.max_bad_rows = 3;
  RowLoader loader(config_, {.batch = 3});
  EXPECT_EQ(loader.statistics().bad, 3);
  EXPECT_EQ(loader.statistics().bad_rows.size(), 3u);
  EXPECT_EQ(loader.num_train_rows() + loader.num_validation_rows(), kRows + 1);
  EXPECT_EQ(
      id_of(loader.validation(loader.num_validation_rows() - 1, loader.num_validation_rows()), 0),
      5);
  EXPECT_THAT(loader.summary(), HasSubstr("3 bad left out"));
}

TEST_F(RowLoaderTest, StopsWhileItReadsAhead) {
  config_.cache_bytes = 0;
  for (int64_t i = 0; i < 20; ++i) {
    RowLoader loader(config_, {.batch = 64});
    loader.step(i);
    loader.validation(0, 10);
  }
}

TEST_F(RowLoaderTest, StatisticsAreThoseOfTheRows) {
  config_.threads = 3;
  const RowReader reader(config_);
  const RowStatistics s = scan_rows(config_, reader).statistics;
  int64_t missing = 0, validation_tags = 0, unseen = 0, tags = 0;
  double positive = 0;
  std::set<uint64_t> seen;
  for (int64_t i = 0; i < kTrain; ++i) {
    missing += i % 10 == 7;
    positive += i > 100 && i % 10 != 7;
    tags += i % 3;
    for (int64_t j = 0; j < i % 3; ++j) seen.insert(xxh64(fmt::format("tag{}", i + j)) % 1000);
  }
  for (int64_t i = kTrain; i < kRows; ++i)
    for (int64_t j = 0; j < i % 3; ++j, ++validation_tags)
      unseen += seen.count(xxh64(fmt::format("tag{}", i + j)) % 1000) == 0;
  EXPECT_EQ(s.train_rows, kTrain);
  EXPECT_EQ(s.dense[0].missing, missing);
  EXPECT_EQ(s.dense[0].count, kTrain - missing);
  EXPECT_EQ(s.dense[0].lowest, 0);
  EXPECT_EQ(s.dense[0].highest, 264);
  EXPECT_NEAR(s.label_mean[1], positive / static_cast<double>(kTrain - missing), 1e-12);
  EXPECT_EQ(s.sparse[0].distinct, kTrain);
  EXPECT_EQ(s.sparse[0].unseen, kRows - kTrain);
  EXPECT_EQ(s.sparse[1].ids, tags);
  EXPECT_EQ(s.sparse[1].distinct, static_cast<int64_t>(seen.size()));
  EXPECT_EQ(s.sparse[1].validation_ids, validation_tags);
  EXPECT_EQ(s.sparse[1].unseen, unseen);
  EXPECT_EQ(s.sparse[1].empty, (kTrain + 2) / 3);
  EXPECT_EQ(s.sparse[1].longest, 2);
  EXPECT_THAT(row_warnings(s), ::testing::Contains(HasSubstr("feature `id`: 100 %")));
}

TEST_F(RowLoaderTest, WarnsOfWhatTeachesNothing) {
  RowsConfig config;
  std::string content = "y\tz\tfew\tsame\tnothing\ta\n";
  for (int i = 0; i < 100; ++i) content += fmt::format("1\t{}\t{}\t5\t\tx\n", i % 2, i);
  config.files = {folder_.write("constant.tsv", content).string()};
  config.label = {"y", "z"};
  config.dense = {{.columns = {"same", "nothing", "few"}}};
  config.sparse = {{.columns = {"a"}}, {.columns = {"few"}}};
  const std::vector<std::string> warnings = row_warnings(RowLoader(config, {}).statistics());
  EXPECT_THAT(warnings, ::testing::ElementsAre(
                            HasSubstr("label `y` is 1"), HasSubstr("`same` is 5"),
                            HasSubstr("`nothing` is missing"), HasSubstr("feature `a` is the same"),
                            HasSubstr("feature `few`: 100 %")));
  config.label = {"y > 2"};
  EXPECT_THAT(row_warnings(RowLoader(config, {}).statistics()),
              ::testing::Contains(HasSubstr("label `y > 2` is 0")));
}

TEST_F(RowLoaderTest, NeedsARowToTrainOn) {
  RowsConfig config;
  config.files = {folder_.write("unlabelled.tsv", "y\ta\n\tx\n\ty\n").string()};
  config.label = {"y"};
  config.sparse = {{.columns = {"a"}}};
  try {
    RowLoader(config, {});
    FAIL();
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(), HasSubstr("2 have no label"));
  }
}

}  // namespace
}  // namespace dovetail::data::row_loader_test
