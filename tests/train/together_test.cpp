// Checks that bench/results/together.md matches the engine. `./dev bench together` regenerates it
// after changes.
#include "bench/together_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/base/temporary_folder.h"

namespace dovetail::together::together_test {
namespace {

using ::testing::HasSubstr;

/// Outcomes by model and pair, as the page has them.
std::map<std::string, std::map<std::string, std::string>> read_table() {
  const std::filesystem::path files = std::getenv("DOVETAIL_TEST_DATA");
  std::istringstream page(read_file((files / "../../bench/results/together.md").string()));
  std::map<std::string, std::map<std::string, std::string>> table;
  std::string model;
  for (std::string line; std::getline(page, line);) {
    if (line.starts_with("## ")) model = line.substr(3);
    const size_t middle = line.find(" | ");
    if (model.empty() || !line.starts_with("| ") || middle == std::string::npos) continue;
    table[model][line.substr(2, middle - 2)] = line.substr(middle + 3, line.size() - middle - 5);
  }
  return table;
}

TEST(Together, NoCellIsBlankAndRefusalsAreWhatTheEngineSays) {
  const test::TemporaryFolder folder;
  Runs runs(folder.path());
  auto table = read_table();
  int refused = 0;
  for (const Model& model : kModels)
    for (const auto& [first, second] : pairs()) {
      SCOPED_TRACE(fmt::format("{}, {}", model.name, pair_name(first, second)));
      const std::string& outcome = table[model.name][pair_name(first, second)];
      if (const auto refusal = runs.refusal(model, {first, second})) {
        ++refused;
        EXPECT_EQ(outcome, "refused: " + *refusal);
      } else {
        EXPECT_THAT(outcome, HasSubstr(fmt::format("without {}: ", kCapabilities[first].name)));
        EXPECT_THAT(outcome, HasSubstr(fmt::format("without {}: ", kCapabilities[second].name)));
      }
    }
  EXPECT_GT(refused, 0);
  EXPECT_LT(refused, static_cast<int>(kModels.size() * pairs().size()));
}

// Cells with plans take longer and are tested in tests/multi_rank/test_memory.py.
TEST(Together, CellsHoldWhatTheySay) {
  const test::TemporaryFolder folder;
  Runs runs(folder.path());
  const auto expect = [&](const Model& model, size_t first, size_t second) {
    const Cell cell = runs.cell(model, first, second);
    EXPECT_FALSE(cell.refusal) << *cell.refusal;
    EXPECT_TRUE(cell.without[0].holds() && cell.without[1].holds()) << words(cell, first, second);
  };
  expect(kModels[0], kMx, kFixed);
  expect(kModels[1], kMoe, kFixed);
  expect(kModels[2], kEmbedding, kAuto);
}

}  // namespace
}  // namespace dovetail::together::together_test
