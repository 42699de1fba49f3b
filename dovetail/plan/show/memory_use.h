#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// Purpose of memory in a step. Gradients are tensors that an update reads; gradients of
/// activations count as activations. Inputs include everything that the step treats as constant.
/// Packed forms of all tensors count as compressed.
enum class Purpose {
  kWeights,
  kOptimizer,
  kGradients,
  kActivations,
  kCompressed,
  kInputs,
  kWorkspace
};
inline constexpr size_t kPurposes = 7;
std::string_view name(Purpose purpose);
/// Returns the purpose of each tensor of the graph.
std::vector<Purpose> purposes_of(const Graph& graph);

/// Bytes held per purpose, from `time_s` on.
struct MemoryUse {
  double time_s = 0;
  std::array<int64_t, kPurposes> bytes = {};
  int64_t total() const;
};

/// Returns the memory that a plan holds over time, if its actions start and end at the given times.
/// The times belong to a Timeline or to an executed step. There is one point per change, in
/// ascending order of time, and the first is at 0. Memory is charged by the rules of `check`. On
/// the timeline of `check`, the peaks are therefore equal.
std::vector<MemoryUse> memory_use(const Graph& graph, const Plan& plan,
                                  std::span<const Timeline::Span> actions);

/// Returns the maximum bytes held at the same time.
int64_t peak_of(const std::vector<MemoryUse>& use);

/// Returns at most `most` points with the same peak. Time is divided into equal intervals, and each
/// interval keeps its point with the maximum bytes.
std::vector<MemoryUse> thin_out(const std::vector<MemoryUse>& use, size_t most);

}  // namespace dovetail::plan
