#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// Error for a plan that must not run. `action` is the position of the wrong action in
/// Plan::actions, or -1 if no single action is wrong.
class InvalidPlan : public std::runtime_error {
 public:
  InvalidPlan(int action, const std::string& message);
  int action() const { return action_; }

 private:
  int action_;
};

/// Device memory in use from `time_s` until the next point.
struct MemoryPoint {
  double time_s = 0;
  int64_t bytes = 0;
};

/// Result of simulating a plan. Times are seconds since the start of the step.
struct Timeline {
  /// Start and end of one action.
  struct Span {
    double start_s = 0, end_s = 0;
  };
  std::vector<Span> actions;        ///< one per action of the plan, in its order
  double makespan_s = 0;            ///< end of the last action
  int64_t peak_bytes = 0;           ///< maximum device memory
  double peak_at_s = 0;             ///< time at which device memory first reaches peak_bytes
  int64_t host_peak_bytes = 0;      ///< maximum host memory
  std::vector<MemoryPoint> memory;  ///< one point per change, ascending in time
  int again = 0;                    ///< number of recomputations: runs of nodes after their first
};

/// Checks a plan by simulating its streams (plan/model/actions.h). Throws InvalidPlan if
/// - an action reads a tensor that is not there (freed, or not yet computed),
/// - a node finds another version of a tensor than it needs (GraphNode),
/// - a node reads a copy with loss, but the tensor does not have GraphTensor::lossy_ok,
/// - a node with GraphNode::reads_unpacked reads a copy that was packed by a codec and unpacked,
/// - a node never runs, or runs again although it must run once (GraphNode::runs_once),
/// - a node changes a tensor while it is being copied,
/// - a node changes a tensor while another copy of the tensor keeps the old values,
/// - at the end, a tensor of Graph::final is not on the device, not exact or not in its last
///   version,
/// - memory exceeds the budget of the device or of the host,
/// - a tensor that starts on the host is neither a parameter nor state,
/// - a tensor that starts on the host is not on the host at the end,
/// - Plan::claimed_peak_bytes or Plan::claimed_makespan_s does not hold.
///
/// An action starts when its stream is free, the actions in its `waits` have ended and its data are
/// there. A copy also waits for the last compute listed before it. A copy overlaps computes listed
/// after it.
///
/// Memory counts from the start of the action that allocates it. It is released at the later of two
/// times: the free, and the end of the last reader. A copy in flight is a reader, too. Workspace
/// counts while its compute runs.
///
/// A tensor that starts on the host (Plan::starts_on_host) takes host memory. It takes no device
/// memory until a prefetch. When the step ends, the host must have the last version of the tensor,
/// exact (Graph::final). The device need not have the tensor then, even if Graph::final lists it.
/// The next step begins in the same state.
///
/// An algorithm may read and change a tensor in host memory (Algorithm::on_host). The host must
/// then have the version that the node reads, and the device must have no copy. The compute turns
/// the host copy into the new version.
Timeline check(const Graph& graph, const Plan& plan);

}  // namespace dovetail::plan
