#include "dovetail/jobs/micro_batches.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/jobs/partition.h"

namespace dovetail::jobs {

MicroBatchShares::MicroBatchShares(std::vector<int64_t> shares, double gain)
    : shares_(std::move(shares)), gain_(gain), history_(shares_.size()) {
  DOVETAIL_CHECK(std::ranges::all_of(shares_, [](int64_t share) { return share > 0; }),
                 "a rank without micro-batches");
}

std::optional<MicroBatchShares::Move> MicroBatchShares::add(std::span<const int64_t> micro_batches,
                                                            std::span<const double> seconds) {
  DOVETAIL_CHECK(micro_batches.size() == shares_.size() && seconds.size() == shares_.size(),
                 "{} counts and {} times of {} ranks", micro_batches.size(), seconds.size(),
                 shares_.size());
  std::vector<DeviceCost> costs;
  size_t least = kLeastTimes;
  for (size_t r = 0; r < shares_.size(); ++r) {
    history_[r].add(1, seconds[r] / static_cast<double>(micro_batches[r]));
    costs.push_back({.row_s = history_[r].speed()->row_s, .min_rows = 1});
    least = std::min(least, history_[r].size());
  }
  if (least < kLeastTimes) return std::nullopt;
  const int64_t count = std::accumulate(shares_.begin(), shares_.end(), int64_t{0});
  // move_shares compares with the new time: saving `gain` of the old time is gain / (1 - gain) of
  // the new time.
  const std::vector<int64_t> to = move_shares(shares_, count, costs, 1, gain_ / (1 - gain_));
  if (to == shares_) return std::nullopt;
  Move move{.from = shares_,
            .to = to,
            .rank_s = {},
            .from_s = seconds_of(shares_, costs, 1),
            .to_s = seconds_of(to, costs, 1)};
  for (const DeviceCost& cost : costs) move.rank_s.push_back(cost.row_s);
  shares_ = to;
  return move;
}

}  // namespace dovetail::jobs
