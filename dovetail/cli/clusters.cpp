#include "dovetail/cli/clusters.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/hybrid/kmeans_init.h"

namespace dovetail::cli {

at::Tensor centres_by(const std::string& init, const Matrix& matrix, hybrid::KMeansData& data, int64_t num_centres,
                      int64_t seed) {
  if (hybrid::is_kmeans_init(init))
    return hybrid::initial_centres(data, num_centres, hybrid::parse_kmeans_init(init), static_cast<uint64_t>(seed));
  if (!std::filesystem::exists(init))
    throw UserError(fmt::format("--init: {} is neither a file nor k-means++, k-means-parallel, random or first", init));
  const Matrix start = read_matrix(init);
  user_check(start.x.size(0) == num_centres && start.x.size(1) == data.columns(),
             "--init: {} has {} rows of {} columns, not {} (--k) of {} (the data)", init, start.x.size(0),
             start.x.size(1), num_centres, data.columns());
  return matrix.shifted(start.original(start.x.to(at::kDouble))).contiguous();
}

RowSample sample_rows(const at::Tensor& x, const at::Tensor& labels, int64_t seed) {
  constexpr uint64_t kRows = 2000;
  const auto rows = static_cast<uint64_t>(x.size(0));
  std::vector<int64_t> index;
  for (uint64_t i = 0; i < std::min(rows, kRows); ++i)
    index.push_back(static_cast<int64_t>(permuted_index(static_cast<uint64_t>(seed), i, rows)));
  const at::Tensor which = at::tensor(index, at::kLong);
  return {.x = x.index_select(0, which), .labels = labels.index_select(0, which)};
}

}  // namespace dovetail::cli
