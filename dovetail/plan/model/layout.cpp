#include "dovetail/plan/model/layout.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "dovetail/plan/model/packing.h"
#include "dovetail/plan/model/schedule.h"

namespace dovetail::plan {
namespace {

class Arranger {
 public:
  Arranger(const Graph& graph, const Plan& plan, const Timeline& timeline)
      : graph_(graph),
        plan_(plan),
        timeline_(timeline),
        end_(static_cast<int>(plan.actions.size())),
        block_of_(graph.tensors.size(), -1),
        packed_of_(graph.tensors.size(), -1),
        offload_of_(graph.tensors.size(), -1),
        target_(plan.actions.size(), -1),
        outputs_(plan.actions.size()),
        no_sooner_s_(plan.actions.size()) {
    double soonest_s = std::numeric_limits<double>::infinity();
    for (int a = end_ - 1; a >= 0; --a) {
      const Op op = plan.actions[a].op;
      if (computes(op) || op == Op::kPrefetch)
        soonest_s = std::min(soonest_s, timeline.actions[a].start_s);
      no_sooner_s_[a] = soonest_s;
    }
  }

  Layout arrange(int64_t too_many) {
    std::vector<int> home(graph_.tensors.size(), -1);
    std::vector<bool> away(graph_.tensors.size());
    for (const int t : plan_.starts_on_host) away[t] = true;
    for (size_t t = 0; t < graph_.tensors.size(); ++t)
      if (resident_at_start(graph_.tensors[t].kind) && !away[t])
        home[t] = open(static_cast<int>(t), -1);
    home_ = home;
    for (int a = 0; a < end_; ++a) visit(a);
    for (Held& held : held_)
      for (auto& span : held.block.spans)
        if (span.second < 0) span.second = end_ + 1;
    std::vector<Block> blocks;
    const bool anywhere = !sizes_are_planned();
    for (const Held& held : held_) blocks.push_back({held.block.bytes, held.block.spans, anywhere});
    const Packing packing = pack(blocks, graph_.budget_bytes - graph_.base_bytes, too_many);
    const auto offset = [&](int block) { return block < 0 ? -1 : packing.offsets[block]; };
    Layout out{.bytes = packing.bytes,
               .outputs = std::vector<std::vector<int64_t>>(plan_.actions.size())};
    for (const int block : home) out.home.push_back(offset(block));
    for (int a = 0; a < end_; ++a) {
      out.result.push_back(offset(target_[a]));
      for (const int block : outputs_[a]) out.outputs[a].push_back(offset(block));
    }
    out.waits = waits(packing);
    return out;
  }

 private:
  struct Held {
    Block block;
    // Copies to the host: the action, and the first action that may use its memory.
    std::vector<std::pair<int, int>> left;
  };

  bool sizes_are_planned() const {
    return std::all_of(graph_.tensors.begin(), graph_.tensors.end(), [](const GraphTensor& tensor) {
      return tensor.bytes == planned_bytes(tensor.bytes);
    });
  }

  /// Opens a span of the tensor's memory that begins with action `from`. Returns its block.
  int open(int tensor, int from) {
    int block = block_of_[tensor];
    if (block < 0 || home_.empty() || home_[tensor] != block) {
      block = static_cast<int>(held_.size());
      held_.push_back({.block = {.bytes = graph_.tensors[tensor].bytes}});
    }
    held_[block].block.spans.emplace_back(from, -1);
    block_of_[tensor] = block;
    return block;
  }

  void visit(int a) {
    const Action& action = plan_.actions[a];
    switch (action.op) {
      case Op::kCompute: {
        const GraphNode& node = graph_.nodes[action.node];
        for (const int t : node.outputs) outputs_[a].push_back(open(t, a));
        if (const int64_t workspace = node.algorithms[action.algorithm].workspace_bytes;
            workspace > 0) {
          target_[a] = static_cast<int>(held_.size());
          held_.push_back({.block = {.bytes = workspace, .spans = {{a, a + 1}}}});
        }
        break;
      }
      case Op::kPrefetch:
        target_[a] = open(action.tensor, a);
        break;
      case Op::kOffload:
        offload_of_[action.tensor] = a;
        break;
      case Op::kFree: {
        Held& held = held_[block_of_[action.tensor]];
        const int until = held.block.spans.back().second = free_from(a);
        if (offload_of_[action.tensor] >= 0)
          held.left.emplace_back(offload_of_[action.tensor], until);
        offload_of_[action.tensor] = -1;
        break;
      }
      case Op::kFreeHost:
        break;
      case Op::kCompress:
        target_[a] = packed_of_[action.tensor] = static_cast<int>(held_.size());
        held_.push_back({.block = {.bytes = graph_.packed_bytes(action.tensor, action.codec),
                                   .spans = {{a, -1}}}});
        break;
      case Op::kDecompress:
        target_[a] = open(action.tensor, a);
        break;
      case Op::kFreePacked:
        held_[packed_of_[action.tensor]].block.spans.back().second = free_from(a);
        break;
    }
  }

  /// Returns the first action that may use the memory that the free `a` releases. Bytes are charged
  /// until the free ends on the simulated clock. Neither this action nor a later one in the list
  /// starts before that.
  int free_from(int a) const {
    const double end_s = timeline_.actions[a].end_s;
    const auto until = std::partition_point(no_sooner_s_.begin() + a + 1, no_sooner_s_.end(),
                                            [&](double start_s) { return start_s < end_s; });
    return static_cast<int>(until - no_sooner_s_.begin());
  }

  /// Returns, per action, the copies to the host that it must wait for. An action that reuses
  /// memory waits for the copy that leaves it, which may be late on a real clock.
  std::vector<std::vector<int>> waits(const Packing& packing) const {
    std::vector<std::vector<int>> out(plan_.actions.size());
    for (size_t b = 0; b < held_.size(); ++b)
      for (const auto& [copy, from] : held_[b].left)
        for (size_t other = 0; other < held_.size(); ++other) {
          if (packing.offsets[other] + held_[other].block.bytes <= packing.offsets[b] ||
              packing.offsets[b] + held_[b].block.bytes <= packing.offsets[other])
            continue;
          for (const auto& span : held_[other].block.spans)
            if (span.first >= from) out[span.first].push_back(copy);
        }
    for (auto& list : out) {
      std::sort(list.begin(), list.end());
      list.erase(std::unique(list.begin(), list.end()), list.end());
    }
    return out;
  }

  const Graph& graph_;
  const Plan& plan_;
  const Timeline& timeline_;
  const int end_;
  std::vector<Held> held_;
  std::vector<int> block_of_;    // per tensor: its current block
  std::vector<int> packed_of_;   // per tensor: the block of its packed form
  std::vector<int> offload_of_;  // per tensor: the last copy to the host since it was computed
  std::vector<int> home_;
  std::vector<int> target_;
  std::vector<std::vector<int>> outputs_;
  // Lower bound of the start time of the action and all later ones that allocate memory.
  std::vector<double> no_sooner_s_;
};

}  // namespace

Layout lay_out(const Graph& graph, const Plan& plan, const Timeline& timeline, int64_t too_many) {
  return Arranger(graph, plan, timeline).arrange(too_many);
}

}  // namespace dovetail::plan
