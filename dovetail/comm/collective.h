#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::comm {

/// Returns element-wise sums over ranks, in float64. All ranks pass vectors of the same length.
std::vector<double> sum_over_ranks(Group& group, const std::vector<double>& values);

/// Returns rank 0's value on every rank.
nlohmann::json broadcast_json(Group& group, const nlohmann::json& value);

/// Returns every rank's value, in rank order, on every rank.
std::vector<nlohmann::ordered_json> gather_json(Group& group, const nlohmann::ordered_json& value);

/// Runs `work` on rank 0 while the others wait for any length of time. Rank 0 signals every second.
/// So the group's timeout does not expire, and a death of rank 0 is noticed. If `work` throws, rank
/// 0 rethrows, and the others throw CommError with `what` and the message.
void on_rank_zero(Group& group, const std::string& what, const std::function<void()>& work);

}  // namespace dovetail::comm
