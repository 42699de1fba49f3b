#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Error for a plan that must not run. `action` is the position of the action at fault, or -1 if no
/// single action is at fault.
class InvalidPlan : public std::runtime_error {
 public:
  InvalidPlan(int action, const std::string& message);
  int action() const { return action_; }

 private:
  int action_;
};

/// Bytes held from `time_s` on.
struct MemoryPoint {
  double time_s = 0;
  int64_t bytes = 0;
};

/// Simulation of a plan: start and end of each action, and memory.
struct Timeline {
  struct Span {
    double start_s = 0, end_s = 0;
  };
  std::vector<Span> actions;  ///< in plan order
  double makespan_s = 0;      ///< end of the last action
  int64_t peak_bytes = 0;
  double peak_at_s = 0;
  int64_t host_peak_bytes = 0;
  std::vector<MemoryPoint> memory;  ///< device memory, one point per change, ascending in time
  int again = 0;                    ///< computes beyond the first of each node
};

/// Checks a plan and simulates its streams. Throws InvalidPlan if
/// - an action reads a tensor that is not there (freed, never made), or in another version,
/// - a node reads a lossy copy, or any copy that went through a codec, and must not,
/// - a node never runs, or runs again and must not,
/// - a node writes a tensor during a copy of it,
/// - a tensor that must remain at the end is missing,
/// - memory exceeds the budget of the device or of the host,
/// - a tensor that starts on the host is no parameter or state, or does not end there,
/// - a claim of the plan does not hold.
///
/// An action starts when its stream is free, its waits have ended and its data are there. A copy
/// listed after a compute starts no earlier than that compute's end. It overlaps later computes.
///
/// Bytes are charged from the start of the action that creates them. They are released at the free,
/// or at the end of the last reader if that is later. A copy in flight is a reader, too. Workspace
/// is charged while its compute runs.
///
/// A tensor that starts on the host takes host bytes. It takes no device bytes until the plan
/// fetches it. Its newest version must be on the host, exact, when the step ends. It need not be on
/// the device, even if `final` lists it: the next step begins in the same state.
///
/// An algorithm may find a tensor on the host (Algorithm::on_host). The host must then have the
/// version that the node reads, and the device must have no copy. The compute turns the host copy
/// into the new version.
Timeline check(const Graph& graph, const Plan& plan);

}  // namespace dovetail::plan
