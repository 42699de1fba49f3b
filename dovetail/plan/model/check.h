#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "dovetail/plan/model/actions.h"
#include "dovetail/plan/model/graph.h"

namespace dovetail::plan {

/// A plan that may not run. `action` is the position of the action at fault, or -1 where no single
/// one is.
class InvalidPlan : public std::runtime_error {
 public:
  InvalidPlan(int action, const std::string& message);
  int action() const { return action_; }

 private:
  int action_;
};

/// Bytes held from a moment on.
struct MemoryPoint {
  double time_s = 0;
  int64_t bytes = 0;
};

/// A plan as simulated: when each action starts and ends, and what memory it takes.
struct Timeline {
  struct Span {
    double start_s = 0, end_s = 0;
  };
  std::vector<Span> actions;  ///< in the order of the plan
  double makespan_s = 0;      ///< end of the last action
  int64_t peak_bytes = 0;
  double peak_at_s = 0;
  int64_t host_peak_bytes = 0;
  std::vector<MemoryPoint> memory;  ///< of the device, one point a change, in time's order
  int again = 0;                    ///< computes beyond the first of each node
};

/// Check a plan and simulate its streams. Throws InvalidPlan where an action reads what is not
/// there (freed, never made, another version, a lossy copy that its reader may not have, any copy
/// that went through a codec if its reader must not have one), where a node never runs or runs
/// again though it may not, where a write passes a copy in flight, where what must stay at the end
/// is missing, where memory exceeds the budget of the device or of the host, where what starts on
/// the host is no parameter or state or does not end there, or where a claim does not hold.
///
/// The rules: an action starts when its stream is free, its waits have ended and its data are
/// there. A copy listed after a compute starts no earlier than that compute's end and overlaps what
/// follows. Bytes are charged from the start of the action that makes them and released at the
/// later of the free and the end of the last reader, copies in flight among them; workspace is
/// charged while its compute runs. What starts on the host takes bytes there, none on the device,
/// until the plan fetches it; when the step ends, its newest version must be on the host, exact,
/// and need not be on the device, whatever `final` says: the next step begins as this one did. What
/// an algorithm finds on the host (Algorithm::on_host) must be there, as it would have to be on the
/// device, and not there; the copy on the host is then of the new version.
Timeline check(const Graph& graph, const Plan& plan);

}  // namespace dovetail::plan
