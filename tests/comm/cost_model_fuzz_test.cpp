// ctest-labels: fuzz
// Mutated files of a cluster's cost model are read or refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/comm/cost_model.h"
#include "tests/base/temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::comm::cost_model_fuzz_test {
namespace {

TEST(CostModelFuzz, FilesAreReadOrRefused) {
  const test::TemporaryFolder folder;
  const CostModel model{.ranks_per_node = 8,
                        .inside = {1e-6, 2e11},
                        .between = Link{5e-6, 2.5e10},
                        .copy_bytes_per_s = 1e12,
                        .call_s = 1e-5,
                        .flops = 1e14,
                        .source = "data sheet"};
  test::fuzz({to_json(model).dump(1)}, 5000, 59, [&](const std::string& input) {
    test::overwrite(folder / "cluster.json", input);
    const CostModel read = read_cost_model(folder / "cluster.json");
    parse_cost_model(to_json(read), "again");
  });
}

}  // namespace
}  // namespace dovetail::comm::cost_model_fuzz_test
