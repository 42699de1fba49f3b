#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "dovetail/jobs/partial.h"
#include "dovetail/jobs/shard.h"

namespace dovetail::jobs {
class Workers;
}

namespace dovetail::fit {

/// Rows per shard (unit of work, jobs/shard.h). The number is fixed, so that sums have the same
/// bits for any number of threads. It is small, so that all cores get work from few rows and end
/// together. A call of a task computes many shards.
constexpr int64_t kKMeansGrain = 1024;
/// Rows of a mini-batch per shard.
constexpr int64_t kKMeansBatchGrain = 1024;

/// Rows to cluster by k-means, with the tensors that each iteration needs per row. N rows, D
/// columns, K centres. The label of a row is the index of its nearest centre. The inertia is the
/// sum over the rows of the squared distance to the centre of their label.
///
/// Rows may have weights. A row of weight w counts like w equal rows in all sums, means and
/// probabilities. A row of weight 0 only gets a label. Weights of 1 give the bits of no weights.
///
/// Most members run a task (jobs/task.h) on shards of the rows. The tasks are `kmeans.norms`,
/// `kmeans.assign`, `kmeans.distances`, `kmeans.include`, `kmeans.potentials` and `kmeans.draw`.
/// Task `kmeans.batch` runs on shards of a list of row numbers. Tasks run on the `workers`
/// (jobs/workers.h) passed to the constructor. Without workers, they run on the threads of this
/// process. If the workers are several nodes (processes), every node must call every member.
class KMeansData {
 public:
  /// Indices of the tensors of the rows:
  ///   - x (N, D) float32,
  ///   - norms (N) float32: distance of each row to a fixed point near all rows,
  ///   - labels (N) int32,
  ///   - squares (N) float64: squared distances,
  ///   - weights (N) float64: only if rows have weights.
  enum Tensor : size_t { kX, kNorms, kLabels, kSquares, kWeights };

  /// Holds x without a copy. x must be (N, D) float32, contiguous, on the CPU, with at least one
  /// row and one column. Throws UserError for any other tensor. If a value is not finite, throws
  /// UserError that names its row and column.
  ///
  /// `weights` (N) float64, contiguous, on the CPU: weights of the rows. Undefined: no weights.
  /// Throws UserError for any other tensor. Throws UserError that names the row of a weight that is
  /// negative or not finite. Throws UserError if the sum is not within 1e-200 to 1e200.
  explicit KMeansData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers = nullptr,
                      const at::Tensor& weights = {});

  /// Sets the label of each row to the nearest of the centres (K, D) float64, in one pass over the
  /// rows. If several are equally near, takes the first one. Returns a Partial (jobs/partial.h)
  /// with weight N, the number of rows, and these tensors:
  ///   - sum of the rows with each label, (K, D) float64,
  ///   - number of rows with each label, (K) int64,
  ///   - number of changed labels, () int64.
  /// If rows have weights, the number of rows is the sum of their weights, (K) float64.
  jobs::Partial assign(const at::Tensor& centres);

  /// Like `assign`, but only for the rows with the numbers `rows` (B) int64, and without changing
  /// labels. Returns a Partial with weight B, the number of these rows, and three tensors. The
  /// first two are as for `assign`, the third is the inertia of these rows, () float64.
  jobs::Partial assign_batch(const at::Tensor& rows, const at::Tensor& centres) const;

  /// Squared distance of each row to the centre of its label, (N) float64, and their sum.
  struct Distances {
    at::Tensor squares;
    double inertia = 0;
  };
  /// Computes the Distances for the current labels, in another pass over the rows.
  Distances distances(const at::Tensor& centres);

  // k-means++ chooses points among the rows one after another. The members below hold, for each
  // row, the squared distance to the closest point chosen so far, (N) float64. `distances` forgets
  // all chosen points.

  /// Sets the distances of all rows to infinity: no point is chosen.
  void forget_closest();
  /// Returns the squared distance of each row to the closest chosen point, (N) float64.
  at::Tensor closest();
  /// Adds points (M, D) float64 to the chosen ones. Returns the new sum of closest().
  double include(const at::Tensor& points);
  /// Rows drawn by `draw`.
  struct Drawn {
    at::Tensor rows;     ///< their numbers, (T) int64
    at::Tensor squares;  ///< closest() of these rows, (T) float64
  };
  /// Draws T rows with probabilities proportional to closest(), times the weights. `uniform` (T)
  /// float64 holds a uniform random number in [0, 1) for each draw. The latest change of closest()
  /// must be a call of `include` that returned a sum above 0.
  ///
  /// On several nodes, no distances of rows are sent. A draw first selects a shard by the sums of
  /// all shards, which the tasks exchanged. The node that holds the distances of this shard then
  /// selects the row. The sums are small compared with the rows, up to some hundred million rows.
  Drawn draw(const at::Tensor& uniform) const;
  /// Returns, for each of the points (M, D), the sum of closest() if only this point were included.
  /// The result has shape (M). Runs on CPUs only.
  at::Tensor potentials(const at::Tensor& points);
  /// Adds point `index` of the latest call of `potentials` to the chosen ones. Returns the new sum
  /// of closest(). Reads no rows: the next pass over the rows includes the point.
  double choose(int64_t index);

  /// Returns the inertia after a call of `assign`, without another pass over the rows. `partial` is
  /// the result of the call, and `centres` its argument. The error is about 1e-15 times the inertia
  /// with K = 1. `distances` is exact.
  double inertia_of(const jobs::Partial& partial, const at::Tensor& centres) const;

  /// Returns the mean of the columns' variances. `partial` is a result of `assign`. If it is a
  /// result of `assign_batch`, returns an estimate.
  double mean_variance(const jobs::Partial& partial) const;

  const at::Tensor& x() const { return x_; }
  const at::Tensor& weights() const { return weights_; }  ///< (N) float64; undefined: none
  /// Returns the numbers of the rows whose weight is above 0, ascending, int64. Rows must have
  /// weights.
  at::Tensor rows_with_weight() const;
  at::Tensor labels() const;  ///< labels (N) int32; -1 before the first assignment
  void forget_labels();       ///< sets all labels to -1
  int64_t rows() const { return x_.size(0); }
  double total_weight() const { return total_weight_; }  ///< sum of the weights, or rows()
  int64_t columns() const { return x_.size(1); }

 private:
  jobs::Partial run(const char* task, const std::vector<at::Tensor>& parameters) const;
  jobs::Partial run(const char* task, const std::vector<at::Tensor>& parameters,
                    const jobs::Shards& shards) const;
  /// Includes the points in `pending_`.
  void include_pending();
  /// Returns the sum of closest().
  double sum_of_masses() const;
  /// Returns the sum of (x - shift) over the rows with each label, (K, D) float64.
  at::Tensor shifted_sums(const jobs::Partial& partial) const;

  at::Tensor x_, weights_;
  at::Tensor shift_;  ///< fixed point near the rows (D)
  jobs::ResidentData resident_;
  std::shared_ptr<jobs::Workers> workers_;
  double total_square_ = 0;  ///< sum of |x - shift|^2 over all rows
  double total_weight_ = 0;  ///< number of rows, or sum of their weights
  at::Tensor masses_;        ///< sum of closest() over the rows of each shard
  at::Tensor pending_;       ///< chosen points (P, D) float64 that kSquares does not include yet
  at::Tensor candidates_, potentials_;  ///< points and result of the latest call of `potentials`
};

/// Draws T indices with probabilities proportional to `mass` (N) float64, which must not be all
/// zero. Returns them as (T) int64. `uniform` (T) holds a random number in [0, 1) for each draw.
/// Element t of the result is the first index whose cumulative mass exceeds uniform[t] *
/// sum(mass).
at::Tensor draw_by_mass(const at::Tensor& mass, const at::Tensor& uniform);

/// Treatment of an empty centre, to which no row is assigned.
enum class EmptyCluster {
  kKeep,  ///< The empty centre stays where it is.
  /// The empty centre moves to a row: the one with the largest distance to its assigned centre. The
  /// row is removed from the sum of that centre.
  kReseed,
};
/// Parses "keep" or "reseed". Throws UserError for another name.
EmptyCluster parse_empty_cluster(std::string_view name);

/// Options of lloyd.
struct LloydOptions {
  int64_t iterations = 300;  ///< maximum number of iterations
  /// The shift of a centre is the distance by which it moves in an iteration. Stops when the sum of
  /// the squared shifts is at most `tolerance` * V. V is the mean of the columns' variances.
  double tolerance = 1e-4;
  EmptyCluster empty = EmptyCluster::kReseed;
  /// To resume a stopped run: LloydIteration::state of its last iteration. Empty: start from the
  /// given centres.
  std::vector<at::Tensor> state = {};
};

/// Progress of lloyd or mini_batch (kmeans/batch.h) after one iteration.
struct LloydIteration {
  int64_t iteration = 0;  ///< number of the iteration, from 1
  /// Inertia with the centres before this iteration (inertia_of). Mini-batches: inertia of the
  /// batch, times N / number of rows of the batch.
  double inertia = 0;
  double shift = 0;  ///< square root of the sum of the squared shifts of the centres
  std::optional<int64_t> changed = {};  ///< number of changed labels; nullopt for mini-batches
  double seconds = 0;                   ///< duration of the iteration
  /// Tensors for LloydOptions::state or MiniBatchOptions::state. Empty if the run has converged.
  std::vector<at::Tensor> state = {};
};

/// Returns `centres` (K, D) as contiguous float64. Throws UserError unless it is a real, finite
/// matrix with `columns` columns and 1 to kMaxCentres (kmeans/assign_simd.h) rows.
at::Tensor checked_centres(const at::Tensor& centres, int64_t columns);

/// Result of lloyd or mini_batch.
struct KMeansResult {
  at::Tensor centres;  ///< (K, D) float64
  /// Index of the nearest of `centres` for each row, (N) int32. The tensor belongs to KMeansData
  /// and is valid until the next `assign`.
  at::Tensor labels;
  at::Tensor counts;       ///< (K) int64: number of rows with each label
  double inertia = 0;      ///< inertia of `centres` and `labels`
  int64_t iterations = 0;  ///< number of iterations
  bool converged = false;  ///< true if it met a stop criterion other than `iterations`
};

/// Runs Lloyd's algorithm for k-means (S. Lloyd, Least squares quantization in PCM, 1982) from
/// initial centres (K, D). Stops when no label changed, at the tolerance, or after the maximum
/// number of iterations. Calls `report` after each iteration. The result has the same bits for any
/// number of threads.
KMeansResult lloyd(KMeansData& data, const at::Tensor& centres, const LloydOptions& options = {},
                   const std::function<void(const LloydIteration&)>& report = {});

}  // namespace dovetail::fit
