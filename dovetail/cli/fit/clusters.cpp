#include "dovetail/cli/fit/clusters.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/fit/kmeans/init.h"

namespace dovetail::cli {
namespace {

bool has_names(const std::vector<std::string>& columns) {
  for (size_t i = 0; i < columns.size(); ++i)
    if (columns[i] != data::numbered_column(i)) return true;
  return false;
}

}  // namespace

at::Tensor places_in(const data::Matrix& centres, const std::vector<std::string>& columns,
                     const std::string& file) {
  std::vector<int64_t> places;
  std::vector<std::string> missing;
  for (const std::string& column : columns) {
    const auto found = std::ranges::find(centres.columns, column);
    places.push_back(found - centres.columns.begin());
    if (found == centres.columns.end()) missing.push_back(printable(column));
  }
  // If names repeat, positions distinguish the columns.
  const bool by_name =
      missing.empty() && std::set<int64_t>(places.begin(), places.end()).size() == places.size();
  if (by_name) return at::tensor(places, at::kLong);
  const bool some = !missing.empty() && missing.size() < columns.size();
  if (has_names(centres.columns) && (some || (!missing.empty() && has_names(columns))))
    throw UserError(fmt::format("no column of {} is named {}", file, fmt::join(missing, ", ")),
                    "the data and the centres need the same names of columns, or none");
  return at::arange(std::ssize(columns), at::kLong);
}

at::Tensor centres_by(const std::string& init, const data::Matrix& matrix, fit::KMeansData& data,
                      int64_t num_centres, int64_t seed) {
  if (fit::is_kmeans_init(init))
    return fit::initial_centres(data, num_centres, fit::parse_kmeans_init(init),
                                static_cast<uint64_t>(seed));
  if (!std::filesystem::exists(init))
    throw UserError(fmt::format(
        "--init: {} is neither a file nor k-means++, k-means-parallel, random or first", init));
  const data::Matrix start = data::read_matrix(init, {.type = data::MatrixType::kFloat64});
  user_check(start.x.size(0) == num_centres && start.x.size(1) == data.columns(),
             "--init: {} has {} rows of {} columns, not {} (--k) of {} (the data)", init,
             start.x.size(0), start.x.size(1), num_centres, data.columns());
  return matrix.shifted(start.x.index_select(1, places_in(start, matrix.columns, init)))
      .contiguous();
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
