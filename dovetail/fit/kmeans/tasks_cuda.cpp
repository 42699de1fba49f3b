#include <ATen/ATen.h>

#include <algorithm>

#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/task.h"

/// Tasks of k-means on a GPU, composed of ATen's float64 operations in a fixed order. So bits are
/// the same on every run. Labels equal the CPU's labels, unless two centres are equally near to
/// about 1e-14 of |x - shift|^2. Sums agree to rounding.
namespace dovetail::fit {
namespace {

/// Maximum elements of a matrix with a row per data row, and a column per centre or per column of
/// the data. It limits the rows at a time.
constexpr int64_t kElements = int64_t{1} << 25;

template <class Work>
void for_pieces(int64_t rows, int64_t columns, const Work& work) {
  const int64_t piece = std::max<int64_t>(1, kElements / columns);
  for (int64_t begin = 0; begin < rows; begin += piece) work(begin, std::min(piece, rows - begin));
}

/// Returns |row - point|^2 (rows) of x (rows, D) and a point (D). If `label` (rows) is given, the
/// point of each row is a row of `points` (K, D).
at::Tensor squares_to(const at::Tensor& x, const at::Tensor& points, const at::Tensor& label = {}) {
  at::Tensor squares = at::empty({x.size(0)}, points.options());
  for_pieces(x.size(0), x.size(1), [&](int64_t begin, int64_t count) {
    const at::Tensor of =
        label.defined() ? points.index_select(0, label.narrow(0, begin, count)) : points;
    squares.narrow(0, begin, count)
        .copy_((x.narrow(0, begin, count).to(at::kDouble) - of).square().sum(1));
  });
  return squares;
}

jobs::Partial norms_task_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const auto rows = jobs::rows_of(shards);
  const at::Tensor squares = squares_to(rows[KMeansData::kX], parameters[0].to(at::kDouble));
  // At least the norm, also after rounding to float32.
  rows[KMeansData::kNorms].copy_(squares.sqrt() * (1 + 0x1p-22));
  return {{squares.sum()}, static_cast<double>(shards.size)};
}

jobs::Partial assign_task_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const auto rows = jobs::rows_of(shards);
  const at::Tensor &all = rows[KMeansData::kX], &labels = rows[KMeansData::kLabels],
                   &centres = parameters[0];
  const at::Tensor shift = parameters[1].to(at::kDouble), d = centres - shift,
                   squares = d.square().sum(1);
  const int64_t num = centres.size(0);
  const at::Tensor sums = at::zeros_like(centres), counts = at::zeros({num}, centres.options());
  at::Tensor changed = at::zeros({}, labels.options().dtype(at::kLong));
  for_pieces(shards.size, num, [&](int64_t begin, int64_t count) {
    const at::Tensor x = all.narrow(0, begin, count).to(at::kDouble),
                     before = labels.narrow(0, begin, count);
    const at::Tensor nearest = at::addmm(squares, x - shift, d.t(), 1, -2).argmin(1);
    const at::Tensor member =
        at::zeros({count, num}, centres.options()).scatter_(1, nearest.unsqueeze(1), 1);
    sums.addmm_(member.t(), x);
    counts.add_(member.sum(0));
    changed.add_((before != nearest).sum());
    before.copy_(nearest);
  });
  return {{sums, counts.to(at::kLong), changed}, static_cast<double>(shards.size)};
}

jobs::Partial distances_task_on_gpu(const jobs::Parameters& parameters,
                                    const jobs::Shards& shards) {
  const auto rows = jobs::rows_of(shards);
  const at::Tensor& squares = rows[KMeansData::kSquares].copy_(
      squares_to(rows[KMeansData::kX], parameters[0], rows[KMeansData::kLabels]));
  return {{squares.sum()}, static_cast<double>(shards.size)};
}

jobs::Partial batch_task_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const at::Tensor x = jobs::whole_tensors(shards)[0].index_select(0, jobs::rows_of(shards)[0]);
  const auto options = x.options();
  const jobs::ResidentData batch({x, at::empty({shards.size}, options),
                                  at::zeros({shards.size}, options.dtype(at::kInt)),
                                  at::empty({shards.size}, options.dtype(at::kDouble))});
  const jobs::Shards all = batch.shards(shards.size);
  jobs::Partial partial = assign_task_on_gpu(parameters, all);
  partial.tensors[2] = distances_task_on_gpu({parameters[0]}, all).tensors[0];
  return partial;
}

jobs::Partial potentials_task_on_gpu(const jobs::Parameters& parameters,
                                     const jobs::Shards& shards) {
  const auto rows = jobs::rows_of(shards);
  std::vector<at::Tensor> sums;
  for (const at::Tensor& point : parameters[0].unbind(0))
    sums.push_back(
        at::minimum(rows[KMeansData::kSquares], squares_to(rows[KMeansData::kX], point)).sum());
  return {{at::stack(sums)}, static_cast<double>(shards.size)};
}

jobs::Partial include_task_on_gpu(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const auto rows = jobs::rows_of(shards);
  const at::Tensor& squares = rows[KMeansData::kSquares];
  for (const at::Tensor& point : parameters[0].unbind(0))
    squares.copy_(at::minimum(squares, squares_to(rows[KMeansData::kX], point)));
  const at::Tensor sums = at::zeros({parameters[1].item<int64_t>()}, squares.options());
  const int64_t grain = shards.grain, first = shards.begin / grain, whole = shards.size / grain;
  sums.narrow(0, first, whole)
      .copy_(squares.narrow(0, 0, whole * grain).view({whole, grain}).sum(1));
  if (whole < shards.count()) sums[first + whole] = squares.slice(0, whole * grain).sum();
  return {{sums}, static_cast<double>(shards.size)};
}

constexpr auto kAny = jobs::Takes::kAny;
const jobs::TaskRegistration kNormsOnGpu("kmeans.norms", at::kCUDA, norms_task_on_gpu,
                                         {KMeansData::kNorms}, kAny);
const jobs::TaskRegistration kAssignOnGpu("kmeans.assign", at::kCUDA, assign_task_on_gpu,
                                          {KMeansData::kLabels}, kAny);
const jobs::TaskRegistration kBatchOnGpu("kmeans.batch", at::kCUDA, batch_task_on_gpu, {}, kAny);
const jobs::TaskRegistration kDistancesOnGpu("kmeans.distances", at::kCUDA, distances_task_on_gpu,
                                             {KMeansData::kSquares}, kAny);
const jobs::TaskRegistration kPotentialsOnGpu("kmeans.potentials", at::kCUDA,
                                              potentials_task_on_gpu, {}, kAny);
const jobs::TaskRegistration kIncludeOnGpu("kmeans.include", at::kCUDA, include_task_on_gpu,
                                           {KMeansData::kSquares}, kAny);

}  // namespace
}  // namespace dovetail::fit
