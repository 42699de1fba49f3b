#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/index_copy.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include "dovetail/fit/kmeans/assign_simd.h"
#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/task.h"

/// Tasks of k-means on a CPU, and `kmeans.draw` on any device. They work on the tensors of
/// KMeansData. The registrations below list the tensors that each task writes.
namespace dovetail::fit {
namespace {

struct Rows {
  explicit Rows(const jobs::Shard& shard) : tensors(jobs::rows_of(shard)) {}
  const at::Tensor& x() const { return tensors[KMeansData::kX]; }
  float* norms() const { return tensors[KMeansData::kNorms].mutable_data_ptr<float>(); }
  int32_t* labels() const { return tensors[KMeansData::kLabels].mutable_data_ptr<int32_t>(); }
  double* squares() const { return tensors[KMeansData::kSquares].mutable_data_ptr<double>(); }

  std::vector<at::Tensor> tensors;
};

at::Tensor number(double value) { return at::scalar_tensor(value, at::kDouble); }

/// Parameters: shift (D) float32. Partial: the sum of |x - shift|^2.
jobs::Partial norms_task(const jobs::Parameters& parameters, const jobs::Shard& shard) {
  const Rows rows(shard);
  const double sum =
      norms_from(rows.x().const_data_ptr<float>(), parameters[0].const_data_ptr<float>(),
                 shard.size, rows.x().size(1), rows.norms());
  return {{number(sum)}, static_cast<double>(shard.size)};
}

/// Parameters: centres (K, D) float64, shift (D) float32. Partial: as KMeansData::assign.
jobs::Partial assign_task(const jobs::Parameters& parameters, const jobs::Shard& shard) {
  const Rows rows(shard);
  const at::Tensor& centres = parameters[0];
  const int64_t num_centres = centres.size(0), dim = centres.size(1);
  const int64_t stride = (dim + kSumsPadding - 1) / kSumsPadding * kSumsPadding;
  const at::Tensor sums = at::zeros({num_centres, stride}, at::kDouble),
                   counts = at::zeros({num_centres}, at::kLong);
  const int64_t changed = assign_rows({.x = rows.x().const_data_ptr<float>(),
                                       .norm = rows.norms(),
                                       .shift = parameters[1].const_data_ptr<float>(),
                                       .centres = centres.const_data_ptr<double>(),
                                       .rows = shard.size,
                                       .dim = dim,
                                       .num_centres = num_centres,
                                       .label = rows.labels(),
                                       .sums = sums.mutable_data_ptr<double>(),
                                       .sums_stride = stride,
                                       .counts = counts.mutable_data_ptr<int64_t>()});
  return {{sums.narrow(1, 0, dim), counts, at::scalar_tensor(changed, at::kLong)},
          static_cast<double>(shard.size)};
}

/// Parameters: centres (K, D) float64. Partial: the inertia.
jobs::Partial distances_task(const jobs::Parameters& parameters, const jobs::Shard& shard) {
  const Rows rows(shard);
  const double inertia =
      squared_distances(rows.x().const_data_ptr<float>(), parameters[0].const_data_ptr<double>(),
                        rows.labels(), shard.size, rows.x().size(1), rows.squares());
  return {{number(inertia)}, static_cast<double>(shard.size)};
}

/// Parameters: as for assign_task. Data: row numbers (B) int64 of x; no labels are kept. Partial:
/// as KMeansData::assign_batch.
jobs::Partial batch_task(const jobs::Parameters& parameters, const jobs::Shard& shard) {
  const at::Tensor &centres = parameters[0], &shift = parameters[1];
  const at::Tensor x = jobs::whole_tensors(shard)[0].index_select(0, jobs::rows_of(shard)[0]);
  const jobs::ResidentData batch({x, at::empty({shard.size}, at::kFloat),
                                  at::zeros({shard.size}, at::kInt),
                                  at::empty({shard.size}, at::kDouble)});
  const jobs::Shard all = batch.shards(shard.size)[0];
  norms_task({shift}, all);
  jobs::Partial partial = assign_task(parameters, all);
  partial.tensors[2] = distances_task({centres}, all).tensors[0];
  return partial;
}

ClosestProblem closest_problem(const Rows& rows, const at::Tensor& points, const at::Tensor& shift,
                               const jobs::Shard& shard) {
  return {.x = rows.x().const_data_ptr<float>(),
          .norm = rows.norms(),
          .shift = shift.const_data_ptr<float>(),
          .points = points.const_data_ptr<double>(),
          .rows = shard.size,
          .dim = points.size(1),
          .count = points.size(0),
          .closest = rows.squares()};
}

/// Parameters: points (M, D) float64, shift (D) float32. Partial: the sums (M) of
/// min(squares, |x - point|^2).
jobs::Partial potentials_task(const jobs::Parameters& parameters, const jobs::Shard& shard) {
  const Rows rows(shard);
  const at::Tensor& points = parameters[0];
  const at::Tensor potentials = at::zeros({points.size(0)}, at::kDouble);
  add_potentials(closest_problem(rows, points, parameters[1], shard),
                 potentials.mutable_data_ptr<double>());
  return {{potentials}, static_cast<double>(shard.size)};
}

/// Parameters: points (M, D) float64, to which squares are lowered; the number of shards, () int64;
/// shift (D) float32. Partial: the sum of the squares of each shard, float64.
jobs::Partial include_task(const jobs::Parameters& parameters, const jobs::Shard& shard) {
  const Rows rows(shard);
  const at::Tensor& points = parameters[0];
  const double sum = include_points(closest_problem(rows, points, parameters[2], shard));
  const at::Tensor sums = at::zeros({parameters[1].item<int64_t>()}, at::kDouble);
  sums[shard.begin / kKMeansGrain] = sum;
  return {{sums}, static_cast<double>(shard.size)};
}

/// Parameters: shards (T) int64, uniform numbers (T) in [0, 1] float64. Partial, (T) int64: the row
/// for each draw from this shard, by draw_by_mass of the squares; 0 for other draws. Runs on any
/// device.
jobs::Partial draw_task(const jobs::Parameters& parameters, const jobs::Shard& shard) {
  // Cumulative sums have a fixed order on the CPU only.
  const at::Tensor shards = parameters[0].cpu(), uniform = parameters[1].cpu();
  const at::Tensor rows = at::zeros_like(shards),
                   here = (shards == shard.begin / kKMeansGrain).nonzero().flatten();
  if (here.numel() > 0) {
    const at::Tensor squares = jobs::rows_of(shard, KMeansData::kSquares).cpu();
    rows.index_copy_(0, here, draw_by_mass(squares, uniform.index_select(0, here)) + shard.begin);
  }
  return {{rows.to(parameters[0].device())}, static_cast<double>(shard.size)};
}

const jobs::TaskRegistration kNorms("kmeans.norms", at::kCPU, norms_task, {KMeansData::kNorms});
const jobs::TaskRegistration kAssign("kmeans.assign", at::kCPU, assign_task, {KMeansData::kLabels});
const jobs::TaskRegistration kBatch("kmeans.batch", at::kCPU, batch_task);
const jobs::TaskRegistration kDistances("kmeans.distances", at::kCPU, distances_task,
                                        {KMeansData::kSquares});
const jobs::TaskRegistration kPotentials("kmeans.potentials", at::kCPU, potentials_task);
const jobs::TaskRegistration kInclude("kmeans.include", at::kCPU, include_task,
                                      {KMeansData::kSquares});
const jobs::TaskRegistration kDraw("kmeans.draw", at::kCPU, draw_task);
const jobs::TaskRegistration kDrawOnGpu("kmeans.draw", at::kCUDA, draw_task);

}  // namespace
}  // namespace dovetail::fit
