#include "dovetail/plan/solve/plan_cache.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "dovetail/base/cache_folder.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/log.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/model/json_fields.h"
#include "dovetail/plan/record/profile_cache.h"
#include "dovetail/plan/solve/search.h"

namespace dovetail::plan {
namespace {

constexpr size_t kMost = 24;  // maximum plans per step

using Json = nlohmann::ordered_json;

/// Returns the graph without measured and requested values.
Json structure_of(const Graph& graph) {
  Json out = to_json(graph);
  out.erase("budget_bytes");
  out.erase("bandwidth");
  if (out.contains("codecs"))
    for (Json& codec : out["codecs"]) codec.erase("enc_Bps"), codec.erase("dec_Bps");
  for (Json& node : out["nodes"])
    for (Json& algorithm : node["algos"]) algorithm.erase("time");
  return out;
}

Json techniques_of(const SolveOptions& options) {
  return {options.offload,      options.recompute,  options.compress,
          options.across_steps, options.algorithms, options.least_bytes};
}

template <class T>
std::vector<T> numbers(const Fields& fields, const char* key, int below, size_t count) {
  std::vector<T> out;
  for (const nlohmann::json& one : fields.list(key)) {
    user_check(one.is_number_integer() && one >= 0 && one < below,
               "{}: {} holds {}; remove the file", fields.where(), key, one.dump());
    out.push_back(static_cast<T>(one.get<int>()));
  }
  user_check(out.size() == count, "{}: {} has {} numbers, not {}; remove the file", fields.where(),
             key, out.size(), count);
  return out;
}

}  // namespace

std::filesystem::path PlanCache::file_of(const Graph& graph, const SolveOptions& options) const {
  const Json key = {structure_of(graph), techniques_of(options)};
  return folder_ / fmt::format("{}.json", sha256_of(key.dump()).substr(0, 32));
}

std::vector<PlanCache::Known> PlanCache::find(const Graph& graph,
                                              const SolveOptions& options) const {
  std::vector<Known> out;
  if (folder_.empty()) return out;
  const std::filesystem::path file = file_of(graph, options);
  if (!std::filesystem::exists(file)) return out;
  const nlohmann::json content = read_json(file);
  const Fields fields(content, file.string(), {"version", "plans"});
  fields.version_1();
  const size_t gaps = find_gaps(graph).size(), nodes = graph.nodes.size();
  int algorithms = 1;
  for (const GraphNode& node : graph.nodes)
    algorithms = std::max(algorithms, static_cast<int>(node.algorithms.size()));
  for (const nlohmann::json& one : fields.list("plans")) {
    const Fields plan(one, file.string() + ": plans",
                      {"budget_bytes", "gaps", "codecs", "algorithms"});
    Known known{.budget_bytes = plan.bytes("budget_bytes")};
    known.decisions.gaps = numbers<Keep>(plan, "gaps", static_cast<int>(Keep::kPacked) + 1, gaps);
    known.decisions.codec =
        numbers<int>(plan, "codecs", std::max(static_cast<int>(graph.codecs.size()), 1), gaps);
    known.decisions.algorithms = numbers<int>(plan, "algorithms", algorithms, nodes);
    for (size_t n = 0; n < nodes; ++n)
      user_check(known.decisions.algorithms[n] < static_cast<int>(graph.nodes[n].algorithms.size()),
                 "{}: {} has no algorithm {}; remove the file", file.string(), graph.nodes[n].name,
                 known.decisions.algorithms[n]);
    out.push_back(std::move(known));
  }
  return out;
}

void PlanCache::put(const Graph& graph, const SolveOptions& options, const Known& known) const {
  if (folder_.empty()) return;
  std::vector<Known> all = find(graph, options);
  std::erase_if(all, [&](const Known& other) { return other.budget_bytes == known.budget_bytes; });
  all.insert(all.begin(), known);
  if (all.size() > kMost) all.resize(kMost);
  Json plans = Json::array();
  for (const Known& one : all)
    plans.push_back({{"budget_bytes", one.budget_bytes},
                     {"gaps", one.decisions.gaps},
                     {"codecs", one.decisions.codec},
                     {"algorithms", one.decisions.algorithms}});
  std::filesystem::create_directories(folder_);
  write_file_atomically(file_of(graph, options),
                        Json{{"version", 1}, {"plans", plans}}.dump() + "\n");
}

Solution solve_known(const PlanCache& cache, const Graph& graph, const SolveOptions& options,
                     const std::function<bool(const Solution&)>& fits,
                     const std::function<Solution(const Graph&, const SolveOptions&)>& one) {
  const double started_s = now_seconds();
  const Scheduler scheduler(graph, options.fetches_wait);
  std::optional<Solution> best;
  for (const PlanCache::Known& known : cache.find(graph, options)) {
    const int64_t budget_bytes = std::min(known.budget_bytes, graph.budget_bytes);
    auto schedule = scheduler.schedule(known.decisions, budget_bytes);
    if (!schedule || (best && schedule->expected_s >= best->schedule.expected_s)) continue;
    Solution found{.decisions = known.decisions,
                   .schedule = std::move(*schedule),
                   .budget_bytes = budget_bytes,
                   .bound_s = minimum_s(graph)};
    if (fits(found)) best = std::move(found);
  }
  SolveOptions from = options;
  if (best && !from.start) from.start = best->decisions;
  try {
    Solution made = one(graph, from);
    if (!best || made.schedule.expected_s <= best->schedule.expected_s) best = std::move(made);
  } catch (const UserError&) {
    if (!best) throw;
  }
  best->seconds = now_seconds() - started_s;
  try {
    cache.put(graph, options, {.budget_bytes = best->budget_bytes, .decisions = best->decisions});
  } catch (const std::exception& error) {  // the plan is valid without the cache
    log_warning("the plan cache does not store this plan: {}", error.what());
  }
  return std::move(*best);
}

std::filesystem::path PlanCache::default_folder() { return cache_folder("plans"); }

}  // namespace dovetail::plan
