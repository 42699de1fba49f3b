#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "dovetail/fit/kmeans/assign_simd.h"
#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/task.h"

/// Tasks of k-means on a CPU, and `kmeans.draw` on any device. They work on the tensors of
/// KMeansData. The registrations below list the tensors that each task writes. If the data has the
/// tensor kWeights, all sums over rows are weighted sums. This includes Partial::weight, which is
/// the sum of the weights, and the counts of `kmeans.assign`, which become float64.
namespace dovetail::fit {
namespace {

struct Rows {
  explicit Rows(const jobs::Shards& shards) : tensors(jobs::rows_of(shards)) {}
  const at::Tensor& x() const { return tensors[KMeansData::kX]; }
  float* norms() const { return tensors[KMeansData::kNorms].mutable_data_ptr<float>(); }
  int32_t* labels() const { return tensors[KMeansData::kLabels].mutable_data_ptr<int32_t>(); }
  double* squares() const { return tensors[KMeansData::kSquares].mutable_data_ptr<double>(); }
  bool weighted() const { return tensors.size() > KMeansData::kWeights; }
  /// Returns the weights from row `begin` on; null if the rows have none.
  const double* weights(int64_t begin = 0) const {
    return weighted() ? tensors[KMeansData::kWeights].const_data_ptr<double>() + begin : nullptr;
  }

  std::vector<at::Tensor> tensors;
};

/// Calls work(begin, size) for the rows of each shard, counted from the first row of all shards.
template <class Work>
void for_shards(const jobs::Shards& shards, const Work& work) {
  for (int64_t begin = 0; begin < shards.size; begin += shards.grain)
    work(begin, std::min(shards.grain, shards.size - begin));
}

/// Returns the number of rows, or the sum of their weights.
double weight_of(const Rows& rows, const jobs::Shards& shards) {
  if (!rows.weighted()) return static_cast<double>(shards.size);
  jobs::ArrayTree sum(1);
  for_shards(shards, [&](int64_t begin, int64_t size) {
    double* to = sum.next();
    for (const double* w = rows.weights(begin); size > 0; --size) *to += *w++;
  });
  return sum.take().item<double>();
}

/// Returns the sum of the weights of the rows with each label, (K) float64.
at::Tensor label_weights(const Rows& rows, const jobs::Shards& shards, int64_t num_centres) {
  jobs::ArrayTree sums(num_centres);
  for_shards(shards, [&](int64_t begin, int64_t size) {
    double* to = sums.next();
    const int32_t* label = rows.labels() + begin;
    for (const double* w = rows.weights(begin); size > 0; --size) to[*label++] += *w++;
  });
  return sums.take();
}

/// Parameters: shift (D) float32. Partial: the sum of |x - shift|^2, () float64.
jobs::Partial norms_task(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const Rows rows(shards);
  const int64_t dim = rows.x().size(1);
  jobs::ArrayTree sum(1);
  for_shards(shards, [&](int64_t begin, int64_t size) {
    *sum.next() = norms_from(rows.x().const_data_ptr<float>() + begin * dim,
                             parameters[0].const_data_ptr<float>(), size, dim, rows.norms() + begin,
                             rows.weights(begin));
  });
  return {{sum.take().squeeze(0)}, weight_of(rows, shards)};
}

/// Parameters: centres (K, D) float64, shift (D) float32. Partial: as KMeansData::assign.
jobs::Partial assign_task(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const Rows rows(shards);
  const at::Tensor& centres = parameters[0];
  const int64_t num_centres = centres.size(0), dim = centres.size(1);
  const int64_t stride = (dim + kSumsPadding - 1) / kSumsPadding * kSumsPadding;
  jobs::ArrayTree sums(num_centres * stride);
  const at::Tensor counts = at::zeros({num_centres}, at::kLong);
  const int64_t changed = assign_rows({.x = rows.x().const_data_ptr<float>(),
                                       .norm = rows.norms(),
                                       .shift = parameters[1].const_data_ptr<float>(),
                                       .centres = centres.const_data_ptr<double>(),
                                       .rows = shards.size,
                                       .dim = dim,
                                       .num_centres = num_centres,
                                       .weight = rows.weights(),
                                       .label = rows.labels(),
                                       .grain = shards.grain,
                                       .next_sums = [&] { return sums.next(); },
                                       .sums_stride = stride,
                                       .counts = counts.mutable_data_ptr<int64_t>()});
  return {{sums.take().view({num_centres, stride}).narrow(1, 0, dim),
           rows.weighted() ? label_weights(rows, shards, num_centres) : counts,
           at::scalar_tensor(changed, at::kLong)},
          weight_of(rows, shards)};
}

/// Parameters: centres (K, D) float64. Partial: the inertia, () float64.
jobs::Partial distances_task(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const Rows rows(shards);
  const int64_t dim = rows.x().size(1);
  jobs::ArrayTree inertia(1);
  for_shards(shards, [&](int64_t begin, int64_t size) {
    *inertia.next() = squared_distances(
        rows.x().const_data_ptr<float>() + begin * dim, parameters[0].const_data_ptr<double>(),
        rows.labels() + begin, size, dim, rows.squares() + begin, rows.weights(begin));
  });
  return {{inertia.take().squeeze(0)}, weight_of(rows, shards)};
}

/// Parameters: as for assign_task. Data: row numbers (B) int64; no labels are kept. Whole tensors:
/// x and, if there are any, weights. Partial: as KMeansData::assign_batch.
jobs::Partial batch_task(const jobs::Parameters& parameters, const jobs::Shards& shard) {
  const at::Tensor &centres = parameters[0], &shift = parameters[1];
  const at::Tensor rows = jobs::rows_of(shard)[0];
  const std::vector<at::Tensor> whole = jobs::whole_tensors(shard);
  std::vector<at::Tensor> tensors = {
      whole[0].index_select(0, rows), at::empty({shard.size}, at::kFloat),
      at::zeros({shard.size}, at::kInt), at::empty({shard.size}, at::kDouble)};
  if (whole.size() > 1) tensors.push_back(whole[1].index_select(0, rows));
  const jobs::ResidentData batch(std::move(tensors));
  const jobs::Shards all = batch.shards(shard.size);
  norms_task({shift}, all);
  jobs::Partial partial = assign_task(parameters, all);
  partial.tensors[2] = distances_task({centres}, all).tensors[0];
  return partial;
}

/// Runs include_points on the rows of shards. The first `included` points are included, the others
/// are candidates. Returns the sums of each shard, (shards, max(1, candidates)).
at::Tensor include(const Rows& rows, const at::Tensor& points, int64_t included,
                   const at::Tensor& shift, const jobs::Shards& shards) {
  const int64_t width = std::max<int64_t>(1, points.size(0) - included);
  const int64_t stride = (width + kSumsPadding - 1) / kSumsPadding * kSumsPadding;
  const at::Tensor sums = at::zeros({shards.count(), stride}, at::kDouble);
  auto* next = sums.mutable_data_ptr<double>();
  include_points({.x = rows.x().const_data_ptr<float>(),
                  .norm = rows.norms(),
                  .shift = shift.const_data_ptr<float>(),
                  .points = points.const_data_ptr<double>(),
                  .rows = shards.size,
                  .dim = points.size(1),
                  .count = points.size(0),
                  .included = included,
                  .grain = shards.grain,
                  .closest = rows.squares(),
                  .weight = rows.weights(),
                  .next_sums = [&] { return std::exchange(next, next + stride); }});
  return sums.narrow(1, 0, width);
}

/// Returns the sum of the rows of a matrix along the tree of the shards.
at::Tensor sum_along_tree(const at::Tensor& of_shards) {
  jobs::ArrayTree sums(of_shards.size(1));
  const auto* from = of_shards.const_data_ptr<double>();
  for (int64_t i = 0; i < of_shards.size(0); ++i, from += of_shards.size(1))
    std::copy_n(from, of_shards.size(1), sums.next());
  return sums.take();
}

/// Parameters: points (M, D) float64, shift (D) float32. Lowers squares to the points. Partial: the
/// sum of the squares, (1) float64. `of_shards` has the sum of each shard (shards, 1).
jobs::Partial include_task(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const Rows rows(shards);
  const at::Tensor of_shards =
      include(rows, parameters[0], parameters[0].size(0), parameters[1], shards).contiguous();
  return {{sum_along_tree(of_shards)}, weight_of(rows, shards), of_shards};
}

/// Parameters: points (M, D) float64, number of points to include () int64, shift (D) float32. The
/// other points are T candidates. Lowers squares to the included points. Partial: the sums of
/// min(squares, |x - candidate|^2), (T) float64.
jobs::Partial potentials_task(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  const Rows rows(shards);
  const at::Tensor of_shards =
      include(rows, parameters[0], parameters[1].item<int64_t>(), parameters[2], shards);
  return {{sum_along_tree(of_shards.contiguous())}, weight_of(rows, shards)};
}

/// Parameters: shards (T) int64, uniform numbers (T) in [0, 1] float64. Partial: for each draw from
/// one of these shards, the row (T) int64 and its square (T) float64. Other draws have zeros.
/// Nothing, if there is no such draw. Rows are drawn by draw_by_mass of the squares times the
/// weights. Runs on any device.
jobs::Partial draw_task(const jobs::Parameters& parameters, const jobs::Shards& shards) {
  // Sums have a fixed order on the CPU only.
  const at::Tensor from = parameters[0].cpu(), uniform = parameters[1].cpu();
  std::map<int64_t, std::vector<int64_t>> draws;
  for (int64_t t = 0; t < from.numel(); ++t) {
    const int64_t shard = from.const_data_ptr<int64_t>()[t] - shards.begin / shards.grain;
    if (shard >= 0 && shard < shards.count()) draws[shard].push_back(t);
  }
  jobs::Partial partial{.weight = static_cast<double>(shards.size)};
  if (!draws.empty()) partial.tensors = {at::zeros_like(from), at::zeros_like(uniform)};
  for (const auto& [shard, these] : draws) {
    const jobs::Shards one = shards.part(shard, 1);
    const Rows rows(one);
    const at::Tensor squares = rows.tensors[KMeansData::kSquares].cpu();
    const at::Tensor mass =
        rows.weighted() ? squares * rows.tensors[KMeansData::kWeights].cpu() : squares;
    const at::Tensor index = at::tensor(these, at::kLong);
    const at::Tensor drawn = draw_by_mass(mass, uniform.index_select(0, index));
    partial.tensors[0].index_copy_(0, index, drawn + one.begin);
    partial.tensors[1].index_copy_(0, index, squares.index_select(0, drawn));
  }
  return partial;
}

constexpr auto kBlock = jobs::Takes::kBlock;
const jobs::TaskRegistration kNorms("kmeans.norms", at::kCPU, norms_task, {KMeansData::kNorms},
                                    kBlock);
const jobs::TaskRegistration kAssign("kmeans.assign", at::kCPU, assign_task, {KMeansData::kLabels},
                                     kBlock);
const jobs::TaskRegistration kBatch("kmeans.batch", at::kCPU, batch_task);
const jobs::TaskRegistration kDistances("kmeans.distances", at::kCPU, distances_task,
                                        {KMeansData::kSquares}, kBlock);
const jobs::TaskRegistration kInclude("kmeans.include", at::kCPU, include_task,
                                      {KMeansData::kSquares}, kBlock);
const jobs::TaskRegistration kPotentials("kmeans.potentials", at::kCPU, potentials_task,
                                         {KMeansData::kSquares}, kBlock);
const jobs::TaskRegistration kDraw("kmeans.draw", at::kCPU, draw_task, {}, kBlock);
const jobs::TaskRegistration kDrawOnGpu("kmeans.draw", at::kCUDA, draw_task, {}, jobs::Takes::kAny);

}  // namespace
}  // namespace dovetail::fit
