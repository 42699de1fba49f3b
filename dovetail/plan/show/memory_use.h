#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "dovetail/plan/model/check.h"

namespace dovetail::plan {

/// What memory of a step is for. Gradients are those that an update reads; gradients of activations
/// count as activations. Inputs are with what the step takes for constant. Packed forms of any
/// tensors are compressed.
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
/// Of each tensor of the graph.
std::vector<Purpose> purposes_of(const Graph& graph);

/// Bytes of each purpose from a moment on.
struct MemoryUse {
  double time_s = 0;
  std::array<int64_t, kPurposes> bytes = {};
  int64_t total() const;
};

/// What a plan holds over time if its actions start and end so: those of a Timeline, or of a step
/// that was run. One point a change, in time's order; the first is at 0. By the rules of `check`,
/// whose peak it has on its own timeline.
std::vector<MemoryUse> memory_use(const Graph& graph, const Plan& plan,
                                  std::span<const Timeline::Span> actions);

/// The most that is held at a time.
int64_t peak_of(const std::vector<MemoryUse>& use);

/// The same with at most `most` points, of each piece of time the one that holds the most; the peak
/// stays.
std::vector<MemoryUse> thin_out(const std::vector<MemoryUse>& use, size_t most);

}  // namespace dovetail::plan
