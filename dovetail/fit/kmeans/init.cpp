#include "dovetail/fit/kmeans/init.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/fit/kmeans/assign_simd.h"

namespace dovetail::fit {
namespace {

constexpr std::array<std::string_view, 4> kNames = {"k-means++", "k-means-parallel", "random",
                                                    "first"};

/// Sequence of uniform random numbers in [0, 1).
class Draws {
 public:
  explicit Draws(uint64_t seed) : seed_(mix_seed(seed, name_key("kmeans"))) {}
  double next() { return random_uniform(seed_, RandomStream::kInitialize, index_++); }
  at::Tensor next(int64_t count) {
    at::Tensor numbers = at::empty({count}, at::kDouble);
    for (int64_t i = 0; i < count; ++i) numbers.mutable_data_ptr<double>()[i] = next();
    return numbers;
  }

 private:
  uint64_t seed_, index_ = 0;
};

at::Tensor rows_at(const KMeansData& data, const at::Tensor& index) {
  return data.x().index_select(0, index).to(at::kDouble);
}

/// Returns one row, drawn in proportion to the weights.
at::Tensor any_row(const KMeansData& data, Draws& draws) {
  if (data.weights().defined()) return rows_at(data, draw_by_mass(data.weights(), draws.next(1)));
  const auto row = static_cast<int64_t>(draws.next() * static_cast<double>(data.rows()));
  return rows_at(data, at::tensor({std::min(row, data.rows() - 1)}, at::kLong));
}

/// Returns `count` different rows, drawn one after another in proportion to their weights. Each row
/// gets the key E / weight, where E is exponentially distributed. The smallest keys win
/// (Efraimidis, Spirakis, Weighted random sampling with a reservoir, 2006).
at::Tensor weighted_rows(const KMeansData& data, int64_t count, Draws& draws) {
  const auto* weight = data.weights().const_data_ptr<double>();
  std::vector<std::pair<double, int64_t>> keys;
  for (int64_t i = 0; i < data.rows(); ++i) {
    const double exponential = -std::log1p(-draws.next());
    if (weight[i] > 0) keys.emplace_back(exponential / weight[i], i);
  }
  std::partial_sort(keys.begin(), keys.begin() + count, keys.end());
  std::vector<int64_t> index;
  for (int64_t i = 0; i < count; ++i) index.push_back(keys[static_cast<size_t>(i)].second);
  return rows_at(data, at::tensor(index, at::kLong));
}

/// Returns `count` different rows in a random order, by their weights if these differ.
at::Tensor random_rows(const KMeansData& data, int64_t count, uint64_t seed, Draws& draws) {
  const at::Tensor& weights = data.weights();
  if (weights.defined() && !(weights == weights[0]).all().item<bool>())
    return weighted_rows(data, count, draws);
  std::vector<int64_t> index;
  for (int64_t i = 0; i < count; ++i)
    index.push_back(static_cast<int64_t>(permuted_index(mix_seed(seed, name_key("kmeans")),
                                                        static_cast<uint64_t>(i),
                                                        static_cast<uint64_t>(data.rows()))));
  return rows_at(data, at::tensor(index, at::kLong));
}

/// Returns a sum that is the same for any number of threads. Torch's sum of more than 32,768
/// elements is not.
double sum_in_order(const at::Tensor& x) {
  constexpr int64_t kPiece = 16384;
  double sum = 0;
  for (const at::Tensor& part : x.split(kPiece)) sum += part.sum().item<double>();
  return sum;
}

/// Points from which k-means++ chooses centres.
class PointSet {
 public:
  virtual ~PointSet() = default;
  /// Returns one point (1, D), drawn in proportion to the weights.
  virtual at::Tensor first(Draws& draws) const = 0;
  /// Returns points (count, D), drawn in proportion to their potentials. A potential is a weight
  /// times the squared distance to the closest included point. Returns an undefined tensor if all
  /// potentials are 0.
  virtual at::Tensor draw(Draws& draws, int64_t count) = 0;
  /// Includes a point.
  virtual void include(const at::Tensor& point) = 0;
  /// Includes the candidate that leaves the smallest sum of potentials. Returns its index.
  virtual int64_t include_best(const at::Tensor& candidates) = 0;
};

/// All rows of the data. A pass over the rows computes their potentials, `renew`. Many points are
/// chosen between two passes:
///   - Each pass draws proposals in proportion to the potentials. Before a proposal is used, its
///     potential is computed anew. The probability to take it is new / old potential, so draws are
///     exact (Cohen-Addad et al. 2020, Fast and Accurate k-means++ via Rejection Sampling).
///   - Candidates are compared by a sample. It has rows drawn in proportion to the potentials, with
///     weights 1 / potential. So its sums are unbiased estimates of the sums over all rows. A table
///     that is no larger than its sample is its own sample.
class AllRows : public PointSet {
 public:
  AllRows(KMeansData& data, int64_t num_centres)
      : data_(data),
        sample_rows_(std::max(kMinSample, kSampleOfCentre * num_centres)),
        num_proposals_(std::max(kMinProposals, kProposalsOfCentre * num_centres)) {
    data.forget_closest();
  }
  at::Tensor first(Draws& draws) const override { return any_row(data_, draws); }
  void include(const at::Tensor& point) override {
    const auto* from = point.const_data_ptr<double>();
    chosen_.insert(chosen_.end(), from, from + data_.columns());
  }
  at::Tensor draw(Draws& draws, int64_t count) override {
    std::vector<int64_t> taken;
    while (std::ssize(taken) < count) {
      if (is_stale() && renew(draws) == 0) return {};
      const int64_t proposal = next_++;
      if (is_taken(proposal, draws)) taken.push_back(rows_.const_data_ptr<int64_t>()[proposal]);
    }
    return rows_at(data_, at::tensor(taken, at::kLong));
  }
  int64_t include_best(const at::Tensor& candidates) override {
    const auto index = sample_->potentials(candidates).argmin().item<int64_t>();
    potential_ = sample_->choose(index);
    include(candidates.slice(0, index, index + 1));
    return index;
  }

 private:
  // Measured in docs/design/hybrid.md: the start is as good as with all rows.
  static constexpr int64_t kSampleOfCentre = 64, kMinSample = 4096;
  static constexpr int64_t kProposalsOfCentre = 16, kMinProposals = 256;

  /// Returns true if most proposals would be refused, or none is left.
  bool is_stale() const {
    return !sample_ || next_ == num_proposals_ || potential_ < renewed_potential_ / 2;
  }

  bool is_taken(int64_t proposal, Draws& draws) const {
    const int64_t row = rows_.const_data_ptr<int64_t>()[proposal], dim = data_.columns();
    const double before = squares_.const_data_ptr<double>()[proposal];
    const auto points = std::span(chosen_).subspan(static_cast<size_t>(included_));
    const double now =
        std::min(before, smallest_square(data_.x().const_data_ptr<float>() + row * dim,
                                         points.data(), std::ssize(points) / dim, dim));
    return draws.next() * before < now;
  }

  /// Includes all chosen points in the potentials, and draws proposals and the sample anew. Returns
  /// the sum of the potentials.
  double renew(Draws& draws) {
    const at::Tensor chosen = at::tensor(chosen_, at::kDouble).view({-1, data_.columns()});
    const double sum = data_.include(chosen.slice(0, included_ / data_.columns()));
    included_ = std::ssize(chosen_);
    if (sum == 0) return 0;
    const bool all = data_.rows() <= sample_rows_;
    const KMeansData::Drawn drawn =
        data_.draw(draws.next(num_proposals_ + (all ? 0 : sample_rows_)));
    rows_ = drawn.rows.slice(0, 0, num_proposals_);
    squares_ = drawn.squares.slice(0, 0, num_proposals_);
    next_ = 0;
    if (!all || !sample_) {
      if (all) {
        sample_.emplace(data_.x(), nullptr, data_.weights());
      } else {
        const at::Tensor squares = drawn.squares.slice(0, num_proposals_);
        sample_.emplace(data_.x().index_select(0, drawn.rows.slice(0, num_proposals_)), nullptr,
                        squares[0] / squares);
      }
      sample_->forget_closest();
      potential_ = sample_->include(chosen);
    }
    renewed_potential_ = potential_;
    return sum;
  }

  KMeansData& data_;
  const int64_t sample_rows_, num_proposals_;
  std::vector<double> chosen_;        ///< all chosen points, (M, D)
  int64_t included_ = 0;              ///< number of elements of `chosen_` in the rows' potentials
  at::Tensor rows_, squares_;         ///< rows of the proposals and their old potentials
  int64_t next_ = 0;                  ///< next proposal
  std::optional<KMeansData> sample_;  ///< includes all chosen points
  double potential_ = 0, renewed_potential_ = 0;  ///< sums of the sample: now, and after `renew`
};

/// Points (M, D), chosen from the rows, with a weight each.
class WeightedPoints : public PointSet {
 public:
  WeightedPoints(const at::Tensor& points, const at::Tensor& weights)
      : points_(points), weights_(weights), data_(points.to(at::kFloat)) {
    // All labels are 0: `distances` with one centre then returns the distances of all points to it.
    data_.assign(points.slice(0, 0, 1));
    closest_ = at::full_like(weights, std::numeric_limits<double>::infinity());
  }
  at::Tensor first(Draws& draws) const override { return drawn(weights_, draws, 1); }
  at::Tensor draw(Draws& draws, int64_t count) override {
    const at::Tensor potentials = closest_ * weights_;
    if (!potentials.any().item<bool>()) return {};
    return drawn(potentials, draws, count);
  }
  void include(const at::Tensor& point) override { closest_ = closest_with(point); }
  int64_t include_best(const at::Tensor& candidates) override {
    int64_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (int64_t i = 0; i < candidates.size(0); ++i) {
      const double potential = sum_in_order(closest_with(candidates.slice(0, i, i + 1)) * weights_);
      if (potential >= least) continue;
      least = potential;
      best = i;
    }
    include(candidates.slice(0, best, best + 1));
    return best;
  }

 private:
  at::Tensor drawn(const at::Tensor& mass, Draws& draws, int64_t count) const {
    return points_.index_select(0, draw_by_mass(mass, draws.next(count)));
  }
  at::Tensor closest_with(const at::Tensor& point) {
    return at::minimum(data_.distances(point).squares, closest_);
  }

  at::Tensor points_, weights_, closest_;
  KMeansData data_;
};

/// Chooses K points by k-means++: each is the best of some drawn candidates. If fewer than K points
/// differ, repeats the first one.
at::Tensor plus_plus(PointSet&& points, int64_t num_centres, Draws& draws) {
  const auto trials = static_cast<int64_t>(2 + std::log(static_cast<double>(num_centres)));
  std::vector<at::Tensor> chosen = {points.first(draws)};
  points.include(chosen[0]);
  while (std::ssize(chosen) < num_centres) {
    const at::Tensor candidates = points.draw(draws, trials);
    if (!candidates.defined()) break;
    const int64_t best = points.include_best(candidates);
    chosen.push_back(candidates.slice(0, best, best + 1));
  }
  chosen.resize(static_cast<size_t>(num_centres), chosen[0]);
  return at::cat(chosen);
}

at::Tensor parallel(KMeansData& data, int64_t num_centres, Draws& draws) {
  constexpr int kRounds = 5;
  const double wanted = 2.0 * static_cast<double>(num_centres);
  std::vector<at::Tensor> candidates = {any_row(data, draws)};
  data.forget_closest();
  double potential = data.include(candidates[0]);
  for (int round = 0; round < kRounds && potential > 0; ++round) {
    at::Tensor chance = data.closest() * (wanted / potential);
    if (data.weights().defined()) chance = chance * data.weights();
    const auto* chances = chance.const_data_ptr<double>();
    std::vector<int64_t> taken;
    for (int64_t i = 0; i < data.rows(); ++i)
      if (draws.next() < chances[i]) taken.push_back(i);
    if (taken.empty()) continue;
    candidates.push_back(rows_at(data, at::tensor(taken, at::kLong)));
    potential = data.include(candidates.back());
  }
  const at::Tensor all = at::cat(candidates);
  const at::Tensor weights = data.assign(all).tensors[1].to(at::kDouble);
  return plus_plus(WeightedPoints(all, weights), num_centres, draws);
}

}  // namespace

KMeansInit parse_kmeans_init(std::string_view name) {
  return parse_enum<KMeansInit>("kmeans", "init", name, kNames);
}

bool is_kmeans_init(std::string_view name) {
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

at::Tensor initial_centres(KMeansData& data, int64_t num_centres, KMeansInit init, uint64_t seed) {
  user_check(num_centres >= 1, "kmeans: {} centres; there must be at least 1", num_centres);
  const bool weighted = data.weights().defined();
  const at::Tensor taken = weighted ? data.rows_with_weight() : at::Tensor();
  const int64_t rows = weighted ? taken.numel() : data.rows();
  user_check(num_centres <= rows, "kmeans: {} centres of {} rows{}; there must be a row for each",
             num_centres, rows, weighted ? " with a weight above 0" : "");
  Draws draws(seed);
  switch (init) {
    case KMeansInit::kPlusPlus:
      return plus_plus(AllRows(data, num_centres), num_centres, draws);
    case KMeansInit::kParallel:
      return parallel(data, num_centres, draws);
    case KMeansInit::kRandom:
      return random_rows(data, num_centres, seed, draws);
    case KMeansInit::kFirst:
      return weighted ? rows_at(data, taken.slice(0, 0, num_centres))
                      : data.x().slice(0, 0, num_centres).to(at::kDouble);
  }
  DOVETAIL_CHECK(false, "an unknown init");
}

}  // namespace dovetail::fit
