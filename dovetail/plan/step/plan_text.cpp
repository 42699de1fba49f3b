#include "dovetail/plan/step/plan_text.h"

#include <fmt/format.h>

#include "dovetail/base/table.h"
#include "dovetail/plan/show/memory_use.h"
#include "dovetail/plan/show/outcome.h"
#include "dovetail/plan/show/tables.h"

namespace dovetail::plan {
namespace {

std::string times_and_peaks(const MemoryPlanReport& report, const PlannedStepView& step,
                            const PlanOutcome& outcome, const std::optional<EagerStep>& eager) {
  const Executor::Run* run = median_run(step.runs);
  const double without_s = eager ? eager->seconds : report.keep_all_s;
  const auto time = [&](double seconds) {
    return fmt::format("{} ({:.3f}x)", format_seconds(seconds), seconds / without_s);
  };
  const auto bytes = [](int64_t count) { return mib(count) + " MiB"; };
  const auto known = [&](int64_t count) { return count > 0 ? bytes(count) : ""; };
  return format_table(
      {{"", eager ? "eager" : "everything kept", "predicted", "measured"},
       {"process", eager ? bytes(eager->process_bytes) : "", known(step.process_predicted_bytes),
        known(step.process_bytes)},
       {"step", format_seconds(without_s), time(outcome.expected_s()),
        run != nullptr ? time(run->seconds) : ""},
       {"held at the peak", bytes(report.keep_all_bytes), bytes(step.timeline.peak_bytes),
        run != nullptr ? bytes(peak_of(memory_use(step.graph, step.plan, run->actions))) : ""},
       {"all places", "", bytes(step.places_bytes), bytes(step.used_bytes)}},
      Heading::kFirstRow);
}

}  // namespace

std::string plan_text(const MemoryPlanReport& report, const PlannedStepView& step,
                      const PlanTextParts& parts) {
  const Graph& graph = step.graph;
  const PlanOutcome outcome = outcome_of(graph, step.plan, step.timeline);
  std::string text = fmt::format(
      "captured {} operations, {} storages; eager peak {} MiB; floor {} MiB; budget {} MiB\nsolved "
      "in {:.1f} s: {}\n\n",
      graph.nodes.size(), graph.tensors.size(), mib(report.keep_all_bytes), mib(report.floor_bytes),
      mib(report.budget_bytes), report.solve_s,
      bound_in_words(report.search, outcome.expected_s()));
  text += times_and_peaks(report, step, outcome, parts.eager) + "\n";
  if (parts.layers) text += layer_table(outcome, graph) + "\n";
  text += decision_table(outcome, graph);
  if (parts.curve)
    text += "\n" + curve_table({step.curve.begin(), step.curve.end()}, report.keep_all_bytes,
                               outcome.once_s);
  return text;
}

}  // namespace dovetail::plan
