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

/// Rows per shard of k-means. The number is fixed, so that sums have the same bits for any number
/// of threads. It is small enough that torch sums this many numbers on one thread.
constexpr int64_t kKMeansGrain = 16384;
/// Rows per shard of a mini-batch.
constexpr int64_t kKMeansBatchGrain = 1024;

/// Rows to cluster, with the data that each iteration needs per row. This is the distance to a
/// fixed point near all rows, and the label. N rows, D columns, K centres.
///
/// Tasks `kmeans.norms`, `kmeans.assign`, `kmeans.distances`, `kmeans.potentials`, `kmeans.include`
/// and `kmeans.draw` run on shards of the rows. Task `kmeans.batch` runs on shards of a list of row
/// numbers. The given workers (jobs/workers.h) compute the tasks; without workers, the threads of
/// this process do (run_task). If the workers are several nodes, every node must call every member.
class KMeansData {
 public:
  /// Indices of its tensors: x (N, D) float32, norms (N) float32, labels (N) int32, squared
  /// distances (N) float64.
  enum Tensor : size_t { kX, kNorms, kLabels, kSquares };

  /// Keeps x without a copy. x must be (N, D) float32, contiguous, on the CPU, with at least one
  /// row and one column. Throws UserError for any other tensor. Throws UserError that names row and
  /// column of a value that is not finite.
  explicit KMeansData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers = nullptr);

  /// Labels each row with the nearest of the centres (K, D) float64, in one pass over the rows. The
  /// first of equally near centres is taken. Returns a partial of weight N with three tensors:
  ///   - sums of the rows of each centre, (K, D) float64,
  ///   - number of rows of each centre, (K) int64,
  ///   - number of changed labels, () int64.
  jobs::Partial assign(const at::Tensor& centres);

  /// Assigns the rows with numbers `rows` (B) int64 in the same way, but leaves their labels
  /// unchanged. Returns a partial of weight B: sums and numbers of rows as for `assign`, then the
  /// inertia () float64.
  jobs::Partial assign_batch(const at::Tensor& rows, const at::Tensor& centres) const;

  /// Computes the squared distances |x_i - centres[label_i]|^2 (N) float64 and their sum, the
  /// inertia. This takes another pass over the rows.
  struct Distances {
    at::Tensor squares;
    double inertia = 0;
  };
  Distances distances(const at::Tensor& centres);

  /// Squared distances (N) float64 of the rows to the closest point included so far, for k-means++.
  /// `forget_closest` sets them to infinity, and `closest` returns them. They share a tensor with
  /// the squares of `distances`.
  void forget_closest();
  at::Tensor closest() const;
  /// Includes points (M, D) float64. Returns the new sum of `closest`.
  double include(const at::Tensor& points);
  /// Draws rows (T) int64 with probabilities proportional to `closest`. `uniform` (T) float64 holds
  /// a uniform number in [0, 1) for each draw. The last `include` must have returned more than 0.
  /// Each partial of `include` has one number per shard of all rows. That is small compared with
  /// the rows of a shard, up to some hundred million rows. On several nodes no distances are sent.
  /// The shard is drawn by the sums of all shards, and the row on the node that holds its
  /// distances.
  at::Tensor draw(const at::Tensor& uniform) const;
  /// Returns the sum of `closest` (M) that would result from including each of the points (M, D)
  /// alone.
  at::Tensor potentials(const at::Tensor& points) const;

  /// Returns the inertia of the assignment that returned `partial`, from its sums alone. `centres`
  /// are the centres of that assignment. The error is about 1e-15 times the inertia of a single
  /// centre. `distances` is exact.
  double inertia_of(const jobs::Partial& partial, const at::Tensor& centres) const;

  /// Returns the mean of the columns' variances, from a partial of `assign`. A partial of
  /// `assign_batch` gives an estimate.
  double mean_variance(const jobs::Partial& partial) const;

  const at::Tensor& x() const { return x_; }
  at::Tensor labels() const;  ///< (N) int32; -1 before the first assignment
  void forget_labels();       ///< sets all labels to -1
  int64_t rows() const { return x_.size(0); }
  int64_t columns() const { return x_.size(1); }

 private:
  jobs::Partial run(const char* task, const std::vector<at::Tensor>& parameters) const;
  jobs::Partial run(const char* task, const std::vector<at::Tensor>& parameters,
                    const std::vector<jobs::Shard>& shards) const;
  /// Returns the sum of (x - shift) over the rows of each centre, (K, D) float64.
  at::Tensor shifted_sums(const jobs::Partial& partial) const;

  at::Tensor x_, shift_;
  jobs::ResidentData resident_;
  std::shared_ptr<jobs::Workers> workers_;
  double total_square_ = 0;  ///< sum of |x - shift|^2 over all rows
  at::Tensor masses_;        ///< sum of `closest` over each shard
};

/// Draws indices (T) int64 with probabilities proportional to `mass` (N) float64, which must not be
/// all zero. Element t of the result is the first index whose cumulative mass exceeds uniform[t] *
/// sum(mass). `uniform` (T) holds numbers in [0, 1).
at::Tensor draw_by_mass(const at::Tensor& mass, const at::Tensor& uniform);

/// Treatment of a centre that is not the nearest centre of any row.
enum class EmptyCluster {
  kKeep,  ///< the centre stays where it is
  /// The centre moves to the row farthest from its own centre. The row leaves that centre.
  kReseed,
};
/// Parses "keep" or "reseed". Throws UserError for another name.
EmptyCluster parse_empty_cluster(std::string_view name);

struct LloydOptions {
  int64_t iterations = 300;  ///< maximum number of iterations
  /// Stops when sum |shift of a centre|^2 is at most `tolerance` times the mean of the columns'
  /// variances.
  double tolerance = 1e-4;
  EmptyCluster empty = EmptyCluster::kReseed;
  /// LloydIteration::state of the last iteration of a stopped run, to resume it. Empty: start from
  /// the given centres.
  std::vector<at::Tensor> state = {};
};

struct LloydIteration {
  int64_t iteration = 0;  ///< from 1
  /// Inertia of the centres before this iteration, by `inertia_of`. Mini-batches: inertia of the
  /// batch times N / batch rows.
  double inertia = 0;
  double shift = 0;  ///< square root of the sum of the squared shifts of the centres
  std::optional<int64_t> changed = {};  ///< number of changed labels; mini-batches have none
  double seconds = 0;
  /// State to resume from, for LloydOptions::state or MiniBatchOptions::state. Empty if the run has
  /// converged.
  std::vector<at::Tensor> state = {};
};

/// Returns the centres (K, D) as contiguous float64. Throws UserError unless they are a real,
/// finite matrix with `columns` columns and 1 to kMaxCentres rows.
at::Tensor checked_centres(const at::Tensor& centres, int64_t columns);

struct KMeansResult {
  at::Tensor centres;  ///< (K, D) float64
  /// Index of the nearest of `centres` for each row, (N) int32. A tensor of the data, valid until
  /// its next assignment.
  at::Tensor labels;
  at::Tensor counts;  ///< (K) int64: number of rows of each centre
  double inertia = 0;
  int64_t iterations = 0;
  bool converged = false;  ///< no label changed, or the tolerance was met
};

/// Runs Lloyd's algorithm (S. Lloyd, Least squares quantization in PCM, 1982) from centres (K, D).
/// Stops when no label changed, at the tolerance or after the maximum number of iterations. Calls
/// `report` after each iteration. The result has the same bits for any number of threads.
KMeansResult lloyd(KMeansData& data, const at::Tensor& centres, const LloydOptions& options = {},
                   const std::function<void(const LloydIteration&)>& report = {});

}  // namespace dovetail::fit
