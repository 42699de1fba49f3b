#include "dovetail/fit/kmeans/cluster_metrics.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace dovetail::fit {

double silhouette(const at::Tensor& x, const at::Tensor& labels) {
  const auto [clusters, cluster] = at::_unique(labels, /*sorted=*/true, /*return_inverse=*/true);
  if (clusters.numel() < 2) return std::numeric_limits<double>::quiet_NaN();
  const at::Tensor rows = x.to(at::kDouble), own = cluster.unsqueeze(1);
  const at::Tensor member =
      at::zeros({rows.size(0), clusters.numel()}, at::kDouble).scatter_(1, own, 1);
  const at::Tensor counts = member.sum(0);
  // Avoids a matrix product: |x|^2 - 2 x y + |y|^2 loses small distances.
  const at::Tensor sums = at::cdist(rows, rows, 2, /*compute_mode=*/2).matmul(member);  // (S, K)
  const at::Tensor others = counts.gather(0, own.squeeze(1)) - 1;
  const at::Tensor a = sums.gather(1, own).squeeze(1) / others.clamp_min(1);
  const at::Tensor means =
      (sums / counts).scatter_(1, own, std::numeric_limits<double>::infinity());
  const at::Tensor b = means.amin(1), larger = at::maximum(a, b);
  const at::Tensor values = at::where((others > 0).logical_and(larger > 0), (b - a) / larger, 0);
  return values.mean().item<double>();
}

namespace {

/// Returns the direction (D) in which rows (N, D) with mean 0 vary most. Undefined if they are
/// below `negligible`.
at::Tensor leading_direction(const at::Tensor& rows, double negligible) {
  const auto [u, scales, directions] = at::linalg_svd(rows, /*full_matrices=*/false);
  if (scales.numel() == 0 || scales[0].item<double>() <= negligible) return {};
  const at::Tensor direction = directions[0];
  // Picks the sign with which the largest component is positive.
  const bool is_negative = direction[direction.abs().argmax()].item<double>() < 0;
  return is_negative ? -direction : direction;
}

/// Returns the interquartile range of each column, or twice its deviation if that range is 0.
at::Tensor spreads(const at::Tensor& rows) {
  const at::Tensor sorted = std::get<0>(rows.sort(0));
  const int64_t last = rows.size(0) - 1;
  const at::Tensor range = sorted[(3 * last + 3) / 4] - sorted[last / 4];
  return at::where(range > 0, range, 2 * rows.std(0, /*unbiased=*/false));
}

/// Returns the centres of the rows' clusters, times the root of the number of rows, with mean 0.
at::Tensor weighted_centres(const at::Tensor& centres, const at::Tensor& labels) {
  const auto [clusters, inverse, counts] =
      at::_unique2(labels, /*sorted=*/true, /*return_inverse=*/false, /*return_counts=*/true);
  const at::Tensor used = centres.index_select(0, clusters.to(at::kLong)),
                   weights = counts.to(at::kDouble).unsqueeze(1);
  return (used - (used * weights).sum(0) / weights.sum()) * weights.sqrt();
}

}  // namespace

at::Tensor PicturePlane::project(const at::Tensor& rows) const {
  return ((rows.to(at::kDouble) - origin) / unit).matmul(directions).contiguous();
}

PicturePlane picture_plane(const at::Tensor& x, const at::Tensor& labels,
                           const at::Tensor& centres) {
  constexpr double kUnequal = 10;
  const at::Tensor rows = x.to(at::kDouble);
  PicturePlane plane{.origin = rows.mean(0),
                     .unit = at::ones({x.size(1)}, at::kDouble),
                     .directions = at::zeros({x.size(1), 2}, at::kDouble)};
  const at::Tensor spread = spreads(rows), varied = spread.masked_select(spread > 0);
  plane.has_units = varied.numel() > 1 && (varied.max() > kUnequal * varied.min()).item<bool>();
  if (plane.has_units) plane.unit = at::where(spread > 0, spread, 1);
  at::Tensor left = (rows - plane.origin) / plane.unit;
  const double all = left.square().sum().item<double>(), negligible = 1e-9 * std::sqrt(all);
  at::Tensor between =
      weighted_centres((centres.to(at::kDouble) - plane.origin) / plane.unit, labels);
  for (int64_t i = 0; i < 2; ++i) {
    at::Tensor direction = leading_direction(between, negligible);
    if (!direction.defined()) direction = leading_direction(left, negligible);
    if (!direction.defined()) break;
    plane.directions.select(1, i).copy_(direction);
    const at::Tensor along = left.matmul(direction).unsqueeze(1);
    plane.share[i] = along.square().sum().item<double>() / all;
    left = left - along * direction;
    between = between - between.matmul(direction).unsqueeze(1) * direction;
  }
  return plane;
}

}  // namespace dovetail::fit
