#include "dovetail/fit/kmeans/cluster_metrics.h"

#include <ATen/ATen.h>

#include <algorithm>
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

PrincipalPlane principal_plane(const at::Tensor& x) {
  const at::Tensor rows = x.to(at::kDouble);
  PrincipalPlane plane{.mean = rows.mean(0)};
  const auto [u, scales, directions] = at::linalg_svd(rows - plane.mean, /*full_matrices=*/false);
  const at::Tensor squares = scales.square();
  const double all = squares.sum().item<double>();
  plane.directions = at::zeros({x.size(1), 2}, at::kDouble);
  for (int64_t i = 0; i < std::min<int64_t>(2, squares.numel()); ++i) {
    at::Tensor direction = directions[i];
    // Picks the sign with which the largest component is positive.
    if (direction[direction.abs().argmax()].item<double>() < 0) direction = -direction;
    plane.directions.select(1, i).copy_(direction);
    if (all > 0) plane.share[i] = squares[i].item<double>() / all;
  }
  return plane;
}

}  // namespace dovetail::fit
