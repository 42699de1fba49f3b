#include "dovetail/plan/step/memory_record.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/plan/run/profile.h"
#include "dovetail/plan/show/memory_use.h"
#include "dovetail/plan/show/outcome.h"

namespace dovetail::plan {
namespace {

using Json = nlohmann::ordered_json;
using Spans = std::vector<Timeline::Span>;

constexpr size_t kMostPoints = 500;
constexpr double kNarrow = 1.0 / 2000;  // share of a step; shorter gaps are invisible in a chart

double microseconds(double seconds) { return std::round(seconds * 1e6) / 1e6; }

/// Converts to [[seconds, bytes of each purpose...], ...].
Json points(const std::vector<MemoryUse>& use) {
  Json out = Json::array();
  for (const MemoryUse& at : thin_out(use, kMostPoints)) {
    Json point = {microseconds(at.time_s)};
    for (const int64_t bytes : at.bytes) point.push_back(bytes);
    out.push_back(std::move(point));
  }
  return out;
}

/// Activity of each stream: [[start, end, layer or tensor], ...] in seconds. Adjacent spans of one
/// layer are merged.
class Streams {
 public:
  Streams(const PlannedStepView& step, const Spans& spans, double step_s)
      : narrow_s_(kNarrow * step_s) {
    std::vector<int> runs(step.graph.nodes.size());
    for (size_t a = 0; a < spans.size(); ++a) {
      const Action& action = step.plan.actions[a];
      switch (action.op) {
        case Op::kCompute: {
          const std::string& layer = step.graph.nodes[action.node].layer;
          const bool again = runs[action.node]++ > 0;
          add(again ? "again" : "compute", layer.empty() ? "outside the layers" : layer, spans[a]);
          break;
        }
        case Op::kCompress:
        case Op::kDecompress:
          add("codec", step.graph.tensors[action.tensor].id, spans[a]);
          break;
        case Op::kOffload:
          add("out", step.graph.tensors[action.tensor].id, spans[a]);
          break;
        case Op::kPrefetch:
          add("in", step.graph.tensors[action.tensor].id, spans[a]);
          break;
        default:
          break;
      }
    }
  }
  Json json() const { return json_; }

 private:
  void add(const char* stream, const std::string& what, const Timeline::Span& span) {
    Json& bars = json_[stream];
    if (!bars.empty() && bars.back()[2] == what &&
        span.start_s - bars.back()[1].get<double>() <= narrow_s_)
      bars.back()[1] = microseconds(span.end_s);
    else
      bars.push_back({microseconds(span.start_s), microseconds(span.end_s), what});
  }

  double narrow_s_;
  Json json_ = {{"compute", Json::array()},
                {"again", Json::array()},
                {"codec", Json::array()},
                {"out", Json::array()},
                {"in", Json::array()}};
};

}  // namespace

const Executor::Run* median_run(std::span<const Executor::Run> runs) {
  std::vector<const Executor::Run*> sorted;
  for (const Executor::Run& run : runs) sorted.push_back(&run);
  if (sorted.empty()) return nullptr;
  const auto middle = sorted.begin() + static_cast<std::ptrdiff_t>(sorted.size() / 2);
  std::nth_element(sorted.begin(), middle, sorted.end(),
                   [](const auto* a, const auto* b) { return a->seconds < b->seconds; });
  return *middle;
}

Json memory_record(const PlannedStepView& step) {
  const Executor::Run* run = median_run(step.runs);
  Json record = to_json(outcome_of(step.graph, step.plan, step.timeline), step.graph);

  Graph unlimited = step.graph;
  unlimited.budget_bytes = std::numeric_limits<int64_t>::max();
  const Plan keep_all = plan::keep_all(unlimited);
  const Timeline kept = check(unlimited, keep_all);
  const auto kept_use = memory_use(step.graph, keep_all, kept.actions);
  const auto simulated = memory_use(step.graph, step.plan, step.timeline.actions);

  Json purposes = Json::array();
  for (size_t p = 0; p < kPurposes; ++p) purposes.push_back(name(static_cast<Purpose>(p)));
  record["step"]["keep_all_s"] = kept.makespan_s;
  record["step"]["measured_s"] = run == nullptr ? Json() : Json(run->seconds);
  record["peak"] = {{"keep_all_bytes", kept.peak_bytes},
                    {"predicted_bytes", step.timeline.peak_bytes},
                    {"places_bytes", step.places_bytes},
                    {"used_bytes", nullptr},
                    {"measured_bytes", nullptr}};
  if (step.process_predicted_bytes > 0)
    record["process"] = {{"predicted_bytes", step.process_predicted_bytes},
                         {"measured_bytes", step.process_bytes}};
  record["memory"] = {
      {"purposes", purposes}, {"kept", points(kept_use)}, {"simulated", points(simulated)}};
  record["streams"] = {
      {"simulated", Streams(step, step.timeline.actions, step.timeline.makespan_s).json()}};
  if (run != nullptr) {
    const auto measured = memory_use(step.graph, step.plan, run->actions);
    record["peak"]["used_bytes"] = step.used_bytes;
    record["peak"]["measured_bytes"] = peak_of(measured);
    record["memory"]["measured"] = points(measured);
    record["streams"]["measured"] = Streams(step, run->actions, run->seconds).json();
  }
  record["curve"] = to_json({step.curve.begin(), step.curve.end()});
  return record;
}

}  // namespace dovetail::plan
