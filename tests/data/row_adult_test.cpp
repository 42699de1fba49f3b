// The UCI Adult table, if it lies beside the repository: the config says all that its columns need.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "dovetail/base/hash.h"
#include "dovetail/data/rows/row_loader.h"

namespace dovetail::data::row_adult_test {
namespace {

constexpr const char* kConfig = R"(
[rows]
label = "label"
validation_fraction = 0.1

[[rows.dense]]
columns = ["I_age", "I_ednum", "I_hours"]
transform = "standard"

[[rows.dense]]
columns = ["I_gain", "I_loss"]
transform = "log1p"

[[rows.sparse]]
columns = "C_workclass"
num_rows = 64
missing = "value"

[[rows.sparse]]
columns = "C_education"
num_rows = 64

[[rows.sparse]]
columns = "C_occupation"
num_rows = 64
missing = "value"

[[rows.sparse]]
columns = ["C_education", "C_occupation"]
num_rows = 1000
missing = "value"

[[rows.sparse]]
columns = "C_ageb"
ids = "integer"
num_rows = 32
)";

std::filesystem::path adult() {
  return std::filesystem::path(std::getenv("DOVETAIL_TEST_DATA")) /
         "../../../shared/data/adult.tsv";
}

std::vector<std::string> fields_of(const std::string& line) {
  std::vector<std::string> fields;
  std::istringstream stream(line);
  for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
  return fields;
}

TEST(Adult, IsReadAsItsLinesSay) {
  if (!std::filesystem::exists(adult())) GTEST_SKIP() << adult() << " is not there";
  RowsConfig config;
  parse_config([&](Section& s) { s.section("rows", config, ""); }, kConfig, "adult.toml",
               {"rows.files=\"" + adult().string() + "\"", "rows.shuffle_window=1"});
  RowLoader loader(config, {.batch = 29305});
  EXPECT_EQ(loader.num_train_rows(), 29305);  // 32,561 rows without 3,256 for validation
  EXPECT_EQ(loader.num_validation_rows(), 3256);
  EXPECT_THAT(row_warnings(loader.statistics()), ::testing::IsEmpty());
  const RowBatch train = loader.step(0), validation = loader.validation(0, 3256);
  std::ifstream file(adult());
  std::string line;
  std::getline(file, line);
  int64_t positives = 0;
  for (int64_t row = 0; std::getline(file, line); ++row) {
    const std::vector<std::string> fields = fields_of(line);
    const RowBatch& batch = row < 29305 ? train : validation;
    const int64_t rows = batch.labels.size(0), b = row < 29305 ? row : row - 29305;
    positives += fields[0] == "1";
    if (row % 50 != 0) continue;
    EXPECT_EQ(batch.labels[b][0].item<float>(), std::stof(fields[0]));
    EXPECT_NEAR(batch.dense[b][3].item<double>(), std::log1p(std::stod(fields[3])), 1e-6);
    const std::vector<std::pair<std::string, uint64_t>> hashed = {
        {fields[6], 64}, {fields[7], 64}, {fields[9], 64}, {fields[7] + "\x1f" + fields[9], 1000}};
    for (int64_t f = 0; f < 4; ++f) {
      const auto& [text, size] = hashed[static_cast<size_t>(f)];
      EXPECT_EQ(batch.values[f * rows + b].item<int64_t>(),
                static_cast<int64_t>(xxh64(text) % size))
          << line;
    }
    EXPECT_EQ(batch.values[4 * rows + b].item<int64_t>(), std::stoll(fields[14]));
  }
  EXPECT_EQ(positives, 7841);
  EXPECT_NEAR(train.dense.select(1, 0).mean().item<double>(), 0, 1e-4);
  EXPECT_NEAR(train.dense.select(1, 0).square().mean().item<double>(), 1, 1e-4);
}

}  // namespace
}  // namespace dovetail::data::row_adult_test
