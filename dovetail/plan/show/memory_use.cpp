#include "dovetail/plan/show/memory_use.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <optional>

#include "dovetail/base/error.h"

namespace dovetail::plan {
namespace {

constexpr std::array<std::string_view, kPurposes> kPurposeNames = {
    "weights", "optimizer", "gradients", "activations", "compressed", "inputs", "workspace"};

class UseLedger {
 public:
  UseLedger(const Graph& graph, const Plan& plan, std::span<const Timeline::Span> actions)
      : graph_(graph),
        plan_(plan),
        actions_(actions),
        purposes_(purposes_of(graph)),
        read_until_s_(graph.tensors.size()),
        codec_(graph.tensors.size(), -1) {
    std::vector<bool> away(graph.tensors.size());
    for (const int t : plan.starts_on_host) away[t] = true;
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      if (graph.tensors[t].alias_of < 0 && resident_at_start(graph.tensors[t].kind) && !away[t])
        change(0, static_cast<int>(t), bytes(static_cast<int>(t)));
    if (graph.base_bytes > 0) changes_.push_back({0, Purpose::kInputs, graph.base_bytes});
    for (size_t a = 0; a < plan.actions.size(); ++a) visit(static_cast<int>(a));
  }

  std::vector<MemoryUse> over_time() {
    std::stable_sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) {
      return std::pair(tick(a.time_s), a.bytes > 0) < std::pair(tick(b.time_s), b.bytes > 0);
    });
    std::vector<MemoryUse> out;
    MemoryUse now;
    for (const Change& change : changes_) {
      now.time_s = change.time_s;
      now.bytes[static_cast<size_t>(change.purpose)] += change.bytes;
      if (!out.empty() && tick(out.back().time_s) == tick(now.time_s) && change.bytes > 0)
        out.back() = now;  // changes at the same time become one point
      else
        out.push_back(now);
    }
    return out;
  }

 private:
  struct Change {
    double time_s;
    Purpose purpose;
    int64_t bytes;
  };
  static int64_t tick(double time_s) { return std::llround(time_s * 1e12); }

  int64_t bytes(int tensor) const { return graph_.tensors[tensor].bytes; }
  void change(double time_s, int tensor, int64_t bytes) {
    changes_.push_back({time_s, purposes_[tensor], bytes});
  }

  void visit(int a) {
    const Action& action = plan_.actions[a];
    const Timeline::Span& span = actions_[a];
    const int t = action.tensor;
    switch (action.op) {
      case Op::kCompute: {
        const GraphNode& node = graph_.nodes[action.node];
        for (const int made : node.outputs)
          if (graph_.tensors[made].alias_of < 0) change(span.start_s, made, bytes(made));
        const int64_t workspace = node.algorithms[action.algorithm].workspace_bytes;
        changes_.push_back({span.start_s, Purpose::kWorkspace, workspace});
        changes_.push_back({span.end_s, Purpose::kWorkspace, -workspace});
        return;
      }
      case Op::kPrefetch:
      case Op::kDecompress:
        return change(span.start_s, t, bytes(t));
      case Op::kCompress:
        codec_[t] = action.codec;
        read_until_s_[t] = span.end_s;
        changes_.push_back({span.start_s, Purpose::kCompressed, graph_.packed_bytes(t, codec_[t])});
        return;
      case Op::kOffload:
        // On a real clock, a copy may end after the free that follows it.
        read_until_s_[t] = span.end_s;
        return;
      case Op::kFree:
        return change(std::max(span.end_s, read_until_s_[t]), t, -bytes(t));
      case Op::kFreePacked:
        changes_.push_back({span.end_s, Purpose::kCompressed, -graph_.packed_bytes(t, codec_[t])});
        return;
      case Op::kFreeHost:
        return;
    }
  }

  const Graph& graph_;
  const Plan& plan_;
  const std::span<const Timeline::Span> actions_;
  const std::vector<Purpose> purposes_;
  std::vector<double> read_until_s_;  // per tensor: end of its last copy or compression
  std::vector<int> codec_;
  std::vector<Change> changes_;
};

}  // namespace

std::string_view name(Purpose purpose) { return kPurposeNames[static_cast<size_t>(purpose)]; }

std::vector<Purpose> purposes_of(const Graph& graph) {
  std::vector<Purpose> out;
  for (const GraphTensor& tensor : graph.tensors) {
    switch (tensor.kind) {
      case TensorKind::kInput:
        out.push_back(Purpose::kInputs);
        break;
      case TensorKind::kParam:
        out.push_back(Purpose::kWeights);
        break;
      case TensorKind::kState:
        out.push_back(Purpose::kOptimizer);
        break;
      default:
        out.push_back(Purpose::kActivations);
    }
  }
  for (const GraphNode& node : graph.nodes) {
    const bool updates = std::any_of(node.mutates.begin(), node.mutates.end(), [&](int t) {
      return may_start_on_host(graph.tensors[graph.root(t)].kind);
    });
    if (!updates) continue;
    for (const int t : node.inputs)
      if (graph.tensors[graph.root(t)].kind == TensorKind::kGrad)
        out[graph.root(t)] = Purpose::kGradients;
  }
  return out;
}

int64_t MemoryUse::total() const { return std::accumulate(bytes.begin(), bytes.end(), int64_t{0}); }

std::vector<MemoryUse> memory_use(const Graph& graph, const Plan& plan,
                                  std::span<const Timeline::Span> actions) {
  DOVETAIL_CHECK(actions.size() == plan.actions.size(), "{} spans of {} actions", actions.size(),
                 plan.actions.size());
  return UseLedger(graph, plan, actions).over_time();
}

int64_t peak_of(const std::vector<MemoryUse>& use) {
  int64_t peak = 0;
  for (const MemoryUse& at : use) peak = std::max(peak, at.total());
  return peak;
}

std::vector<MemoryUse> thin_out(const std::vector<MemoryUse>& use, size_t most) {
  if (use.size() <= most) return use;
  std::vector<MemoryUse> out;
  const double end_s = use.back().time_s;
  size_t piece = 0;
  for (const MemoryUse& at : use) {
    const auto here =
        static_cast<size_t>(static_cast<double>(most - 1) * (end_s > 0 ? at.time_s / end_s : 0));
    if (out.empty() || here > piece) {
      out.push_back(at);
      piece = here;
    } else if (at.total() > out.back().total()) {
      out.back() = at;
    }
  }
  return out;
}

}  // namespace dovetail::plan
