#include "dovetail/fit/components/largest_eigen.h"

#include <ATen/ATen.h>

#include <cmath>
#include <future>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"

namespace dovetail::fit {
namespace {

/// Returns the last `num` of eigenvalues and vectors in ascending order, now in descending order.
Eigen last(const at::Tensor& values, const at::Tensor& vectors, int64_t num) {
  const int64_t dim = values.size(0);
  const at::Tensor order = at::arange(dim - 1, dim - 1 - num, -1, at::kLong);
  return {values.index_select(0, order), vectors.index_select(1, order)};
}

Eigen solve(const at::Tensor& a, int64_t wanted) {
  // Below, LAPACK in float64 takes at most some milliseconds.
  constexpr int64_t kLarge = 256, kFew = 8;
  if (a.size(0) >= kLarge && kFew * (wanted + kGuards) <= a.size(0)) {
    Eigen refined = refined_eigen(a, wanted);
    if (refined.values.defined()) return refined;
  }
  const auto [values, vectors] = at::linalg_eigh(a, "U");
  return last(values, vectors, wanted);
}

}  // namespace

Eigen refined_eigen(const at::Tensor& a, int64_t wanted) {
  constexpr int kSteps = 8;
  // Values that are closer, relative to the largest, are the same in float32.
  constexpr double kClose = 1e-5;
  const int64_t dim = a.size(0), num = wanted + kGuards;
  DOVETAIL_CHECK(wanted > 0 && num <= dim, "{} of {} eigenvectors", wanted, dim);
  const double size = a.triu().abs().max().item<double>();
  if (!(size > 0 && std::isfinite(size))) return {};
  const at::Tensor full = (a.triu() + a.triu(1).t()) / size;
  const auto [all_values, all_vectors] = at::linalg_eigh(full.to(at::kFloat), "U");
  const double largest = all_values.abs().max().item<double>();
  const double enough =
      4 * std::numeric_limits<double>::epsilon() * std::sqrt(static_cast<double>(dim)) * largest;
  at::Tensor basis = last(all_values, all_vectors, num).vectors.to(at::kDouble);
  const at::Tensor others = all_vectors.narrow(1, 0, dim - num);
  const at::Tensor other_values = all_values.narrow(0, 0, dim - num).to(at::kDouble).unsqueeze(1);
  for (int step = 0; step < kSteps; ++step) {
    orthonormalize(basis);
    const at::Tensor image = full.mm(basis), within = basis.t().mm(image);
    const Eigen ritz = eigen((within + within.t()) / 2);
    basis = basis.mm(ritz.vectors);
    const at::Tensor residual = image.mm(ritz.vectors) - basis * ritz.values;
    const at::Tensor lengths = residual.norm(2, 0);
    if (lengths.narrow(0, 0, wanted).max().item<double>() <= enough) {
      // An eigenvector outside of the basis could belong to a larger value than the last wanted
      // one.
      const double above = (ritz.values[wanted - 1] - ritz.values[num - 1]).item<double>();
      if (above <= kClose * largest) return {};
      return {ritz.values.narrow(0, 0, wanted) * size, basis.narrow(1, 0, wanted).contiguous()};
    }
    const at::Tensor distance = other_values - ritz.values;
    const at::Tensor scale = lengths.clamp_min(std::numeric_limits<double>::min());
    const at::Tensor along = others.t().mm((residual / scale).to(at::kFloat)).to(at::kDouble) /
                             distance.masked_fill(distance.abs() < kClose * largest,
                                                  std::numeric_limits<double>::infinity());
    basis = basis - others.mm(along.to(at::kFloat)).to(at::kDouble) * scale;
  }
  return {};
}

Eigen largest_eigen(const at::Tensor& a, int64_t wanted) {
  return std::async(std::launch::async,
                    [&] {
                      compute_alone();
                      return solve(a, wanted);
                    })
      .get();
}

}  // namespace dovetail::fit
