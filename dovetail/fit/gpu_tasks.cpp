#include <ATen/ATen.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dovetail/fit/mixture/mixture.h"
#include "dovetail/fit/regression/regression.h"
#include "dovetail/jobs/task.h"

/// Tasks of mixtures, regression and principal components on a GPU. Each has the parameters, data
/// and partial of the CPU's task with its name. They are composed of float64 operations of ATen in
/// a fixed order, so bits are the same on each run. Sums differ from the CPU's by rounding. N rows,
/// D columns, K components, M outputs.
namespace dovetail::fit {
namespace {

using jobs::Parameters;
using jobs::Partial;
using jobs::Shards;

/// Maximum elements of a matrix with a row per data row. It limits the rows at a time.
constexpr int64_t kElements = int64_t{1} << 25;

/// Calls work(begin, count, x) for pieces of the rows; x (count, D) is float64. `columns` is the
/// width of other matrices that `work` makes.
template <class Work>
void for_pieces(const at::Tensor& rows, int64_t columns, const Work& work) {
  const int64_t piece = std::max<int64_t>(1, kElements / std::max(columns, rows.size(1)));
  for (int64_t begin = 0; begin < rows.size(0); begin += piece) {
    const int64_t count = std::min(piece, rows.size(0) - begin);
    work(begin, count, rows.narrow(0, begin, count).to(at::kDouble));
  }
}

/// Returns float64 zeros on the device of `rows`.
at::Tensor zeros(const at::Tensor& rows, at::IntArrayRef sizes) {
  return at::zeros(sizes, rows.options().dtype(at::kDouble));
}

/// Returns a partial of float64 tensors on the CPU. Reads the GPU once. `weight` is () on the GPU.
Partial read_partial(const std::vector<at::Tensor>& tensors, const at::Tensor& weight) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& tensor : tensors) flat.push_back(tensor.reshape({-1}));
  flat.push_back(weight.reshape({1}));
  const at::Tensor all = at::cat(flat).cpu();
  Partial partial;
  int64_t next = 0;
  for (const at::Tensor& tensor : tensors) {
    partial.tensors.push_back(all.narrow(0, next, tensor.numel()).view(tensor.sizes()).clone());
    next += tensor.numel();
  }
  partial.weight = all[next].item<double>();
  return partial;
}

/// Same for partials whose weight is the number of rows.
Partial read_partial(const std::vector<at::Tensor>& tensors, const Shards& shards) {
  Partial partial = read_partial(tensors, zeros(tensors.at(0), {}));
  partial.weight = static_cast<double>(shards.size);
  return partial;
}

Partial moments_on_gpu(const Parameters& parameters, const Shards& shards) {
  const at::Tensor rows = jobs::rows_of(shards, 0), sums = zeros(rows, {2, rows.size(1)});
  for_pieces(rows, 1, [&](int64_t, int64_t, const at::Tensor& x) {
    const at::Tensor z = x - parameters[0];
    sums[0].add_(z.sum(0));
    sums[1].add_(z.square().sum(0));
  });
  return read_partial({sums}, shards);
}

/// Rows of a regression. Without weights, each row has the weight 1.
struct RegressionRows {
  explicit RegressionRows(const Shards& shards)
      : data(jobs::rows_of(shards)),
        x(data[RegressionData::kX]),
        target(data[RegressionData::kTarget]),
        weights(data.size() > RegressionData::kWeights
                    ? data[RegressionData::kWeights]
                    : at::ones({shards.size}, x.options().dtype(at::kDouble))) {}

  std::vector<at::Tensor> data;
  at::Tensor x, target, weights;
};

Partial weighted_moments_on_gpu(const Parameters& parameters, const Shards& shards) {
  const RegressionRows rows(shards);
  const at::Tensor sums = zeros(rows.x, {2, rows.x.size(1)});
  for_pieces(rows.x, 1, [&](int64_t begin, int64_t count, const at::Tensor& x) {
    const at::Tensor z = x - parameters[0],
                     weighted = z * rows.weights.narrow(0, begin, count).unsqueeze(1);
    sums[0].add_(weighted.sum(0));
    sums[1].add_((weighted * z).sum(0));
  });
  return read_partial({sums}, rows.weights.sum());
}

Partial products_on_gpu(const Parameters& parameters, const Shards& shards) {
  const RegressionRows rows(shards);
  const int64_t dim = rows.x.size(1);
  const at::Tensor squares = zeros(rows.x, {dim, dim}), products = zeros(rows.x, {dim}),
                   sums = zeros(rows.x, {dim}), moments = zeros(rows.x, {2});
  for_pieces(rows.x, 1, [&](int64_t begin, int64_t count, const at::Tensor& x) {
    const at::Tensor z = x - parameters[0], weight = rows.weights.narrow(0, begin, count),
                     v = rows.target.narrow(0, begin, count) - parameters[1];
    const at::Tensor left = (z * weight.unsqueeze(1)).t();
    squares.addmm_(left, z);
    products.addmv_(left, v);
    sums.add_(left.sum(1));
    moments[0].add_((weight * v).sum());
    moments[1].add_((weight * v * v).sum());
  });
  return read_partial({squares, products, sums, moments}, rows.weights.sum());
}

Partial residuals_on_gpu(const Parameters& parameters, const Shards& shards) {
  const RegressionRows rows(shards);
  const at::Tensor sum = zeros(rows.x, {});
  for_pieces(rows.x, 1, [&](int64_t begin, int64_t count, const at::Tensor& x) {
    const at::Tensor left = rows.target.narrow(0, begin, count) - parameters[2] -
                            at::mv(x - parameters[0], parameters[1]);
    sum.add_((rows.weights.narrow(0, begin, count) * left.square()).sum());
  });
  return read_partial({sum}, rows.weights.sum());
}

/// Returns the first index of the largest element of each row, (N).
at::Tensor first_largest(const at::Tensor& scores) {
  const at::Tensor index = at::arange(scores.size(1), scores.options().dtype(at::kLong));
  return at::where(scores == scores.amax(1, /*keepdim=*/true), index, scores.size(1)).amin(1);
}

Partial gradient_on_gpu(const Parameters& parameters, const Shards& shards) {
  const RegressionRows rows(shards);
  const at::Tensor &coefficients = parameters[0], &intercepts = parameters[1];
  const int64_t outputs = coefficients.size(0), dim = coefficients.size(1);
  const at::Tensor gradient = zeros(rows.x, {outputs, dim + 1}), loss = zeros(rows.x, {}),
                   hits = zeros(rows.x, {});
  for_pieces(rows.x, outputs, [&](int64_t begin, int64_t count, const at::Tensor& x) {
    const at::Tensor z = x - parameters[2], weight = rows.weights.narrow(0, begin, count),
                     target = rows.target.narrow(0, begin, count);
    const at::Tensor scores = at::addmm(intercepts, z, coefficients.t());
    at::Tensor derivative, losses, right;
    if (outputs == 1) {  // the score of class 1; the score of class 0 is 0
      const at::Tensor s = scores.squeeze(1), is_one = target.to(at::kDouble);
      derivative = (s.sigmoid() - is_one).unsqueeze(1);
      losses = s.clamp_min(0) - s * is_one + at::log1p(at::exp(-s.abs()));
      right = (s > 0) == (target == 1);
    } else {
      const at::Tensor at_target = target.unsqueeze(1);
      const at::Tensor log_sum = at::logsumexp(scores, {1}, /*keepdim=*/true);
      losses = (log_sum - scores.gather(1, at_target)).squeeze(1);
      right = first_largest(scores) == target;
      derivative = (scores - log_sum).exp();
      derivative.scatter_add_(1, at_target, at::full_like(log_sum, -1));
    }
    const at::Tensor weighted = (derivative * weight.unsqueeze(1)).t();
    gradient.narrow(1, 0, dim).addmm_(weighted, z);
    gradient.select(1, dim).add_(weighted.sum(1));
    loss.add_((losses * weight).sum());
    hits.add_((right * weight).sum());
  });
  return read_partial({gradient, loss, hits}, rows.weights.sum());
}

/// Sums of a mixture: of responsibilities r, of r (x - mean), and of its products or squares.
class MixtureSums {
 public:
  MixtureSums(const at::Tensor& x, int64_t num, Covariance structure)
      : structure_(structure), counts_(zeros(x, {num})), sums_(zeros(x, {num, x.size(1)})) {
    const int64_t dim = x.size(1);
    squares_ = structure == Covariance::kTied   ? zeros(x, {dim, dim})
               : structure == Covariance::kFull ? zeros(x, {num, dim, dim})
                                                : zeros(x, {num, dim});
  }

  /// Adds rows y (rows, D) of component k with their responsibilities (rows).
  void add(int64_t k, const at::Tensor& y, const at::Tensor& r) {
    const at::Tensor weighted = y * r.unsqueeze(1);
    counts_[k].add_(r.sum());
    sums_[k].add_(weighted.sum(0));
    switch (structure_) {
      case Covariance::kFull:
        squares_[k].addmm_(weighted.t(), y);
        break;
      case Covariance::kTied:
        squares_.addmm_(weighted.t(), y);
        break;
      case Covariance::kDiagonal:
      case Covariance::kSpherical:
        squares_[k].add_((weighted * y).sum(0));
        break;
    }
  }
  std::vector<at::Tensor> take() const { return {counts_, sums_, squares_}; }

 private:
  Covariance structure_;
  at::Tensor counts_, sums_, squares_;
};

Partial start_on_gpu(const Parameters& parameters, const Shards& shards) {
  const auto data = jobs::rows_of(shards);
  const at::Tensor &rows = data[MixtureData::kX], &points = parameters[0];
  MixtureSums sums(rows, points.size(0), covariance_of(parameters[1]));
  for_pieces(rows, 1, [&](int64_t begin, int64_t count, const at::Tensor& x) {
    const at::Tensor label = data[MixtureData::kLabels].narrow(0, begin, count);
    for (int64_t k = 0; k < points.size(0); ++k)
      sums.add(k, x - points[k], (label == k).to(at::kDouble));
  });
  return read_partial(sums.take(), shards);
}

/// Returns log(weight) + log density of each component at each row of x, (rows, K).
at::Tensor scores_of(const at::Tensor& x, const Parameters& parameters, Covariance structure) {
  const at::Tensor &means = parameters[0], &roots = parameters[1], &constants = parameters[2];
  std::vector<at::Tensor> scores;
  for (int64_t k = 0; k < means.size(0); ++k) {
    const at::Tensor y = x - means[k];
    const at::Tensor z = structure == Covariance::kFull   ? y.mm(roots[k])
                         : structure == Covariance::kTied ? y.mm(roots)
                                                          : y * roots[k];
    scores.push_back(constants[k] - 0.5 * z.square().sum(1));
  }
  return at::stack(scores, 1);
}

Partial expect_on_gpu(const Parameters& parameters, const Shards& shards) {
  const auto data = jobs::rows_of(shards);
  const at::Tensor &rows = data[MixtureData::kX], &means = parameters[0];
  const Covariance structure = covariance_of(parameters[3]);
  MixtureSums sums(rows, means.size(0), structure);
  const at::Tensor log_likelihood = zeros(rows, {});
  for_pieces(rows, means.size(0), [&](int64_t begin, int64_t count, const at::Tensor& x) {
    const at::Tensor scores = scores_of(x, parameters, structure);
    const at::Tensor log_sum = at::logsumexp(scores, {1}, /*keepdim=*/true);
    const at::Tensor r = (scores - log_sum).exp();
    data[MixtureData::kLabels].narrow(0, begin, count).copy_(first_largest(scores));
    log_likelihood.add_(log_sum.sum());
    for (int64_t k = 0; k < means.size(0); ++k) sums.add(k, x - means[k], r.select(1, k));
  });
  std::vector<at::Tensor> tensors = sums.take();
  tensors.push_back(log_likelihood);
  return read_partial(tensors, shards);
}

Partial scores_on_gpu(const Parameters& parameters, const Shards& shards) {
  const auto data = jobs::rows_of(shards);
  const Covariance structure = covariance_of(parameters[3]);
  for_pieces(data[0], parameters[0].size(0),
             [&](int64_t begin, int64_t count, const at::Tensor& x) {
               data[1].narrow(0, begin, count).copy_(scores_of(x, parameters, structure));
             });
  return {{}, static_cast<double>(shards.size)};
}

Partial times_on_gpu(const Parameters& parameters, const Shards& shards) {
  const at::Tensor rows = jobs::rows_of(shards, 0), &directions = parameters[1];
  const at::Tensor sum = zeros(rows, {rows.size(1), directions.size(1)});
  for_pieces(rows, directions.size(1), [&](int64_t, int64_t, const at::Tensor& x) {
    const at::Tensor z = x - parameters[0];
    sum.addmm_(z.t(), z.mm(directions));
  });
  return read_partial({sum}, shards);
}

Partial covariance_on_gpu(const Parameters& parameters, const Shards& shards) {
  const at::Tensor rows = jobs::rows_of(shards, 0), sum = zeros(rows, {rows.size(1), rows.size(1)});
  for_pieces(rows, 1, [&](int64_t, int64_t, const at::Tensor& x) {
    const at::Tensor z = x - parameters[0];
    sum.addmm_(z.t(), z);
  });
  return read_partial({sum}, shards);
}

const auto registered = [] {
  const auto add = [](const char* name, const jobs::Task& task, std::vector<size_t> writes = {}) {
    jobs::register_task(name, at::kCUDA, task, std::move(writes), jobs::Takes::kAny);
  };
  add("table.moments", moments_on_gpu);
  add("regression.moments", weighted_moments_on_gpu);
  add("linear.products", products_on_gpu);
  add("linear.residuals", residuals_on_gpu);
  add("logistic.gradient", gradient_on_gpu);
  add("mixture.start", start_on_gpu);
  add("mixture.expect", expect_on_gpu, {MixtureData::kLabels});
  add("mixture.scores", scores_on_gpu, {1});
  add("principal.times", times_on_gpu);
  add("principal.covariance", covariance_on_gpu);
  return true;
}();

}  // namespace
}  // namespace dovetail::fit
