#include "dovetail/jobs/executor_shares.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/jobs/partition.h"

namespace dovetail::jobs {
namespace {

double median_of(const SpeedHistory& history) {
  return history.speed() ? history.speed()->row_s : 0;
}

int64_t sum(std::span<const int64_t> shares) {
  return std::accumulate(shares.begin(), shares.end(), int64_t{0});
}

}  // namespace

ExecutorShares::ExecutorShares(std::vector<int64_t> shares, double gain)
    : shares_(std::move(shares)), gain_(gain), history_(shares_.size()) {
  DOVETAIL_CHECK(!shares_.empty() && shares_.front() > 0, "an owner without micro-batches");
}

std::vector<int64_t> ExecutorShares::probe(size_t executors, int64_t micro_batches) {
  std::vector<int64_t> shares(executors, 1);
  shares.front() = micro_batches - static_cast<int64_t>(executors) + 1;
  return shares;
}

std::vector<int64_t> ExecutorShares::resumed(const std::vector<int64_t>& stored, size_t executors,
                                             int64_t micro_batches) {
  std::vector<int64_t> shares = stored;
  if (shares.size() != executors || sum(shares) != micro_batches)
    return probe(executors, micro_batches);
  for (int64_t& share : shares) {
    if (share > 0) continue;
    share = 1;
    --shares.front();
  }
  return shares.front() > 0 ? shares : probe(executors, micro_batches);
}

double ExecutorShares::step_s(std::span<const int64_t> shares) const {
  double computed_s = 0, added_s = 0;
  for (size_t e = 0; e < shares.size(); ++e) {
    if (shares[e] == 0) continue;
    const auto count = static_cast<double>(shares[e]);
    computed_s =
        std::max(computed_s, median_of(history_[e].start) + median_of(history_[e].rate) * count);
    added_s += median_of(history_[e].add) * count;
  }
  return computed_s + added_s;
}

/// Returns shares of the executors in `used`, at least one micro-batch each, that end together.
std::vector<int64_t> ExecutorShares::best(const std::vector<bool>& used) const {
  std::vector<DeviceCost> costs;
  for (size_t e = 0; e < used.size(); ++e) {
    if (used[e])
      costs.push_back({.start_s = median_of(history_[e].start),
                       .row_s = median_of(history_[e].rate),
                       .min_rows = 1});
  }
  const std::vector<int64_t> of_used = partition(sum(shares_), costs, 1).rows;
  std::vector<int64_t> shares(used.size(), 0);
  for (size_t e = 0, next = 0; e < used.size(); ++e)
    if (used[e]) shares[e] = of_used[next++];
  return shares;
}

/// Removes executors that do not pay from `used`, one after the other: each time the one whose
/// absence costs least.
std::vector<ExecutorShares::LeftOut> ExecutorShares::leave_out(std::vector<bool>& used) const {
  std::vector<LeftOut> left_out;
  while (true) {
    std::optional<LeftOut> least;
    const double with_s = step_s(best(used));
    for (size_t e = 1; e < used.size(); ++e) {
      if (!used[e]) continue;
      used[e] = false;
      const double without_s = step_s(best(used));
      used[e] = true;
      if (!least || without_s < least->without_s)
        least = {e, with_s, without_s, median_of(history_[e].rate)};
    }
    if (!least || least->with_s < (1 - gain_) * least->without_s) return left_out;
    used[least->executor] = false;
    left_out.push_back(*least);
  }
}

std::optional<ExecutorShares::Move> ExecutorShares::add(std::span<const Times> times) {
  DOVETAIL_CHECK(times.size() == shares_.size(), "{} times of {} executors", times.size(),
                 shares_.size());
  if (++steps_ <= kWarmUpSteps) return std::nullopt;
  std::vector<bool> used;
  for (size_t e = 0; e < times.size(); ++e) {
    used.push_back(shares_[e] > 0);
    if (!used[e]) continue;
    const auto count = static_cast<double>(shares_[e]);
    history_[e].rate.add(1, times[e].compute_s / count);
    if (times[e].start_s > 0) history_[e].start.add(1, times[e].start_s);
    if (times[e].add_s > 0) history_[e].add.add(1, times[e].add_s / count);
  }
  if (steps_ < kWarmUpSteps + kLeastTimes) return std::nullopt;

  Move move{.from = shares_, .to = {}, .rate_s = {}, .left_out = leave_out(used)};
  move.to = best(used);
  move.from_s = step_s(move.from);
  move.to_s = step_s(move.to);
  if (move.left_out.empty() && (move.to == shares_ || move.to_s > (1 - gain_) * move.from_s))
    return std::nullopt;
  for (size_t e = 0; e < shares_.size(); ++e)
    move.rate_s.push_back(shares_[e] > 0 ? median_of(history_[e].rate) : 0);
  shares_ = move.to;
  return move;
}

}  // namespace dovetail::jobs
