#include "dovetail/fit/kmeans/kmeans.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/base/trace.h"
#include "dovetail/fit/kmeans/assign_simd.h"
#include "dovetail/fit/rows/rows.h"
#include "dovetail/jobs/task.h"
#include "dovetail/jobs/workers.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::fit {
namespace {

/// Moves each centre without rows to the row farthest from its own centre. The row leaves the sum
/// of that centre. Rows of weight 0 do not count. Returns true if a centre was moved.
bool reseed(KMeansData& data, const at::Tensor& centres, jobs::Partial& partial) {
  at::Tensor &sums = partial.tensors[0], &counts = partial.tensors[1];
  if (counts.min().item<double>() > 0) return false;
  const at::Tensor empty = (counts == 0).nonzero().flatten();
  at::Tensor squares = data.distances(centres).squares;
  const at::Tensor &weights = data.weights(), labels = data.labels();
  // Differences of weights are rounded: the number of rows tells when a centre has lost all.
  at::Tensor members = counts;
  if (weights.defined()) {
    squares = squares.masked_fill(weights == 0, 0);
    members = at::bincount(labels.index_select(0, data.rows_with_weight()), {}, counts.numel());
  }
  // Orders rows by distance, then by number: a stable sort, whose result does not depend on
  // threads.
  const at::Tensor farthest =
      std::get<1>(at::sort(squares, /*stable=*/true, /*dim=*/0, /*descending=*/true));
  for (int64_t i = 0; i < std::min(empty.numel(), data.rows()); ++i) {
    const auto row = farthest[i].item<int64_t>();
    if (squares[row].item<double>() == 0) return i > 0;  // every other row coincides with a centre
    const at::Scalar weight = weights.defined() ? weights[row].item() : at::Scalar(1);
    const at::Tensor x = data.x()[row].to(at::kDouble) * weight;
    const int64_t from = labels[row].item<int64_t>(), to = empty[i].item<int64_t>();
    sums[from].sub_(x);
    counts[from].sub_(weight);
    sums[to].copy_(x);
    counts[to].fill_(weight);
    if (!weights.defined()) continue;
    members[to].fill_(1);
    if (members[from].sub_(1).item<int64_t>() == 0) counts[from].zero_();
  }
  return true;
}

/// Returns the sum of a matrix of centres, row by row. Torch would cut one sum over all elements by
/// the number of threads.
double sum_of(const at::Tensor& x) { return x.sum(1).sum().item<double>(); }

/// Returns the tensors KMeansData::Tensor of the rows x.
std::vector<at::Tensor> tensors_of_rows(const at::Tensor& x, const at::Tensor& weights) {
  const int64_t rows = x.size(0);
  std::vector<at::Tensor> tensors = {x, at::empty({rows}, at::kFloat),
                                     at::full({rows}, -1, at::kInt),
                                     at::empty({rows}, at::kDouble)};
  if (weights.defined()) tensors.push_back(weights);
  return tensors;
}

/// Returns `weights`. Throws UserError unless they are weights of `rows` rows.
const at::Tensor& check_weights(const at::Tensor& weights, int64_t rows) {
  user_check(weights.dim() == 1 && weights.size(0) == rows &&
                 weights.scalar_type() == at::kDouble && weights.device().is_cpu() &&
                 weights.is_contiguous(),
             "kmeans: weights must be {} contiguous float64 numbers on the CPU, one per row, but "
             "are {}",
             rows, ops::describe(weights));
  const auto* weight = weights.const_data_ptr<double>();
  double sum = 0;
  for (int64_t i = 0; i < rows; ++i) {
    if (!(weight[i] >= 0) || std::isinf(weight[i]))
      throw UserError(fmt::format("kmeans: the weight of row {} is {}", i, weight[i]),
                      "weights must be finite and at least 0; 0 leaves a row out");
    sum += weight[i];
  }
  if (sum == 0) throw UserError("kmeans: all weights are 0", "give some rows a weight above 0");
  constexpr double kLargest = 1e200;
  user_check(sum >= 1 / kLargest && sum <= kLargest,
             "kmeans: the weights add up to {}, not to a number within {} and {}; scale them", sum,
             1 / kLargest, kLargest);
  return weights;
}

/// Centres after an iteration, and the sum of the squares of their moves.
struct Means {
  at::Tensor centres;
  double moved = 0;
};
/// Returns sums / counts. Centres without rows keep their values of `before`, which is contiguous.
/// Plain loops: an iteration over a few thousand rows takes no longer than ten operations of ATen.
Means means(const jobs::Partial& partial, const at::Tensor& before) {
  const at::Tensor sums = partial.tensors[0], counts = partial.tensors[1].to(at::kDouble);
  Means out{.centres = at::empty_like(before)};
  const auto sum = sums.accessor<double, 2>();
  const auto* count = counts.const_data_ptr<double>();
  const auto* from = before.const_data_ptr<double>();
  auto* to = out.centres.mutable_data_ptr<double>();
  for (int64_t c = 0; c < before.size(0); ++c)
    for (int64_t j = 0; j < before.size(1); ++j, ++from, ++to) {
      *to = count[c] > 0 ? sum[c][j] / count[c] : *from;
      out.moved += (*to - *from) * (*to - *from);
    }
  return out;
}

}  // namespace

at::Tensor checked_centres(const at::Tensor& centres, int64_t columns) {
  user_check(centres.dim() == 2 && centres.size(0) > 0 && centres.size(1) == columns &&
                 !centres.is_complex(),
             "kmeans: centres must be a real matrix of {} columns, but are {}", columns,
             ops::describe(centres));
  user_check(centres.size(0) <= kMaxCentres, "kmeans: {} centres; there may be {}", centres.size(0),
             kMaxCentres);
  at::Tensor c = centres.to(at::kDouble).contiguous();
  const auto* number = c.const_data_ptr<double>();
  user_check(std::all_of(number, number + c.numel(), [](double x) { return std::isfinite(x); }),
             "kmeans: a centre is not finite");
  return c;
}

KMeansData::KMeansData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers,
                       const at::Tensor& weights)
    : x_(check_rows("kmeans", x)),
      weights_(weights.defined() ? check_weights(weights, x.size(0)) : weights),
      shift_(near_point(x)),
      resident_(tensors_of_rows(x_, weights_)),
      workers_(std::move(workers)),
      pending_(at::empty({0, x.size(1)}, at::kDouble)) {
  if (!at::isfinite(shift_).all().item<bool>()) refuse_values("kmeans", x);
  const jobs::Partial norms = run("kmeans.norms", {shift_});
  total_weight_ = norms.weight;
  total_square_ = norms.tensors[0].item<double>();
  if (!std::isfinite(total_square_)) refuse_values("kmeans", x);
}

jobs::Partial KMeansData::run(const char* task, const std::vector<at::Tensor>& parameters) const {
  return run(task, parameters, resident_.shards(kKMeansGrain));
}

jobs::Partial KMeansData::run(const char* task, const std::vector<at::Tensor>& parameters,
                              const jobs::Shards& shards) const {
  return jobs::run_on(workers_.get(), task, parameters, shards);
}

jobs::Partial KMeansData::assign(const at::Tensor& centres) {
  return run("kmeans.assign", {checked_centres(centres, columns()), shift_});
}

jobs::Partial KMeansData::assign_batch(const at::Tensor& rows, const at::Tensor& centres) const {
  const jobs::ResidentData batch({rows}, 0,
                                 weights_.defined() ? std::vector{x_, weights_} : std::vector{x_});
  return run("kmeans.batch", {checked_centres(centres, columns()), shift_},
             batch.shards(kKMeansBatchGrain));
}

KMeansData::Distances KMeansData::distances(const at::Tensor& centres) {
  const jobs::Partial sum = run("kmeans.distances", {checked_centres(centres, columns())});
  pending_ = pending_.slice(0, 0, 0);
  return {closest(), sum.tensors[0].item<double>()};
}

at::Tensor KMeansData::rows_with_weight() const { return weights_.nonzero().flatten(); }

at::Tensor KMeansData::labels() const { return jobs::rows_on(workers_.get(), resident_, kLabels); }

at::Tensor KMeansData::closest() {
  include_pending();
  return jobs::rows_on(workers_.get(), resident_, kSquares);
}

void KMeansData::forget_labels() { resident_.put(kLabels, at::full({rows()}, -1, at::kInt)); }

void KMeansData::forget_closest() {
  resident_.put(kSquares, at::full({rows()}, std::numeric_limits<double>::infinity(), at::kDouble));
  pending_ = pending_.slice(0, 0, 0);
}

void KMeansData::include_pending() {
  if (pending_.size(0) > 0) include(pending_.slice(0, 0, 0));
}

double KMeansData::sum_of_masses() const {
  return masses_.cumsum(0)[-1]
      .item<double>();  // cumsum adds in order: sum() would depend on the number of threads
}

double KMeansData::include(const at::Tensor& points) {
  // Many points: a matrix product in float32 finds the nearest one faster.
  constexpr int64_t kFew = 16;
  if (points.size(0) <= kFew) {
    const at::Tensor all = checked_centres(at::cat({pending_, points}), columns());
    masses_ = run("kmeans.include", {all, shift_}).of_shards.select(1, 0);
    pending_ = pending_.slice(0, 0, 0);
  } else {
    const at::Tensor before = closest().clone();
    assign(points);
    const at::Tensor nearest = at::minimum(distances(points).squares, before);
    resident_.put(kSquares, nearest);
    const at::Tensor mass = weights_.defined() ? nearest * weights_ : nearest;
    std::vector<at::Tensor> sums;
    for (const at::Tensor& part : mass.split(kKMeansGrain)) sums.push_back(part.sum());
    masses_ = at::stack(sums);
  }
  return sum_of_masses();
}

KMeansData::Drawn KMeansData::draw(const at::Tensor& uniform) const {
  DOVETAIL_CHECK(pending_.size(0) == 0, "draw: a chosen point is not included");
  const at::Tensor upto = masses_.cumsum(0), shards = draw_by_mass(masses_, uniform);
  const at::Tensor mass = masses_.index_select(0, shards),
                   before = upto.index_select(0, shards) - mass;
  const at::Tensor within =
      ((uniform * upto[-1] - before) / mass).clamp(0, std::nextafter(1.0, 0.0));
  const jobs::Partial drawn = run("kmeans.draw", {shards, within});
  return {drawn.tensors[0], drawn.tensors[1]};
}

at::Tensor draw_by_mass(const at::Tensor& mass, const at::Tensor& uniform) {
  const at::Tensor upto = mass.cumsum(0);
  // right=true never returns an index without mass, even if `uniform` hits a boundary exactly.
  return at::searchsorted(upto, uniform * upto[-1], /*out_int32=*/false, /*right=*/true)
      .clamp_max(mass.numel() - 1);
}

at::Tensor KMeansData::potentials(const at::Tensor& points) {
  const at::Tensor all = checked_centres(at::cat({pending_, points}), columns()),
                   included = at::scalar_tensor(pending_.size(0), at::kLong);
  potentials_ = run("kmeans.potentials", {all, included, shift_}).tensors[0];
  pending_ = pending_.slice(0, 0, 0);
  candidates_ = points;
  return potentials_;
}

double KMeansData::choose(int64_t index) {
  pending_ = candidates_.slice(0, index, index + 1);
  return potentials_[index].item<double>();
}

at::Tensor KMeansData::shifted_sums(const jobs::Partial& partial) const {
  return partial.tensors[0] - partial.tensors[1].unsqueeze(1) * shift_.to(at::kDouble);
}

double KMeansData::inertia_of(const jobs::Partial& partial, const at::Tensor& centres) const {
  // |x - c|^2 = |y|^2 - 2 y d + |d|^2 with y = x - shift and d = c - shift.
  const at::Tensor d = centres.to(at::kDouble) - shift_.to(at::kDouble);
  const double products = sum_of(shifted_sums(partial) * d);
  const at::Tensor squares = partial.tensors[1] * d.square().sum(1);
  return std::max(0.0, total_square_ - 2 * products + squares.sum().item<double>());
}

double KMeansData::mean_variance(const jobs::Partial& partial) const {
  const at::Tensor counts = partial.tensors[1].to(at::kDouble), shift = shift_.to(at::kDouble);
  const auto sum = partial.tensors[0].accessor<double, 2>();
  const auto *count = counts.const_data_ptr<double>(), *point = shift.const_data_ptr<double>();
  double square = total_square_ / total_weight_;
  for (int64_t j = 0; j < columns(); ++j) {
    double mean = 0;
    for (int64_t c = 0; c < counts.numel(); ++c) mean += sum[c][j] - count[c] * point[j];
    mean /= partial.weight;
    square -= mean * mean;
  }
  return std::max(0.0, square) / static_cast<double>(columns());
}

EmptyCluster parse_empty_cluster(std::string_view name) {
  constexpr std::array<std::string_view, 2> kNames = {"keep", "reseed"};
  return parse_enum<EmptyCluster>("kmeans", "way of empty clusters", name, kNames);
}

KMeansResult lloyd(KMeansData& data, const at::Tensor& initial, const LloydOptions& options,
                   const std::function<void(const LloydIteration&)>& report) {
  user_check(options.iterations > 0, "kmeans: {} iterations; there must be at least 1",
             options.iterations);
  user_check(options.tolerance >= 0, "kmeans: the tolerance is {}, below 0", options.tolerance);
  KMeansResult result{.centres = checked_centres(initial, data.columns())};
  data.forget_labels();
  if (!options.state.empty()) {
    result.iterations = options.state.at(0).item<int64_t>();
    data.assign(options.state.at(1));  // labels with which the next iteration compares
    result.centres = options.state.at(2);
  }
  bool settled = false;  // labels belong to these centres
  while (!result.converged && result.iterations < options.iterations) {
    const double start = now_seconds();
    jobs::Partial partial = data.assign(result.centres);
    const int64_t changed = partial.tensors[2].item<int64_t>();
    const double limit =
        options.tolerance > 0 ? options.tolerance * data.mean_variance(partial) : 0;
    LloydIteration line{.iteration = ++result.iterations,
                        .inertia = report ? data.inertia_of(partial, result.centres) : 0,
                        .changed = changed};
    const bool moved_one =
        options.empty == EmptyCluster::kReseed && reseed(data, result.centres, partial);
    const auto [next, moved] = means(partial, result.centres);
    const at::Tensor before = std::exchange(result.centres, next);
    settled = changed == 0 && !moved_one;
    result.converged = settled || moved <= limit;
    line.shift = std::sqrt(moved);
    line.seconds = now_seconds() - start;
    if (!result.converged)
      line.state = {at::scalar_tensor(result.iterations, at::kLong), before, next};
    if (report) report(line);
  }
  if (!settled) data.assign(result.centres);
  result.counts = at::bincount(data.labels(), {}, result.centres.size(0));
  result.inertia = data.distances(result.centres).inertia;
  result.labels = data.labels();
  return result;
}

}  // namespace dovetail::fit
