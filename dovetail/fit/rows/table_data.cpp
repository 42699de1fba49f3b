#include "dovetail/fit/rows/table_data.h"

#include <ATen/ATen.h>

#include <utility>

#include "dovetail/fit/rows/products_simd.h"
#include "dovetail/fit/rows/rows.h"
#include "dovetail/jobs/workers.h"

namespace dovetail::fit {
namespace {

std::vector<at::Tensor> with(const at::Tensor& x, std::vector<at::Tensor> more) {
  more.insert(more.begin(), x);
  return more;
}

/// Parameters: point (D) float64. Partial (2, D): sums of x - point and of its squares.
jobs::Partial moments_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const at::Tensor rows = jobs::rows_of(shard, 0);
  const int64_t dim = rows.size(1);
  const at::Tensor sums = at::zeros({2, dim}, at::kDouble);
  auto* first = sums.mutable_data_ptr<double>();
  with_rows(rows, 0, [&](const auto* x) {
    add_moments(x, parameters[0].const_data_ptr<double>(), shard.size, dim, first, first + dim);
  });
  return {{sums}, static_cast<double>(shard.size)};
}
const jobs::TaskRegistration kMoments("table.moments", at::kCPU, moments_task);

}  // namespace

TableData::TableData(const char* who, const at::Tensor& x, std::shared_ptr<jobs::Workers> workers,
                     std::vector<at::Tensor> more)
    : x_(check_rows(who, x, /*takes_double=*/true)),
      resident_(with(x, std::move(more))),
      workers_(std::move(workers)) {
  constexpr int64_t kSome = 256;  // moments about it are corrected, so it may be coarse
  const at::Tensor point = near_point(x, kSome).to(at::kDouble);
  if (!at::isfinite(point).all().item<bool>()) refuse_values(who, x);
  const at::Tensor moments = run("table.moments", {point}).tensors[0] / static_cast<double>(rows());
  if (!at::isfinite(moments).all().item<bool>()) refuse_values(who, x);
  mean_ = point + moments[0];
  variance_ = (moments[1] - moments[0].square()).clamp_min(0);
}

jobs::Partial TableData::run(const std::string& task, const jobs::Parameters& parameters) const {
  return jobs::run_on(workers_.get(), task, parameters, resident_.shards(kTableGrain));
}

at::Tensor TableData::tensor(size_t index) const {
  return jobs::rows_on(workers_.get(), resident_, index);
}

}  // namespace dovetail::fit
