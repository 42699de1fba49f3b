#include "dovetail/plan/model/check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"
#include "dovetail/plan/run/profile.h"
#include "tests/base/temporary_folder.h"
#include "tests/folder.h"
#include "tests/plan/random_graph.h"

namespace dovetail::plan::check_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;
using Json = nlohmann::json;

// Three layers. Backward of the second layer reads a, backward of the third reads b and c.
const char* const kGraph = R"({"version": 1, "budget_bytes": 110,
  "bandwidth": {"d2h": 10, "h2d": 10, "duplex": true},
  "codecs": {"fp8": {"ratio": 0.25, "enc_Bps": 100, "dec_Bps": 100, "max_err": 0.1}},
  "tensors": [{"id": "x", "bytes": 10, "kind": "input"}, {"id": "w", "bytes": 10, "kind": "param"},
              {"id": "a", "bytes": 30, "kind": "activation", "lossy_ok": true},
              {"id": "b", "bytes": 30, "kind": "activation"}, {"id": "c", "bytes": 30, "kind": "activation"},
              {"id": "gb", "bytes": 30, "kind": "grad"}, {"id": "ga", "bytes": 30, "kind": "grad"},
              {"id": "gw", "bytes": 10, "kind": "grad"}],
  "nodes": [{"name": "f1", "inputs": ["x", "w"], "outputs": ["a"],
             "algos": [{"name": "slow", "time": 1, "workspace": 0}, {"name": "fast", "time": 0.5, "workspace": 20}]},
            {"name": "f2", "inputs": ["a"], "outputs": ["b"], "algos": [{"name": "slow", "time": 1, "workspace": 0}]},
            {"name": "f3", "inputs": ["b"], "outputs": ["c"], "algos": [{"name": "slow", "time": 1, "workspace": 0}]},
            {"name": "g3", "inputs": ["b", "c"], "outputs": ["gb"],
             "algos": [{"name": "slow", "time": 4, "workspace": 0}]},
            {"name": "g2", "inputs": ["a", "gb"], "outputs": ["ga"],
             "algos": [{"name": "slow", "time": 1, "workspace": 0}]},
            {"name": "g1", "inputs": ["ga", "x", "w"], "outputs": ["gw"],
             "algos": [{"name": "slow", "time": 1, "workspace": 0}]},
            {"name": "upd", "inputs": ["gw", "w"], "outputs": [], "mutates": ["w"],
             "algos": [{"name": "slow", "time": 0.1, "workspace": 0}]}],
  "final": ["w"]})";

// Offloads a while f2 and f3 run, and fetches it while g3 runs.
const char* const kPlan = R"({"version": 1, "actions": [
  {"op": "compute", "node": "f1"}, {"id": "off", "op": "offload", "tensor": "a"}, {"op": "compute", "node": "f2"},
  {"op": "free", "tensor": "a"}, {"op": "compute", "node": "f3"}, {"op": "compute", "node": "g3", "deps": ["off"]},
  {"op": "free", "tensor": "b"}, {"op": "free", "tensor": "c"}, {"op": "prefetch", "tensor": "a"},
  {"op": "compute", "node": "g2"}, {"op": "free", "tensor": "a"}, {"op": "free", "tensor": "gb"},
  {"op": "compute", "node": "g1"}, {"op": "free", "tensor": "ga"}, {"op": "compute", "node": "upd"},
  {"op": "free", "tensor": "gw"}]})";

Graph graph_of(const Json& json) { return parse_graph(json, "graph.json"); }

class Check : public ::testing::Test {
 protected:
  Graph graph_ = graph_of(Json::parse(kGraph));
  Plan plan_ = parse_plan(Json::parse(kPlan), graph_, "plan.json");

  auto rejects(const std::string& reason) {
    return [this, reason] {
      EXPECT_THAT([&] { check(graph_, plan_); }, ThrowsMessage<InvalidPlan>(HasSubstr(reason)));
    };
  }
  auto at(size_t position) { return plan_.actions.begin() + static_cast<int64_t>(position); }
};

TEST_F(Check, CopiesRunBesideComputes) {
  const Timeline timeline = check(graph_, plan_);
  // f1 ends at 1 s. The offload takes 1 to 4 s, while f2 and f3 run until 3 s. g3 waits for it and
  // takes 4 to 8 s, the prefetch 8 to 11 s.
  EXPECT_DOUBLE_EQ(timeline.actions[1].start_s, 1);
  EXPECT_DOUBLE_EQ(timeline.actions[1].end_s, 4);
  EXPECT_DOUBLE_EQ(timeline.actions[5].start_s, 4);
  EXPECT_DOUBLE_EQ(timeline.actions[8].end_s, 11);
  EXPECT_DOUBLE_EQ(timeline.makespan_s, 13.1);
  EXPECT_EQ(timeline.peak_bytes, 110);  // x, w, b, c, gb, and a's bytes until its copy ends
  EXPECT_EQ(timeline.host_peak_bytes, 30);
  EXPECT_EQ(timeline.memory.back().bytes, 20);
  int64_t most = 0;
  for (const MemoryPoint& point : timeline.memory) most = std::max(most, point.bytes);
  EXPECT_EQ(most, timeline.peak_bytes);
}

/// Fetches w for f1, and a second time for g1 and the update. Copies it back to the host after
/// each.
TEST_F(Check, AParameterMayStartAndEndOnTheHost) {
  const auto insert = [&](size_t position, const Action& action) {
    plan_.actions.insert(at(position), action);
  };
  const int w = 1;
  plan_.actions.push_back({.op = Op::kOffload, .tensor = w});
  plan_.actions.push_back({.op = Op::kFree, .tensor = w});
  insert(14, {.op = Op::kFreeHost, .tensor = w});
  insert(12, {.op = Op::kPrefetch, .tensor = w});
  insert(1, {.op = Op::kFree, .tensor = w});
  insert(0, {.op = Op::kPrefetch, .tensor = w});
  for (Action& action : plan_.actions)
    if (!action.waits.empty()) action.waits = {3};
  plan_.starts_on_host = {w};
  const Plan valid = plan_;
  const Timeline timeline = check(graph_, plan_);
  // The first fetch ends at 1 s and delays all actions of CopiesRunBesideComputes by 1 s. The
  // second fetch follows g2, which ends at 13 s. g1 waits for it and runs from 14 to 15 s, the
  // update until 15.1 s. The copy back ends the step.
  EXPECT_DOUBLE_EQ(timeline.actions[1].start_s, 1);
  EXPECT_DOUBLE_EQ(timeline.actions[14].end_s, 14);
  EXPECT_DOUBLE_EQ(timeline.makespan_s, 16.1);
  EXPECT_EQ(timeline.peak_bytes, 100);  // 10 less: w is not on the device in between
  EXPECT_EQ(timeline.host_peak_bytes, 40);
  EXPECT_EQ(timeline.memory.back().bytes, 10);  // x
  EXPECT_EQ(to_json(plan_, graph_)["starts_on_host"], Json::parse(R"(["w"])"));
  EXPECT_EQ(
      parse_plan(Json::parse(to_json(plan_, graph_).dump()), graph_, "plan.json").starts_on_host,
      std::vector{w});

  graph_.tensors[w].lossy_ok = true;
  const auto codec = [&](Op op) { plan_.actions.push_back({.op = op, .tensor = w, .codec = 0}); };
  plan_.actions.insert(plan_.actions.end() - 2, {.op = Op::kCompress, .tensor = w, .codec = 0});
  for (const Op op : {Op::kFreeHost, Op::kDecompress, Op::kFreePacked, Op::kOffload}) codec(op);
  rejects("w ends on the host as a lossy copy")();
  plan_ = valid;
  plan_.actions.pop_back();  // it may still be on the device when it ends
  EXPECT_EQ(check(graph_, plan_).memory.back().bytes, 20);
  plan_.actions.pop_back();
  rejects("w starts on the host but is not there at the end")();
  plan_ = valid;
  std::erase_if(plan_.actions, [](const Action& a) { return a.op == Op::kFreeHost; });
  rejects("upd writes w while a copy of its old version is kept")();
  plan_ = valid;
  plan_.actions.erase(at(0));
  rejects("f1 reads w, which is not on the device")();
  plan_ = valid;
  graph_.host_bytes = 39;
  rejects("over the host's budget: 40 > 39 bytes")();
  graph_.host_bytes.reset();
  plan_.starts_on_host = {w, w};
  rejects("w starts on the host twice")();
  plan_.starts_on_host = {w, 0};
  rejects("input x may not start on the host")();
  plan_.starts_on_host = {w, 2};
  rejects("activation a may not start on the host")();
  graph_.tensors.push_back({.id = "v", .bytes = 10, .kind = TensorKind::kParam, .alias_of = w});
  plan_.starts_on_host = {8};
  rejects("starts_on_host must name the storage w, not its view v")();
}

/// The update reads w on the host, where w stays during the whole step.
TEST_F(Check, AnAlgorithmMayFindWhatItChangesOnTheHost) {
  const int w = 1;
  graph_.nodes[6].algorithms.push_back({"host", 0.1, 0, {w}});
  plan_.starts_on_host = {w};
  plan_.actions[14].algorithm = 1;
  const auto insert = [&](size_t position, const Action& action) {
    plan_.actions.insert(at(position), action);
  };
  insert(13, {.op = Op::kFree, .tensor = w});  // after g1
  insert(0, {.op = Op::kPrefetch, .tensor = w});
  plan_.actions[6].waits = {2};
  const Plan valid = plan_;
  const Timeline timeline = check(graph_, plan_);
  EXPECT_DOUBLE_EQ(timeline.makespan_s,
                   14.1);  // one more than CopiesRunBesideComputes, for the fetch
  EXPECT_EQ(timeline.peak_bytes, 110);
  EXPECT_EQ(timeline.memory.back().bytes, 10);  // x
  EXPECT_EQ(timeline.host_peak_bytes, 40);
  EXPECT_EQ(to_json(graph_)["nodes"][6]["algos"][1]["host"], Json::parse(R"(["w"])"));

  std::erase_if(plan_.actions, [](const Action& a) { return a.op == Op::kFree && a.tensor == w; });
  rejects("upd changes w on the host while it is on the device, too")();
  plan_ = valid;
  plan_.actions.insert(plan_.actions.end() - 2, {.op = Op::kFreeHost, .tensor = w});
  rejects("upd reads w, which is not on the host")();
  plan_ = valid;
  plan_.starts_on_host.clear();
  plan_.actions.erase(at(0));
  rejects("free of param w without a host copy")();
  plan_ = valid;
  plan_.actions[16].algorithm = 0;
  rejects("upd reads w, which is not on the device")();
  plan_ = valid;
  insert(16, {.op = Op::kFree, .tensor = w});
  insert(16, {.op = Op::kPrefetch, .tensor = w});
  rejects("upd writes w while it is being fetched")();
  plan_ = valid;
  graph_.tensors[w].lossy_ok = true;
  insert(14, {.op = Op::kCompress, .tensor = w, .codec = 0});
  rejects("upd writes w while a copy of its old version is kept")();
  graph_.tensors[w].lossy_ok = false;
  plan_ = valid;
  std::swap(plan_.actions[16], plan_.actions[13]);  // before g1, which needs the old version
  rejects("upd reads gw, which is not on the device")();
  plan_ = valid;
  plan_.starts_on_host.push_back(w);
  rejects("w starts on the host twice")();
}

TEST_F(Check, WhatIsOnlyReadNeedsNoCopyBack) {
  graph_.nodes[6].mutates.clear();
  plan_.starts_on_host = {1};
  plan_.actions.insert(at(0), {.op = Op::kPrefetch, .tensor = 1});
  for (Action& action : plan_.actions)
    if (!action.waits.empty()) action.waits = {2};
  EXPECT_DOUBLE_EQ(check(graph_, plan_).makespan_s, 14.1);
  plan_.actions.push_back({.op = Op::kFree, .tensor = 1});
  EXPECT_DOUBLE_EQ(check(graph_, plan_).makespan_s, 14.1);
  plan_.actions.push_back({.op = Op::kFreeHost, .tensor = 1});
  rejects("w starts on the host but is not there at the end")();
}

TEST_F(Check, MutatedPlansAreRejected) {
  const Plan valid = plan_;
  plan_.actions[5].waits.clear();
  rejects("over the budget: 140 > 110")();  // g3 starts while a is still being copied
  plan_ = valid;
  plan_.actions.erase(at(3));
  rejects("prefetch of a: already on the device")();
  plan_ = valid;
  plan_.actions.erase(at(8));
  rejects("g2 reads a, which is not on the device")();
  plan_ = valid;
  std::swap(plan_.actions[2], plan_.actions[4]);
  rejects("f3 reads b, which is not on the device")();
  plan_ = valid;
  plan_.actions.push_back({.op = Op::kFree, .tensor = 7});
  rejects("free of gw: not on the device")();
  plan_ = valid;
  plan_.actions.insert(at(15), {.op = Op::kCompute, .node = 6});
  rejects("upd may run only once")();
  plan_ = valid;
  plan_.actions.insert(at(0), {.op = Op::kOffload, .tensor = 1});
  rejects("upd writes w while a copy of its old version is kept")();
  plan_ = valid;
  plan_.actions.resize(14);
  rejects("node upd never runs")();
  plan_ = valid;
  plan_.actions.insert(at(1), {.op = Op::kCompute, .node = 0});
  rejects("f1 makes a, which is still on the device")();
  plan_ = valid;
  plan_.actions.push_back({.op = Op::kFree, .tensor = 1});
  rejects("free of param w without a host copy")();
  plan_ = valid;
  plan_.actions.insert(at(1), {.op = Op::kCompress, .tensor = 3, .codec = 0});
  rejects("compress of b: not on the device")();
  plan_ = valid;
  plan_.actions.insert(at(3), {.op = Op::kCompress, .tensor = 3, .codec = 0});
  rejects("b may not be stored with loss")();
  plan_ = valid;
  graph_.budget_bytes = 109;
  rejects("over the budget: 110 > 109 bytes at 2 s, in compute of ")();
  graph_.budget_bytes = 110;
  graph_.host_bytes = 29;
  rejects("over the host's budget")();
  graph_.host_bytes.reset();
  plan_.claimed_peak_bytes = 109;
  rejects("claims a peak of 109 bytes but takes 110")();
  plan_.claimed_peak_bytes.reset();
  plan_.claimed_makespan_s = 13.5;
  rejects("claims to end at 13.5 s but ends at 13.1")();
}

TEST_F(Check, WhatLossyCopiesMayBeReadBy) {
  // a is compressed and decompressed instead of offloaded. Tensors recomputed from it are then not
  // exact.
  plan_.actions[1] = {.op = Op::kCompress, .tensor = 2, .codec = 0};
  plan_.actions[5].waits.clear();
  plan_.actions[8] = {.op = Op::kDecompress, .tensor = 2};
  graph_.budget_bytes = 118;
  EXPECT_EQ(check(graph_, plan_).peak_bytes, 118);
  graph_.tensors[2].lossy_ok = false;
  rejects("a may not be stored with loss")();
  graph_.tensors[2].lossy_ok = true;
  graph_.tensors[2].codecs.emplace();
  rejects("a does not fit into fp8")();
  graph_.tensors[2].codecs = {0};
  graph_.nodes[4].reads_unpacked = true;
  rejects("g2 reads a copy of a that was packed")();
  graph_.codecs[0].max_error = 0;
  rejects("g2 reads a copy of a that was packed")();
  graph_.nodes[4].reads_unpacked = false;
  graph_.tensors[2].lossy_ok = false;
  check(graph_, plan_);
  graph_.codecs[0].max_error = 0.1;
  graph_.tensors[2].lossy_ok = true;
  graph_.final.push_back(2);
  std::erase_if(plan_.actions, [](const Action& a) { return a.op == Op::kFree && a.tensor == 2; });
  plan_.actions.insert(at(3), {.op = Op::kFree, .tensor = 2});
  rejects("a ends as a lossy copy")();
}

TEST(CheckFiles, AreReadBackAsWritten) {
  Random random(1);
  for (int round = 0; round < 20; ++round) {
    Graph graph = random_step(random, 4);
    restrict_codecs(random, graph);
    let_updates_run_on_host(random, graph);
    const Graph again = graph_of(Json::parse(to_json(graph).dump()));
    EXPECT_EQ(to_json(graph), to_json(again));
    Plan plan = keep_all(graph);
    plan.actions[1].waits = {0};
    plan.claimed_peak_bytes = 1 << 20;
    EXPECT_EQ(
        to_json(parse_plan(Json::parse(to_json(plan, graph).dump()), graph, "plan.json"), graph),
        to_json(plan, graph));
  }
}

TEST(CheckFiles, MistakesAreNamed) {
  const auto broken = [](const char* pointer, const Json& value) {
    Json json = Json::parse(kGraph);
    json[Json::json_pointer(pointer)] = value;
    return [json] { graph_of(json); };
  };
  const auto says = [](const std::string& text) {
    return ThrowsMessage<UserError>(HasSubstr(text));
  };
  EXPECT_THAT(broken("/nodes/1/inputs/0", "z"),
              says("graph.json: nodes[1]: inputs: there is no tensor \"z\""));
  EXPECT_THAT(broken("/nodes/1/inputs/0", "c"),
              says("node \"f2\" reads \"c\" before any node made it"));
  EXPECT_THAT(broken("/nodes/1/outputs/0", "a"), says("tensor \"a\" has two producers"));
  EXPECT_THAT(broken("/nodes/1/algos", Json::array()), says("nodes[1]: algos is empty"));
  EXPECT_THAT(broken("/tensors/2/bytes", -1),
              says("tensors[2]: bytes is -1; it must not be negative"));
  EXPECT_THAT(broken("/tensors/2/kind", "weight"),
              says("kind is \"weight\"; valid are input, param"));
  EXPECT_THAT(broken("/tensors/2/id", "x"),
              says("tensors[2]: a tensor before it is named \"x\" too"));
  EXPECT_THAT(broken("/tensors/2/color", "red"), says("tensors[2]: unknown key \"color\""));
  EXPECT_THAT(broken("/bandwidth/d2h", 0), says("bandwidth: d2h is 0; it must be positive"));
  EXPECT_THAT(broken("/bandwidth/h2d", 1e-7),
              says("bandwidth: h2d: 1e-07 bytes a second copy all tensors in"));
  EXPECT_THAT(broken("/nodes/1/algos/0/time", 2e6),
              says("nodes: all operations take 2e+06 s; a step of up to 1e+06 s"));
  EXPECT_THAT(broken("/nodes/6/algos/0/host", Json::parse(R"(["gw"])")),
              says("nodes[6]: algos[0]: host names \"gw\", which is no parameter or state that the "
                   "node mutates"));
  EXPECT_THAT(broken("/nodes/5/algos/0/host", Json::parse(R"(["w"])")), says("host names \"w\""));
  EXPECT_THAT(broken("/nodes/6/algos/0/host", Json::parse(R"(["w"])")),
              says("nodes[6]: algos[0] has a host, but the first has to find all on the device"));
  EXPECT_THAT(broken("/version", 2), says("only version 1 is known"));
  const Graph graph = graph_of(Json::parse(kGraph));
  const auto plan = [&](const char* text) {
    return [&graph, text] { parse_plan(Json::parse(text), graph, "plan"); };
  };
  EXPECT_THAT(plan(R"({"version": 1, "actions": [{"op": "keep", "tensor": "a"}]})"),
              says("unknown op \"keep\""));
  EXPECT_THAT(plan(R"({"version": 1, "starts_on_host": ["z"], "actions": []})"),
              says("plan: starts_on_host: unknown tensor \"z\""));
  EXPECT_THAT(plan(R"({"version": 1, "actions": [{"op": "compute", "node": "f1", "algo": "x"}]})"),
              says("action 0: f1 has no algorithm \"x\""));
  EXPECT_THAT(plan(R"({"version": 1, "actions": [{"op": "free", "tensor": "a", "deps": [0]}]})"),
              says("dep 0 is not issued earlier"));
}

/// Lets some tensors start on the host. Each is fetched at the start of the step or before the
/// first use, and copied back after the last. Sometimes a part is missing, or the tensor may not
/// start there.
void some_start_on_host(Random& random, const Graph& graph, Plan& plan) {
  for (size_t i = 0; i < graph.tensors.size(); ++i) {
    const int t = static_cast<int>(i);
    const bool may = may_start_on_host(graph.tensors[i].kind);
    const auto finds = [&](const Action& action) {
      return action.op == Op::kCompute &&
             graph.nodes[action.node].algorithms[action.algorithm].finds_on_host(t);
    };
    const auto finder = [&] {
      return std::find_if(plan.actions.begin(), plan.actions.end(), finds);
    };
    const bool found = finder() != plan.actions.end();
    if (draw(random, 0, found ? 20 : may ? 1 : 60) != 0 && (!found || draw(random, 0, 20) == 0))
      continue;
    plan.starts_on_host.push_back(t);
    const auto uses = [&](const Action& action) {
      if (action.op != Op::kCompute) return false;
      const GraphNode& node = graph.nodes[action.node];
      return std::count(node.inputs.begin(), node.inputs.end(), t) +
                 std::count(node.mutates.begin(), node.mutates.end(), t) >
             0;
    };
    const auto writes = [&](const Action& action) {
      return uses(action) && std::count(graph.nodes[action.node].mutates.begin(),
                                        graph.nodes[action.node].mutates.end(), t) > 0;
    };
    const auto insert = [&](auto position, Op op) {
      if (draw(random, 0, 50) > 0) plan.actions.insert(position, {.op = op, .tensor = t});
    };
    const auto first = [&] { return std::find_if(plan.actions.begin(), plan.actions.end(), uses); };
    const auto writer = [&] {
      return std::find_if(plan.actions.begin(), plan.actions.end(), writes);
    };
    if (first() == plan.actions.end()) continue;
    if (found) {
      if (first() != finder()) {
        insert(finder(), Op::kFree);
        insert(first(), Op::kPrefetch);
      }
      continue;
    }
    insert(draw(random, 0, 1) == 0 ? first() : plan.actions.begin(), Op::kPrefetch);
    if (writer() != plan.actions.end()) {
      insert(writer(), Op::kFreeHost);
      insert(writer() + 1, Op::kOffload);
    }
    const auto last =
        std::find_if(plan.actions.rbegin(), plan.actions.rend(), [&](const Action& action) {
          return uses(action) || (action.op == Op::kOffload && action.tensor == t);
        });
    if (draw(random, 0, 2) > 0) insert(last.base(), Op::kFree);
  }
}

// The oracle, tests/plan/check_plan.py, was written independently of this checker.
TEST(CheckOracle, AgreesOnRandomPlansValidAndNot) {
  Random random(7), of_codecs(8), of_host(9);
  const test::TemporaryFolder folder;
  std::ofstream pairs(folder.path() / "pairs.jsonl");
  std::vector<std::optional<Timeline>> ours;
  int valid = 0, away = 0, updated_there = 0;
  for (int round = 0; round < 4000; ++round) {
    Graph graph = random_step(random, draw(random, 2, 5));
    if (round % 2 == 0) add_state(random, graph);
    if (round % 4 == 1) restrict_codecs(of_codecs, graph);
    if (round % 4 == 2) let_updates_run_on_host(of_host, graph);
    Plan plan = keep_all(graph);
    for (Action& action : plan.actions)
      if (action.op == Op::kCompute)
        action.algorithm =
            draw(random, 0, static_cast<int>(graph.nodes[action.node].algorithms.size()) - 1);
    if (round % 2 == 0) some_start_on_host(random, graph, plan);
    for (int change = draw(random, 0, 5); change > 0; --change) {
      const int t = draw(random, 0, static_cast<int>(graph.tensors.size()) - 1);
      const auto position = [&](int from) {
        return draw(random, from, static_cast<int>(plan.actions.size()));
      };
      const auto insert = [&](int at, const Action& action) {
        plan.actions.insert(plan.actions.begin() + at, action);
      };
      const int at = position(0), later = position(at), last = position(later);
      switch (draw(random, 0, 4)) {
        case 0:  // out, and back
          insert(last, {.op = Op::kPrefetch, .tensor = t});
          insert(later, {.op = Op::kFree, .tensor = t});
          insert(at, {.op = Op::kOffload, .tensor = t});
          break;
        case 1:
          insert(last, {.op = Op::kDecompress, .tensor = t});
          insert(later, {.op = Op::kFree, .tensor = t});
          insert(at, {.op = Op::kCompress, .tensor = t, .codec = draw(random, 0, 1)});
          break;
        case 2: {  // again
          const int node = draw(random, 0, static_cast<int>(graph.nodes.size()) - 1);
          insert(last, {.op = Op::kCompute, .node = node});
          for (const int output : graph.nodes[node].outputs)
            insert(later, {.op = Op::kFree, .tensor = output});
          break;
        }
        case 3:
          insert(at,
                 {.op = draw(random, 0, 1) == 0 ? Op::kFreeHost : Op::kFreePacked, .tensor = t});
          break;
        default:
          if (last > 0 && last < static_cast<int>(plan.actions.size()))
            plan.actions[last].waits = {draw(random, 0, last - 1)};
      }
    }
    // Waits name positions, which the insertions shifted. Keeps only waits for previous actions.
    for (size_t i = 0; i < plan.actions.size(); ++i)
      std::erase_if(plan.actions[i].waits, [&](int wait) { return wait >= static_cast<int>(i); });
    if (draw(random, 0, 3) == 0) graph.budget_bytes = draw(random, 60, 300);
    if (draw(random, 0, 3) == 0) graph.host_bytes = draw(random, 8, 60);
    try {
      ours.emplace_back(check(graph, plan));
      ++valid;
      away += plan.starts_on_host.empty() ? 0 : 1;
      updated_there +=
          std::any_of(plan.actions.begin(), plan.actions.end(), [&](const Action& action) {
            return action.op == Op::kCompute &&
                   !graph.nodes[action.node].algorithms[action.algorithm].on_host.empty();
          });
    } catch (const InvalidPlan&) {
      ours.emplace_back();
    }
    pairs << Json{{"graph", to_json(graph)}, {"plan", to_json(plan, graph)}}.dump() << '\n';
  }
  pairs.close();
  EXPECT_GT(valid, 500);
  EXPECT_LT(valid, 3200);
  EXPECT_GT(away, 150);
  EXPECT_GT(updated_there, 50);
  const auto script = folder.path() / "verdicts.py";
  write_file_atomically(script, R"(import json, sys
sys.path.insert(0, sys.argv[1])
import check_plan
for line in open(sys.argv[2]):
    pair = json.loads(line)
    try:
        print(json.dumps(check_plan.check(pair["graph"], pair["plan"])))
    except check_plan.Bad as bad:
        print(json.dumps({"valid": False, "error": str(bad)}))
)");
  const char* python = std::getenv("DOVETAIL_PYTHON");
  const auto source = test::tests_folder() / "plan";
  ASSERT_EQ(std::system(fmt::format("{} {} {} {} > {}", python != nullptr ? python : "python3",
                                    script.string(), source.string(),
                                    (folder.path() / "pairs.jsonl").string(),
                                    (folder.path() / "verdicts").string())
                            .c_str()),
            0);
  std::ifstream verdicts(folder.path() / "verdicts");
  std::string line;
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_TRUE(std::getline(verdicts, line));
    const Json theirs = Json::parse(line);
    ASSERT_EQ(theirs["valid"].get<bool>(), ours[i].has_value()) << "plan " << i << ": " << line;
    if (!ours[i]) continue;
    EXPECT_EQ(theirs["peak_bytes"].get<double>(), static_cast<double>(ours[i]->peak_bytes)) << i;
    EXPECT_EQ(theirs["host_peak"].get<double>(), static_cast<double>(ours[i]->host_peak_bytes))
        << i;
    EXPECT_DOUBLE_EQ(theirs["makespan"].get<double>(), ours[i]->makespan_s) << i;
    EXPECT_EQ(theirs["recomputes"].get<int>(), ours[i]->again) << i;
  }
}

}  // namespace
}  // namespace dovetail::plan::check_test
