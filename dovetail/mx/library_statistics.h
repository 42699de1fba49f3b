#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "dovetail/mx/quantized_linear.h"

namespace dovetail::mx {

/// Statistics of the Linears of torch.ops.dovetail that were called with a layer's name. Safe to
/// use from several threads.
class LibraryStatistics {
 public:
  /// Adds the statistics of one call of forward or backward.
  void add(std::string_view layer, const LinearStatistics& statistics);
  /// Returns the names of the layers and their statistics, and forgets them. The statistics are
  /// float64 (layers, 3, 12). The second dimension is weight, activation, gradient. The third has
  /// the members of Statistics in order, without floor_saturated_blocks. amax_bits is there as
  /// amax.
  std::tuple<std::vector<std::string>, at::Tensor> take();

 private:
  std::mutex mutex_;
  std::map<std::string, LinearStatistics, std::less<>> layers_;
};

/// Returns the statistics of this process.
LibraryStatistics& library_statistics();

}  // namespace dovetail::mx
