// The start of a search in steps of many nodes: frees many tensors for each schedule.
#include <algorithm>
#include <limits>
#include <queue>
#include <unordered_set>
#include <utility>
#include <vector>

#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

constexpr double kImpossible = std::numeric_limits<double>::infinity();

/// Estimates of the seconds by which a treatment of a gap makes a step longer, under given
/// decisions.
class Prices {
 public:
  Prices(const Graph& graph, const Scheduler& scheduler, const Decisions& decisions)
      : graph_(graph),
        scheduler_(scheduler),
        decisions_(decisions),
        producer_(graph.tensors.size(), -1),
        last_use_(graph.tensors.size(), -1) {
    for (int n = 0; n < static_cast<int>(graph.nodes.size()); ++n) {
      const GraphNode& node = graph.nodes[n];
      for (const int t : node.outputs) producer_[graph.root(t)] = n;
      for (const auto* tensors : {&node.inputs, &node.outputs, &node.mutates})
        for (const int t : *tensors) last_use_[graph.root(t)] = n;
      compute_s_ += node.algorithms[decisions.algorithms[n]].time_s;
    }
  }

  double of(int gap, Keep keep, int codec) const {
    const Gap& g = scheduler_.gaps()[gap];
    if (keep == Keep::kHost) {
      // Copies are hidden while the streams are idle for most of the time.
      const double copy_s = round_trip_s(g.tensor);
      return copied_s_ + copy_s < kHidden * compute_s_ ? kOverlap * copy_s : copy_s;
    }
    if (keep == Keep::kPacked) {
      const auto bytes = static_cast<double>(graph_.tensors[g.tensor].bytes);
      return bytes / graph_.codecs[codec].encode_bytes_per_s +
             bytes / graph_.codecs[codec].decode_bytes_per_s;
    }
    std::unordered_set<int> made;
    return again_s(g.tensor, g.to, made);
  }

  void take(int gap, Keep keep) {
    if (keep == Keep::kHost) copied_s_ += round_trip_s(scheduler_.gaps()[gap].tensor);
  }

 private:
  static constexpr double kHidden = 0.7, kOverlap = 0.1;

  double round_trip_s(int tensor) const {
    const auto bytes = static_cast<double>(graph_.tensors[tensor].bytes);
    return bytes / graph_.bandwidth.to_host + bytes / graph_.bandwidth.to_device;
  }

  /// Returns true if the tensor is on the device when `node` runs.
  bool is_there(int tensor, int node) const {
    if (producer_[tensor] < 0) return true;
    for (const int g : scheduler_.gaps_of(tensor))
      if (scheduler_.gaps()[g].covers(node)) return decisions_.gaps[g] == Keep::kResident;
    return node <= last_use_[tensor];
  }

  /// Returns the time to recompute a tensor just before `node`, with all inputs that are not there.
  /// `made` collects the nodes that run for it, each once, however many tensors need their results.
  double again_s(int tensor, int node, std::unordered_set<int>& made) const {
    const int producer = producer_[tensor];
    if (producer < 0 || graph_.nodes[producer].runs_once()) return kImpossible;
    if (!made.insert(producer).second) return 0;
    const GraphNode& made_by = graph_.nodes[producer];
    double out = made_by.algorithms[decisions_.algorithms[producer]].time_s;
    for (const int input : made_by.inputs)
      if (const int root = graph_.root(input); !is_there(root, node))
        out += again_s(root, node, made);
    return out;
  }

  const Graph& graph_;
  const Scheduler& scheduler_;
  const Decisions& decisions_;
  std::vector<int> producer_, last_use_;  // per storage: node
  double compute_s_ = 0, copied_s_ = 0;
};

/// Bytes by which each node exceeds the budget.
class Excess {
 public:
  Excess(const std::vector<int64_t>& bytes, int64_t budget_bytes) {
    for (const int64_t held : bytes) over_.push_back(std::max<int64_t>(held - budget_bytes, 0));
  }
  bool none() const {
    return std::all_of(over_.begin(), over_.end(), [](int64_t bytes) { return bytes == 0; });
  }
  /// Returns the excess that goes away if `bytes` leave during the gap.
  double gained(const Gap& gap, int64_t bytes) const {
    double out = 0;
    visit(gap, [&](int n) { out += static_cast<double>(std::min(over_[n], bytes)); });
    return out;
  }
  void free(const Gap& gap, int64_t bytes) {
    visit(gap, [&](int n) { over_[n] = std::max<int64_t>(over_[n] - bytes, 0); });
  }

 private:
  /// Visits the nodes that run within the gap.
  template <class Visit>
  void visit(const Gap& gap, Visit&& visit) const {
    const int end = gap.wraps ? static_cast<int>(over_.size()) : gap.to;
    for (int n = gap.from + 1; n < end; ++n) visit(n);
    for (int n = 0; gap.wraps && n < gap.to; ++n) visit(n);
  }

  std::vector<int64_t> over_;  // per node
};

}  // namespace

Decisions Search::shed(int64_t budget_bytes, const SolveOptions& allowed, Keep again, Until until) {
  constexpr int kRounds = 12;
  Decisions decisions = all_resident();
  const auto goes_on = [&] { return in_time() || (until == Until::kPlan && !best_); };
  for (int round = 0; round < kRounds && goes_on(); ++round) {
    const auto now = scheduler_.schedule(decisions, kNoBudget);
    if (!now) break;
    Excess excess(now->settled_bytes, budget_bytes);
    if (excess.none()) break;
    Prices prices(graph_, scheduler_, decisions);
    // Best treatment of a gap: seconds for each byte of excess that it frees.
    struct Offer {
      double price = kImpossible;
      int gap = -1;
      std::pair<Keep, int> way;
      int64_t bytes = 0;
      bool operator<(const Offer& other) const { return price > other.price; }
    };
    const auto best_of = [&](int g) {
      const Gap& gap = scheduler_.gaps()[g];
      Offer best{.gap = g, .way = {}};
      for (const auto& way : ways(g, allowed, false)) {
        if (way.first == Keep::kAgainEarly) continue;
        int64_t bytes = graph_.tensors[gap.tensor].bytes;
        if (way.first == Keep::kPacked) bytes -= graph_.packed_bytes(gap.tensor, way.second);
        const double gained = excess.gained(gap, bytes);
        if (gained <= 0) continue;
        const double price = prices.of(g, way.first, way.second) / gained;
        if (price < best.price) best = {.price = price, .gap = g, .way = way, .bytes = bytes};
      }
      return best;
    };
    std::priority_queue<Offer> offers;
    for (int g = 0; g < static_cast<int>(decisions.gaps.size()); ++g)
      if (decisions.gaps[g] == Keep::kResident && !scheduler_.is_moot(decisions, g))
        if (const Offer best = best_of(g); best.price < kImpossible) offers.push(best);
    bool changed = false;
    while (!offers.empty() && !excess.none()) {
      const int g = offers.top().gap;
      offers.pop();
      // Earlier choices have changed what the gap costs and gains.
      const Offer best = best_of(g);
      if (best.price == kImpossible || scheduler_.is_moot(decisions, g)) continue;
      if (!offers.empty() && best < offers.top()) {
        offers.push(best);
        continue;
      }
      prices.take(g, best.way.first);
      take(decisions, g,
           {best.way.first == Keep::kAgain ? again : best.way.first, best.way.second});
      excess.free(scheduler_.gaps()[g], best.bytes);
      changed = true;
    }
    if (!changed) break;
  }
  offer(decisions);
  return decisions;
}

}  // namespace dovetail::plan
