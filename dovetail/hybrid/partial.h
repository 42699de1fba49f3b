#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <vector>

namespace dovetail::hybrid {

/// The additive result of a task on a shard: sums, and the weight behind them (rows, samples, tokens). Never a mean:
/// whoever has the sum over all shards divides once.
struct Partial {
  std::vector<at::Tensor> tensors;
  double weight = 0;

  /// Adds tensor by tensor, into this one's own. An empty one (no tensors) becomes `other`.
  void add(const Partial& other);
};

/// The sum of the partials of shards 0, 1, 2, ... in exactly this order, whatever the order they arrive in: its bits do
/// not depend on who computed what, or when. Keeps what came too early; what came in turn is added at once.
class OrderedSum {
 public:
  /// The partial of shard `place`, once for each. Safe from several threads; takes the partial's tensors over.
  void add(int64_t place, Partial partial);

  /// The sum over shards [0, count), which must all have come.
  Partial take(int64_t count);

 private:
  std::mutex mutex_;
  std::map<int64_t, Partial> early_;
  int64_t next_ = 0;
  Partial sum_;
};

}  // namespace dovetail::hybrid
