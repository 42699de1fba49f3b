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

/// Rows of a shard of k-means: fixed, so that sums are the same bits for any number of threads.
/// Small enough that torch adds as many numbers on one thread.
constexpr int64_t kKMeansGrain = 16384;
/// Of a mini-batch.
constexpr int64_t kKMeansBatchGrain = 1024;

/// Rows to cluster, with what every iteration needs of them: how far each is from a point near all
/// of them, and its label. N rows of D columns, K centres.
///
/// Tasks `kmeans.norms`, `kmeans.assign`, `kmeans.distances`, `kmeans.potentials`, `kmeans.include`
/// and `kmeans.draw` run on its shards, `kmeans.batch` on those of a list of its rows: on some
/// workers (jobs/workers.h), or without any on this process' threads (run_task). On several
/// nodes, all members are called by all of them.
class KMeansData {
 public:
  /// Its tensors: x (N, D) float32, norms (N) float32, labels (N) int32, squares (N) float64.
  enum Tensor : size_t { kX, kNorms, kLabels, kSquares };

  /// x (N, D) float32 on the CPU, contiguous, at least one row and one column; kept, never copied.
  /// Throws UserError for anything else, and for a value that is not finite, naming its row and
  /// column.
  explicit KMeansData(const at::Tensor& x, std::shared_ptr<jobs::Workers> workers = nullptr);

  /// One pass over the rows: labels become the nearest of centres (K, D), float64, the first of
  /// equally near ones. Returns {sums of the rows of each centre (K, D) float64, their number (K)
  /// int64, labels that changed () int64} of weight N.
  jobs::Partial assign(const at::Tensor& centres);

  /// The same of some rows (B) int64 only, whose labels stay as they are: {sums, their number,
  /// inertia () float64} of weight B.
  jobs::Partial assign_batch(const at::Tensor& rows, const at::Tensor& centres) const;

  /// |x_i - centres[label_i]|^2 (N), float64, and the sum of it: the inertia. Another pass.
  struct Distances {
    at::Tensor squares;
    double inertia = 0;
  };
  Distances distances(const at::Tensor& centres);

  /// What k-means++ asks: the squared distance of each row to the closest of the points so far (N),
  /// float64. It lies where `distances` puts its squares.
  void forget_closest();
  at::Tensor closest() const;
  /// The points (M, D), float64, are among them from now on; returns the sum of `closest`.
  double include(const at::Tensor& points);
  /// Rows (T) int64 in proportion to `closest`, one for each of some uniform numbers (T) of [0, 1),
  /// float64, where the last `include` returned more than 0. Its partials have a number for each
  /// shard, which is little beside the shard's rows up to some hundred million of them. On several
  /// nodes no distances move: a shard is drawn by the sums of all, and the row where its distances
  /// lie.
  at::Tensor draw(const at::Tensor& uniform) const;
  /// What that sum would be (M) if one of the points were included.
  at::Tensor potentials(const at::Tensor& points) const;

  /// The inertia of the assignment that `partial` came from, of its centres, out of its sums alone.
  /// Its error is some 1e-15 of the inertia of a single centre: `distances` is exact.
  double inertia_of(const jobs::Partial& partial, const at::Tensor& centres) const;

  /// The mean of the columns' variances, out of any partial; out of one of some rows, an estimate.
  double mean_variance(const jobs::Partial& partial) const;

  const at::Tensor& x() const { return x_; }
  at::Tensor labels() const;  ///< (N) int32; -1 before the first assignment
  void forget_labels();       ///< -1 again
  int64_t rows() const { return x_.size(0); }
  int64_t columns() const { return x_.size(1); }

 private:
  jobs::Partial run(const char* task, const std::vector<at::Tensor>& parameters) const;
  jobs::Partial run(const char* task, const std::vector<at::Tensor>& parameters,
                    const std::vector<jobs::Shard>& shards) const;
  /// Per centre, of double: sum over its rows of (x - shift).
  at::Tensor shifted_sums(const jobs::Partial& partial) const;

  at::Tensor x_, shift_;
  jobs::ResidentData resident_;
  std::shared_ptr<jobs::Workers> workers_;
  double total_square_ = 0;  ///< sum of |x - shift|^2
  at::Tensor masses_;        ///< of each shard: the sum of `closest`
};

/// Indices (T) int64 in proportion to `mass` (N) float64, not all of it zero: that at which the sum
/// of the masses so far comes past each of `uniform` (T) of [0, 1) times the sum of all.
at::Tensor draw_by_mass(const at::Tensor& mass, const at::Tensor& uniform);

/// What becomes of a centre that no row is nearest to.
enum class EmptyCluster {
  kKeep,    ///< it stays where it is
  kReseed,  ///< it moves to the row that is farthest from its own centre, which that row leaves
};
/// "keep", "reseed"; UserError for another name.
EmptyCluster parse_empty_cluster(std::string_view name);

struct LloydOptions {
  int64_t iterations = 300;  ///< at most
  /// Ends when the centres moved by less: the sum of the squares of the shifts is at most this
  /// times the mean of the columns' variances.
  double tolerance = 1e-4;
  EmptyCluster empty = EmptyCluster::kReseed;
  std::vector<at::Tensor> state =
      {};  ///< of the last iteration of a run that was stopped, which this one goes on with
};

struct LloydIteration {
  int64_t iteration = 0;  ///< from 1
  double inertia =
      0;  ///< of the centres before it, by inertia_of; of a batch, times the rows over those of it
  double shift = 0;  ///< how far the centres moved: the root of the sum of the squares
  std::optional<int64_t> changed = {};  ///< labels, where all rows have one
  double seconds = 0;
  std::vector<at::Tensor> state =
      {};  ///< LloydOptions::state, MiniBatchOptions::state; none where it converged
};

/// Centres (K, D) as contiguous float64. Throws UserError unless they are a real, finite matrix of
/// `columns` columns.
at::Tensor checked_centres(const at::Tensor& centres, int64_t columns);

struct KMeansResult {
  at::Tensor centres;  ///< (K, D) float64
  at::Tensor labels;   ///< (N) int32, of these centres: the data's, until it is assigned again
  at::Tensor counts;   ///< (K) int64
  double inertia = 0;
  int64_t iterations = 0;
  bool converged = false;  ///< no label changed, or the tolerance was met
};

/// Lloyd's algorithm (S. Lloyd, Least squares quantization in PCM, 1982) from centres (K, D) on.
/// Ends when no label changed, at the tolerance or after the iterations. `report` is called after
/// each iteration. The same bits for any number of threads.
KMeansResult lloyd(KMeansData& data, const at::Tensor& centres, const LloydOptions& options = {},
                   const std::function<void(const LloydIteration&)>& report = {});

}  // namespace dovetail::fit
