#include "dovetail/jobs/speed.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::jobs {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

}  // namespace

void SpeedHistory::add(int64_t rows, double seconds) {
  DOVETAIL_CHECK(rows > 0 && seconds > 0 && std::isfinite(seconds), "{} rows in {} s", rows,
                 seconds);
  const Time time{static_cast<double>(rows), seconds};
  if (speed_) {
    const double ratio = seconds / (speed_->start_s + speed_->row_s * time.rows);
    const int side = ratio > 1 + kFarOff ? 1 : ratio < 1 / (1 + kFarOff) ? -1 : 0;
    off_ = side == 0 ? 0 : off_ * side > 0 ? off_ + side : side;
  }
  times_.push_back(time);
  if (times_.size() > kKept) times_.pop_front();
  if (has_changed()) {
    times_.erase(times_.begin(), times_.end() - kChanged);
    off_ = 0;
  }
  speed_ = fit();
}

bool SpeedHistory::has_changed() const { return std::abs(off_) >= static_cast<int>(kChanged); }

Speed SpeedHistory::fit() {
  std::vector<double> slopes, rest;
  for (size_t i = 0; i < times_.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (times_[i].rows != times_[j].rows)
        slopes.push_back((times_[i].seconds - times_[j].seconds) /
                         (times_[i].rows - times_[j].rows));
  const double slope = slopes.empty() ? 0 : median(slopes);
  for (const Time& time : times_) rest.push_back(time.seconds - slope * time.rows);
  const double start = median(rest);
  has_start_ = slope > 0 && start >= 0;
  if (has_start_) return {start, slope};
  const double most = std::ranges::max_element(times_, {}, &Time::rows)->rows;
  rest.clear();
  for (const Time& time : times_)
    if (time.rows >= most / 2) rest.push_back(time.seconds / time.rows);
  return {0, median(rest)};
}

}  // namespace dovetail::jobs
