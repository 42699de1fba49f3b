#include "dovetail/plan/baselines/stages.h"

#include <algorithm>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/index_list.h"

namespace dovetail::plan {
namespace {

/// Writes the actions of given stages.
class Writer {
 public:
  Writer(const StageGraph& graph, const Stages& stages, const std::vector<int>& algorithms)
      : graph_(graph),
        stages_(stages),
        algorithms_(algorithms),
        there_(graph.graph().tensors.size()) {}

  Plan write() {
    for (int t = 0; t < graph_.nodes(); ++t) {
      for (const int value : graph_.values())
        if (there_[value] && !needed_after(t, value, -1)) free(value);
      for (int i = 0; i <= t; ++i)
        if (stages_.runs[t][i]) run(t, i);
    }
    return std::move(plan_);
  }
  int64_t peak_held_bytes() const { return most_held_bytes_; }

 private:
  bool needed_after(int t, int value, int node) const {
    if (t + 1 == graph_.nodes() ? graph_.last_use(value) > t : stages_.keeps[t + 1][value] != 0)
      return true;
    const auto& readers = graph_.readers(value);
    return std::any_of(readers.begin(), readers.end(), [&](int reader) {
      return reader > node && reader <= t && stages_.runs[t][reader] != 0;
    });
  }

  void run(int t, int i) {
    const auto& makes = graph_.makes(i);
    const auto missing = [&](int value) { return !there_[value] && needed_after(t, value, i); };
    if (i < t && std::none_of(makes.begin(), makes.end(), missing)) return;
    for (const int value : makes)
      if (there_[value]) free(value);
    plan_.actions.push_back({.op = Op::kCompute, .node = i, .algorithm = algorithms_[i]});
    for (const int value : makes) {
      there_[value] = true;
      held_bytes_ += bytes(value);
    }
    most_held_bytes_ = std::max(most_held_bytes_, held_bytes_);
    for (const auto* list : {&graph_.reads(i), &makes})
      for (const int value : *list)
        if (there_[value] && !needed_after(t, value, i)) free(value);
  }

  void free(int value) {
    plan_.actions.push_back({.op = Op::kFree, .tensor = value});
    there_[value] = false;
    held_bytes_ -= bytes(value);
  }

  int64_t bytes(int value) const { return graph_.graph().tensors[value].bytes; }

  const StageGraph& graph_;
  const Stages& stages_;
  const std::vector<int>& algorithms_;
  std::vector<char> there_;
  int64_t held_bytes_ = 0, most_held_bytes_ = 0;
  Plan plan_;
};

}  // namespace

StageGraph::StageGraph(const Graph& graph)
    : graph_(graph),
      producer_(graph.tensors.size(), -1),
      last_use_(graph.tensors.size(), -1),
      last_run_(graph.nodes.size(), static_cast<int>(graph.nodes.size()) - 1),
      reads_(graph.nodes.size()),
      makes_(graph.nodes.size()),
      readers_(graph.tensors.size()),
      resident_bytes_(graph.base_bytes) {
  for (const GraphTensor& tensor : graph.tensors)
    if (tensor.alias_of < 0 && resident_at_start(tensor.kind)) resident_bytes_ += tensor.bytes;
  // Per storage: nodes so far that read or compute it.
  std::vector<std::vector<int>> users(graph.tensors.size());
  for (int n = 0; n < nodes(); ++n) {
    const GraphNode& node = graph.nodes[n];
    if (node.runs_once()) last_run_[n] = n;
    for (const int t : node.outputs) {
      if (graph.tensors[t].alias_of >= 0) continue;
      producer_[t] = n;
      values_.push_back(t);
      makes_[n].push_back(t);
    }
    for (const auto* list : {&node.inputs, &node.mutates})
      for (const int t : *list)
        if (producer_[graph.root(t)] >= 0) add_once(reads_[n], graph.root(t));
    for (const int value : reads_[n]) readers_[value].push_back(n);
    for (const auto* list : {&makes_[n], &reads_[n]})
      for (const int value : *list) last_use_[value] = n;
    // A node that used a storage before its change cannot run again after the change.
    for (const int t : node.mutates)
      for (const int user : users[graph.root(t)]) last_run_[user] = std::min(last_run_[user], n);
    for (const auto* list : {&node.inputs, &node.outputs, &node.mutates})
      for (const int t : *list) add_once(users[graph.root(t)], n);
  }
  for (const int t : graph.final)
    if (producer_[graph.root(t)] >= 0) last_use_[graph.root(t)] = nodes();
}

int64_t StageGraph::smallest_workspace(int node) const {
  const auto& algorithms = graph_.nodes[node].algorithms;
  return std::min_element(algorithms.begin(), algorithms.end(),
                          [](const Algorithm& a, const Algorithm& b) {
                            return a.workspace_bytes < b.workspace_bytes;
                          })
      ->workspace_bytes;
}

Stages no_stages(const StageGraph& graph) {
  const size_t nodes = graph.graph().nodes.size();
  Stages out{.runs = std::vector(nodes, std::vector<char>(nodes)),
             .keeps = std::vector(nodes, std::vector<char>(graph.graph().tensors.size()))};
  for (size_t t = 0; t < nodes; ++t) out.runs[t][t] = 1;
  return out;
}

std::optional<Stages> runs_for(const StageGraph& graph, std::vector<std::vector<char>> keeps) {
  Stages out = no_stages(graph);
  out.keeps = std::move(keeps);
  for (int t = 0; t < graph.nodes(); ++t) {
    auto& runs = out.runs[t];
    const bool last = t + 1 == graph.nodes();
    for (const int value : graph.values()) {
      const bool then = last ? graph.last_use(value) > t : out.keeps[t + 1][value] != 0;
      if (then && !out.keeps[t][value]) runs[graph.producer(value)] = 1;
    }
    for (int i = graph.nodes() - 1; i >= 0; --i) {
      if (!runs[i]) continue;
      if (!graph.may_run(t, i)) return {};
      for (const int value : graph.reads(i))
        if (!out.keeps[t][value]) runs[graph.producer(value)] = 1;
    }
  }
  return out;
}

Plan plan_of(const StageGraph& graph, const Stages& stages, const std::vector<int>& algorithms) {
  return Writer(graph, stages, algorithms).write();
}

int64_t peak_held_bytes(const StageGraph& graph, const Stages& stages) {
  const std::vector<int> only(graph.graph().nodes.size());
  Writer writer(graph, stages, only);
  writer.write();
  return writer.peak_held_bytes();
}

std::optional<Stages> stages_of(const StageGraph& graph, const Plan& plan) {
  if (!plan.starts_on_host.empty()) return {};
  Stages out = no_stages(graph);
  std::vector<char> there(graph.graph().tensors.size());
  int t = 0;
  std::vector<char> ran(graph.graph().nodes.size());
  for (const Action& action : plan.actions) {
    if (t == graph.nodes()) break;
    if (action.op == Op::kFree) {
      there[action.tensor] = 0;
      // A value that is freed before the first run of a stage was not kept for the stage.
      if (std::none_of(ran.begin(), ran.end(), [](char c) { return c != 0; }))
        out.keeps[t][action.tensor] = 0;
      continue;
    }
    if (action.op != Op::kCompute || ran[action.node] || action.node > t) return {};
    ran[action.node] = 1;
    out.runs[t][action.node] = 1;
    for (const int value : graph.makes(action.node)) there[value] = 1;
    if (action.node < t) continue;
    std::fill(ran.begin(), ran.end(), 0);
    if (++t < graph.nodes())
      for (const int value : graph.values()) out.keeps[t][value] = there[value];
  }
  return t == graph.nodes() ? std::optional(std::move(out)) : std::nullopt;
}

}  // namespace dovetail::plan
