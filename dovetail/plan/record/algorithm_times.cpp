// Choice among algorithms of a node: their times on zeros, and the removal of useless ones.
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/log.h"
#include "dovetail/base/trace.h"
#include "dovetail/plan/device/step_device.h"
#include "dovetail/plan/record/algorithms.h"
#include "dovetail/plan/record/operation_call.h"

namespace dovetail::plan {
namespace {

constexpr double kCannotRun_s = 1e9;  // time of an algorithm that fails

/// Returns the seconds of an operation on zeros: the minimum of some runs after a warm-up.
double seconds_on_zeros(const CapturedStep& step, const CapturedOperation& operation) {
  constexpr int kRuns = 3;
  const StepDevice& device = step_device(step.device);
  std::map<int, c10::Storage> zeros;
  for (const auto* list : {&operation.reads, &operation.writes})
    for (const int storage : *list) {
      const auto options = at::TensorOptions(at::kByte).device(
          step.storages[storage].elsewhere ? c10::Device(c10::kCPU) : step.device);
      if (!zeros.contains(storage))
        zeros.emplace(storage, at::zeros({step.storages[storage].bytes}, options).storage());
    }
  double seconds = std::numeric_limits<double>::infinity();
  for (int i = 0; i <= kRuns; ++i) {
    device.wait();
    const double begin_s = now_seconds();
    call(operation, [&](int storage) { return zeros.at(storage); });
    device.wait();
    if (i > 0) seconds = std::min(seconds, now_seconds() - begin_s);
  }
  return seconds;
}

}  // namespace

void time_on_zeros(const CapturedStep& step, StepGraph& graph, ProfileCache& cache) {
  const std::string prefix =
      fmt::format("time on zeros on {} of ", step_device(step.device).name());
  const auto time_of = [&](const CapturedOperation& operation) {
    const auto key = key_of({&operation, 1});
    if (!key) return seconds_on_zeros(step, operation);
    if (const auto known = cache.find(prefix + *key)) return known->get<double>();
    double seconds = kCannotRun_s;
    try {
      seconds = seconds_on_zeros(step, operation);
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& error) {
      // cuDNN lists an algorithm that it then refuses for these sizes.
      if (!operation.name.starts_with("dovetail::gpu_")) throw;
      log_info("plan: {} cannot run here: {}", *key, error.what_without_backtrace());
    }
    cache.put(prefix + *key, seconds);
    return seconds;
  };
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    auto& algorithms = graph.graph.nodes[n].algorithms;
    if (graph.nodes[n].variants.empty()) continue;
    for (size_t a = 0; a < algorithms.size(); ++a) {
      algorithms[a].time_s = 0;
      for (const CapturedOperation& operation :
           run_of(step, graph.nodes[n], static_cast<int>(a)).operations)
        algorithms[a].time_s += time_of(operation);
    }
  }
}

void drop_dominated(StepGraph& graph) {
  for (size_t n = 0; n < graph.nodes.size(); ++n) {
    auto& algorithms = graph.graph.nodes[n].algorithms;
    auto& variants = graph.nodes[n].variants;
    const auto is_dominated = [&](size_t a) {
      for (size_t b = 0; b < algorithms.size(); ++b) {
        const Algorithm &one = algorithms[a], &other = algorithms[b];
        const bool no_worse =
            other.time_s <= one.time_s && other.workspace_bytes <= one.workspace_bytes;
        const bool better =
            other.time_s < one.time_s || other.workspace_bytes < one.workspace_bytes;
        if (no_worse && (better || b < a)) return true;
      }
      return false;
    };
    std::vector<size_t> kept = {0};  // the captured algorithm always stays
    for (size_t a = 1; a < algorithms.size(); ++a)
      if (algorithms[a].time_s < kCannotRun_s && !is_dominated(a)) kept.push_back(a);
    std::vector<Algorithm> few;
    std::vector<NodeVariant> few_variants;
    for (const size_t a : kept) {
      few.push_back(std::move(algorithms[a]));
      if (a > 0) few_variants.push_back(std::move(variants[a - 1]));
    }
    algorithms = std::move(few);
    variants = std::move(few_variants);
  }
}

}  // namespace dovetail::plan
