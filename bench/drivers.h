#pragma once

#include <ATen/ATen.h>

#include <barrier>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "dovetail/base/trace.h"
#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/workers.h"

/// Common code of benchmarks with several nodes.
namespace dovetail::fit {

/// Runs one driver per group of workers, each on its own thread. All of them process the same rows.
class Drivers {
 public:
  Drivers(std::string side, const at::Tensor& x,
          const std::vector<std::shared_ptr<jobs::Workers>>& workers)
      : name(std::move(side)), begin_(std::ssize(workers) + 1), end_(std::ssize(workers) + 1) {
    for (size_t node = 0; node < workers.size(); ++node)
      threads_.emplace_back([this, x, node, mine = workers[node]] { drive(x, node, mine); });
  }
  ~Drivers() {
    centres_ = at::Tensor();
    begin_.arrive_and_wait();
  }
  Drivers(const Drivers&) = delete;
  Drivers& operator=(const Drivers&) = delete;

  /// Runs an iteration. Returns the seconds until all drivers have its sums.
  double iterate(const at::Tensor& centres) {
    centres_ = centres;
    const double begin = now_seconds();
    begin_.arrive_and_wait();
    end_.arrive_and_wait();
    return now_seconds() - begin;
  }

  const std::string name;
  jobs::Partial sums;  ///< sums of the first driver's last iteration

 private:
  void drive(const at::Tensor& x, size_t node, const std::shared_ptr<jobs::Workers>& workers) {
    KMeansData data(x, workers);
    for (;;) {
      begin_.arrive_and_wait();
      if (!centres_.defined()) return;
      jobs::Partial partial = data.assign(centres_);
      if (node == 0) sums = std::move(partial);
      end_.arrive_and_wait();
    }
  }

  at::Tensor centres_;  ///< centres of the iteration; undefined: the threads end
  std::barrier<> begin_, end_;
  std::vector<std::jthread> threads_;
};

}  // namespace dovetail::fit
