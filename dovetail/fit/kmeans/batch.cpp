#include "dovetail/fit/kmeans/batch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/trace.h"

namespace dovetail::fit {
namespace {

/// Detects that the exponentially weighted mean of the inertia per row has not fallen for long.
class Patience {
 public:
  Patience(int64_t iterations, double weight)
      : iterations_(iterations), weight_(std::min(1.0, weight)) {}

  bool is_over(double inertia) {
    // The first inertia belongs to the initial centres.
    if (iterations_ == 0 || count_++ == 0) return false;
    smooth_ = count_ == 2 ? inertia : smooth_ * (1 - weight_) + inertia * weight_;
    waited_ = smooth_ < least_ ? 0 : waited_ + 1;
    least_ = std::min(least_, smooth_);
    return waited_ >= iterations_;
  }

  at::Tensor state() const {
    return at::tensor({static_cast<double>(count_), static_cast<double>(waited_), smooth_, least_},
                      at::kDouble);
  }
  void go_on_from(const at::Tensor& state) {
    const auto* number = state.const_data_ptr<double>();
    count_ = static_cast<int64_t>(number[0]);
    waited_ = static_cast<int64_t>(number[1]);
    smooth_ = number[2];
    least_ = number[3];
  }

 private:
  int64_t iterations_, count_ = 0, waited_ = 0;
  double weight_, smooth_ = 0, least_ = std::numeric_limits<double>::infinity();
};

}  // namespace

at::Tensor batch_rows(int64_t rows, int64_t batch, int64_t iteration, uint64_t seed) {
  at::Tensor list = at::empty({batch}, at::kLong);
  auto* row = list.mutable_data_ptr<int64_t>();
  seed = mix_seed(seed, name_key("kmeans.batch"));
  for (int64_t i = 0; i < batch; ++i) {
    const auto place = static_cast<uint64_t>(iteration * batch + i),
               size = static_cast<uint64_t>(rows);
    row[i] = static_cast<int64_t>(permuted_index(mix_seed(seed, place / size), place % size, size));
  }
  return list;
}

KMeansResult mini_batch(KMeansData& data, const at::Tensor& initial,
                        const MiniBatchOptions& options,
                        const std::function<void(const LloydIteration&)>& report) {
  const bool weighted = data.weights().defined();
  const at::Tensor taken = weighted ? data.rows_with_weight() : at::Tensor();
  const int64_t num_rows = weighted ? taken.numel() : data.rows();
  user_check(options.batch > 0 && options.batch <= num_rows, "kmeans: batches of {} rows of {}{}",
             options.batch, num_rows, weighted ? " with a weight above 0" : "");
  user_check(options.iterations > 0, "kmeans: {} iterations; there must be at least 1",
             options.iterations);
  const auto rows = static_cast<double>(num_rows), batch = static_cast<double>(options.batch);
  KMeansResult result{.centres = checked_centres(initial, data.columns())};
  at::Tensor seen = at::zeros({initial.size(0), 1}, at::kDouble);
  Patience patience(options.patience, 2 * batch / (rows + 1));
  if (!options.state.empty()) {
    result.iterations = options.state.at(0).item<int64_t>();
    result.centres = options.state.at(1);
    seen = options.state.at(2);
    patience.go_on_from(options.state.at(3));
  }
  while (!result.converged && result.iterations < options.iterations) {
    const double start = now_seconds();
    at::Tensor list = batch_rows(num_rows, options.batch, result.iterations, options.seed);
    if (weighted) list = taken.index_select(0, list);
    const jobs::Partial partial = data.assign_batch(list, result.centres);
    const at::Tensor upto = seen + partial.tensors[1].unsqueeze(1);
    const at::Tensor next =
        at::where(upto > seen, (result.centres * seen + partial.tensors[0]) / upto, result.centres);
    const double moved = (next - result.centres).square().sum(1).sum().item<double>();
    const double inertia = partial.tensors[2].item<double>() / partial.weight;
    seen = upto;
    result.centres = next;
    const bool settled =
        options.tolerance > 0 && moved <= options.tolerance * data.mean_variance(partial);
    result.converged = patience.is_over(inertia) || settled;
    ++result.iterations;
    if (!report) continue;
    LloydIteration line{.iteration = result.iterations,
                        .inertia = inertia * data.total_weight(),
                        .shift = std::sqrt(moved),
                        .seconds = now_seconds() - start};
    if (!result.converged)
      line.state = {at::scalar_tensor(result.iterations, at::kLong), next, seen, patience.state()};
    report(line);
  }
  data.forget_labels();  // a result of an earlier run keeps its tensor
  data.assign(result.centres);
  result.counts = at::bincount(data.labels(), {}, result.centres.size(0));
  result.inertia = data.distances(result.centres).inertia;
  result.labels = data.labels();
  return result;
}

}  // namespace dovetail::fit
