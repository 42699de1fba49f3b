#include "dovetail/plan/solve/covering_bound.h"

#include <algorithm>
#include <limits>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/schedule.h"
#include "dovetail/plan/solve/milp.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

constexpr int kMostNodes = 64;  // nodes whose memory the program bounds
constexpr double kScale = 100;  // the budget, and the time of each node once

class Covering {
 public:
  Covering(const Graph& graph, const SolveOptions& options)
      : graph_(graph), options_(options), scheduler_(graph), least_s_(minimum_s(graph)) {
    for (size_t n = 0; n < graph.nodes.size(); ++n) {
      for (const int t : graph.nodes[n].outputs) producer_[t] = static_cast<int>(n);
      for (const Algorithm& algorithm : graph.nodes[n].algorithms)
        by_host_.insert(algorithm.on_host.begin(), algorithm.on_host.end());
    }
  }

  CoveringBound solve(double time_limit_s) {
    find_excess();
    if (excess_.empty() || least_s_ <= 0) return {.seconds = least_s_};
    for (size_t g = 0; g < scheduler_.gaps().size(); ++g) add_gap(static_cast<int>(g));
    for (auto& [tensor, runs] : again_) {  // outputs of a node may share a run
      runs.emplace_back(shared(runs_, producer_.at(tensor), run_s(producer_.at(tensor))), -1);
      program_.add_row(-LinearProgram::kInfinity, 0, std::move(runs));
    }
    for (const auto& [tensor, column] : starting_)  // one of the two is moot
      if (const auto wrapping = wrapping_.find(tensor); wrapping != wrapping_.end())
        program_.add_row(-LinearProgram::kInfinity, 1, {{column, 1}, {wrapping->second, 1}});
    for (const auto& [node, bytes] : excess_)
      program_.add_row(scaled(bytes), LinearProgram::kInfinity, std::move(relief_[node]));
    const MilpResult result =
        solve_milp(program_, {.time_limit_s = time_limit_s, .relax = true, .threads = 1});
    CoveringBound out{.seconds = least_s_, .columns = program_.columns(), .rows = program_.rows()};
    // Its objective proves the bound only if the program was solved.
    if (result.status == MilpResult::kOptimal)
      out.seconds += std::max(result.bound, 0.0) / kScale * least_s_;
    return out;
  }

 private:
  double scaled(int64_t bytes) const {
    return kScale * static_cast<double>(bytes) / static_cast<double>(graph_.budget_bytes);
  }
  double cost(double seconds) const { return kScale * seconds / least_s_; }

  /// Finds nodes that exceed the budget if nothing leaves. They are the fullest node of each part
  /// of the step.
  void find_excess() {
    Decisions kept{.gaps = std::vector<Keep>(scheduler_.gaps().size()),
                   .codec = std::vector<int>(scheduler_.gaps().size())};
    std::vector<int64_t> on_host;  // per node: bytes that an algorithm may find on the host
    for (const GraphNode& node : graph_.nodes) {
      int smallest = 0;
      int64_t most = 0;
      for (size_t a = 0; a < node.algorithms.size(); ++a) {
        const Algorithm& algorithm = node.algorithms[a];
        int64_t bytes = 0;
        for (const int t : algorithm.on_host) bytes += graph_.tensors[t].bytes;
        most = std::max(most, bytes);
        if (algorithm.on_host.empty() &&
            algorithm.workspace_bytes < node.algorithms[smallest].workspace_bytes)
          smallest = static_cast<int>(a);
      }
      kept.algorithms.push_back(smallest);
      on_host.push_back(most);
    }
    const auto schedule = scheduler_.schedule(kept, kNoBudget);
    DOVETAIL_CHECK(schedule.has_value(), "a step that keeps everything has no schedule");
    const auto nodes = static_cast<int>(graph_.nodes.size());
    const int parts = std::min(nodes, kMostNodes);
    for (int part = 0; part < parts; ++part) {
      int fullest = -1;
      int64_t most = 0;
      for (int n = part * nodes / parts; n < (part + 1) * nodes / parts; ++n) {
        const int64_t excess = schedule->slot_bytes[n] - on_host[n] - graph_.budget_bytes;
        if (excess > most) most = excess, fullest = n;
      }
      if (fullest >= 0) excess_[fullest] = most;
    }
  }

  /// Adds the ways to free the tensor of a gap.
  void add_gap(int g) {
    const Gap& gap = scheduler_.gaps()[g];
    const GraphTensor& tensor = graph_.tensors[gap.tensor];
    const auto covers = [&](const auto& node) { return gap.covers(node.first); };
    if (tensor.bytes < options_.least_bytes || std::ranges::none_of(excess_, covers)) return;
    std::vector<std::pair<int, double>> ways;
    const auto add_way = [&](double seconds, double freed) {
      const int column = program_.add_column(cost(seconds), 0, 1, /*integer=*/false);
      for (const auto& [node, bytes] : excess_)
        if (gap.covers(node)) relief_[node].emplace_back(column, scaled(tensor.bytes) * freed);
      ways.emplace_back(column, 1);
      return column;
    };
    if (may_be_offloaded(graph_, gap, options_)) {
      const int column = add_way(by_host_.contains(gap.tensor) ? 0 : copy_s(gap.tensor, false), 1);
      if (gap.wraps) wrapping_[gap.tensor] = column;
      if (gap.from < 0 && !gap.wraps) starting_[gap.tensor] = column;
      if (!resident_at_start(tensor.kind))  // gaps may share the copy to the host
        program_.add_row(
            -LinearProgram::kInfinity, 0,
            {{column, 1}, {shared(offloads_, gap.tensor, copy_s(gap.tensor, true)), -1}});
    }
    if (options_.recompute && !gap.wraps && scheduler_.can_be_recomputed(g))
      again_[gap.tensor].emplace_back(add_way(0, 1), 1);
    if (options_.compress && !gap.wraps)
      for (size_t c = 0; c < graph_.codecs.size(); ++c)
        if (may_be_packed(graph_, gap, static_cast<int>(c)))
          add_way(static_cast<double>(tensor.bytes) / graph_.codecs[c].decode_bytes_per_s,
                  1 - graph_.codecs[c].ratio);
    if (ways.size() > 1) program_.add_row(-LinearProgram::kInfinity, 1, std::move(ways));
  }

  double run_s(int node) const {
    double seconds = std::numeric_limits<double>::infinity();
    for (const Algorithm& algorithm : graph_.nodes[node].algorithms)
      seconds = std::min(seconds, algorithm.time_s);
    return seconds;
  }

  /// Returns the delay by a copy of a tensor. Both directions may copy while nothing computes.
  double copy_s(int tensor, bool to_host) const {
    const double rate = to_host ? graph_.bandwidth.to_host : graph_.bandwidth.to_device;
    return std::min(graph_.bandwidth.slowdown, 0.5) *
           static_cast<double>(graph_.tensors[tensor].bytes) / rate;
  }

  /// Returns the column of `key`, which is made with this cost at its first use.
  int shared(std::map<int, int>& columns, int key, double seconds) {
    const auto found = columns.find(key);
    if (found != columns.end()) return found->second;
    return columns[key] = program_.add_column(cost(seconds), 0, LinearProgram::kInfinity,
                                              /*integer=*/false);
  }

  const Graph& graph_;
  const SolveOptions& options_;
  const Scheduler scheduler_;
  const double least_s_;
  std::map<int, int> producer_;    // per tensor: node that computes it
  std::set<int> by_host_;          // tensors that an algorithm may use on the host
  std::map<int, int64_t> excess_;  // per node
  using Entries = std::vector<std::pair<int, double>>;
  std::map<int, Entries> relief_;                      // per node: bytes freed by columns
  std::map<int, Entries> again_;                       // per tensor: its recomputations
  std::map<int, int> offloads_, wrapping_, starting_;  // per tensor: column
  std::map<int, int> runs_;                            // per node: column of runs after its first
  LinearProgram program_;
};

}  // namespace

CoveringBound covering_bound(const Graph& graph, const SolveOptions& options, double time_limit_s) {
  return Covering(graph, options).solve(time_limit_s);
}

}  // namespace dovetail::plan
