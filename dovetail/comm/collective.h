#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Returns the element-wise sums of all ranks' `values`, in float64, on every rank. All ranks pass
/// vectors of the same length.
std::vector<double> sum_over_ranks(Group& group, const std::vector<double>& values);

/// Returns rank 0's `value` on every rank.
nlohmann::json broadcast_json(Group& group, const nlohmann::json& value);

/// Returns the values of all ranks, in rank order, on every rank.
std::vector<nlohmann::ordered_json> gather_json(Group& group, const nlohmann::ordered_json& value);

/// Runs `work` on every rank and returns when it is done on all of them, however long that takes.
/// All ranks call it together. Meanwhile the ranks exchange a signal every second. So the group's
/// timeout does not expire, and a dead rank is noticed. A rank that passes an empty function only
/// waits. A rank whose `work` throws rethrows the exception. The other ranks throw CommError with
/// `what` (a name of the work), these ranks and their messages.
void on_all_ranks(Group& group, const std::string& what, const std::function<void()>& work);

/// Runs `work` on rank 0 while the other ranks wait, as on_all_ranks does.
void on_rank_zero(Group& group, const std::string& what, const std::function<void()>& work);

}  // namespace dovetail::comm
