#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dovetail/plan/model/check.h"

/// Memory of a training step over time, by purpose, for reports.
namespace dovetail::plan {

/// Purpose of memory in a step. kGradients: gradients that an update reads; other gradients count
/// as activations. kInputs: everything that the step treats as constant. kCompressed: packed forms
/// of all tensors.
enum class Purpose {
  kWeights,
  kOptimizer,
  kGradients,
  kActivations,
  kCompressed,
  kInputs,
  kWorkspace
};
/// Number of purposes.
inline constexpr size_t kPurposes = 7;
std::string_view name(Purpose purpose);
/// Returns the purpose of each tensor of the graph.
std::vector<Purpose> purposes_of(const Graph& graph);

/// Bytes in use per purpose, from `time_s` until the next point.
struct MemoryUse {
  double time_s = 0;
  std::array<int64_t, kPurposes> bytes = {};
  /// Returns the sum over all purposes.
  int64_t total() const;
};

/// Returns the device memory that a plan uses over time. `actions` has start and end of each
/// action, from a simulation (Timeline::actions) or from an executed step. There is one point per
/// change, in ascending order of time, and the first is at 0. Memory counts by the rules of `check`
/// (plan/model/check.h). For the times that `check` simulates, the peak therefore equals
/// Timeline::peak_bytes.
std::vector<MemoryUse> memory_use(const Graph& graph, const Plan& plan,
                                  std::span<const Timeline::Span> actions);

/// Returns the maximum of total() over all points.
int64_t peak_of(const std::vector<MemoryUse>& use);

/// Returns at most `most` of the points, with the same peak. Time is divided into equal intervals,
/// and each interval keeps its point with the maximum bytes.
std::vector<MemoryUse> thin_out(const std::vector<MemoryUse>& use, size_t most);

}  // namespace dovetail::plan
