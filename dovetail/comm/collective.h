#pragma once

#include <nlohmann/json_fwd.hpp>

#include <functional>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// Element-wise sums in float64. All ranks, same length.
std::vector<double> sum_over_ranks(Group& group, const std::vector<double>& values);

/// Rank 0's value, on every rank.
nlohmann::json broadcast_json(Group& group, const nlohmann::json& value);

/// Every rank's value, in their order, on every rank.
std::vector<nlohmann::ordered_json> gather_json(Group& group, const nlohmann::ordered_json& value);

/// Runs `work` on rank 0 while the others wait for it, however long it takes: they hear from rank 0
/// every second, so neither the group's timeout nor a death of rank 0 goes unnoticed. If it throws,
/// rank 0 rethrows that and the others throw CommError with `what` and its message.
void on_rank_zero(Group& group, const std::string& what, const std::function<void()>& work);

}  // namespace dovetail
