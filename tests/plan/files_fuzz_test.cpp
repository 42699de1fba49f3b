// ctest-labels: fuzz
//
// Mutated graph.json and plan.json are accepted or refused. Accepted plans are checked or found
// invalid.
#include <gtest/gtest.h>

#include <string>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/check.h"
#include "dovetail/plan/model/graph.h"
#include "tests/base/temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::plan::files_fuzz_test {
namespace {

const char* const kGraph = R"({"version": 1, "budget_bytes": 110, "host_bytes": 100,
 "bandwidth": {"d2h": 10, "h2d": 10, "duplex": true},
 "codecs": {"fp8": {"ratio": 0.25, "enc_Bps": 100, "dec_Bps": 100, "max_err": 0.1}},
 "tensors": [{"id": "x", "bytes": 10, "kind": "input"}, {"id": "w", "bytes": 10, "kind": "param"},
  {"id": "a", "bytes": 30, "kind": "activation", "lossy_ok": true}, {"id": "g", "bytes": 10, "kind": "grad"}],
 "nodes": [{"name": "f", "inputs": ["x", "w"], "outputs": ["a"],
   "algos": [{"name": "slow", "time": 1, "workspace": 0}, {"name": "fast", "time": 0.5, "workspace": 20}]},
  {"name": "b", "inputs": ["a"], "outputs": ["g"], "algos": [{"name": "slow", "time": 1, "workspace": 0}]},
  {"name": "u", "inputs": ["g", "w"], "outputs": [], "mutates": ["w"],
   "algos": [{"name": "slow", "time": 0.1, "workspace": 0}]}],
 "final": ["w"]})";

const char* const kPlan =
    R"({"version": 1, "actions": [{"op": "compute", "node": "f", "algo": "fast"},
 {"id": "off", "op": "offload", "tensor": "a"}, {"op": "free", "tensor": "a"}, {"op": "prefetch", "tensor": "a"},
 {"op": "compute", "node": "b", "deps": ["off"]}, {"op": "free", "tensor": "a"}, {"op": "compute", "node": "u"},
 {"op": "free", "tensor": "g"}]})";

TEST(PlanFilesFuzz, GraphsAreReadOrRefused) {
  const test::TemporaryFolder folder;
  test::fuzz({kGraph}, 5000, 41, [&](const std::string& input) {
    test::overwrite(folder / "graph.json", input);
    const Graph graph = read_graph(folder / "graph.json");
    parse_graph(to_json(graph), "again");
  });
}

TEST(PlanFilesFuzz, PlansAreReadAndCheckedOrRefused) {
  const test::TemporaryFolder folder;
  test::overwrite(folder / "graph.json", kGraph);
  const Graph graph = read_graph(folder / "graph.json");
  test::fuzz({kPlan}, 5000, 43, [&](const std::string& input) {
    test::overwrite(folder / "plan.json", input);
    const Plan plan = read_plan(folder / "plan.json", graph);
    try {
      const Timeline timeline = check(graph, plan);
      EXPECT_LE(timeline.peak_bytes, graph.budget_bytes);
    } catch (const InvalidPlan&) {
      return;
    }
  });
}

}  // namespace
}  // namespace dovetail::plan::files_fuzz_test
