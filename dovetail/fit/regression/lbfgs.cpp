#include "dovetail/fit/regression/lbfgs.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "dovetail/fit/rows/dense.h"

namespace dovetail::fit {

Lbfgs::Lbfgs(std::function<Slope(const at::Tensor&)> function, at::Tensor start)
    : function_(std::move(function)), point_(std::move(start)), slope_(function_(point_)) {}

Lbfgs::Lbfgs(std::function<Slope(const at::Tensor&)> function, const std::vector<at::Tensor>& state)
    : function_(std::move(function)),
      point_(state.at(0)),
      slope_{.value = state.at(1).item<double>(), .gradient = state.at(2)} {
  for (size_t i = 3; i + 1 < state.size(); i += 2)
    pairs_.push_back({state[i], state[i + 1], sum_of_products(state[i], state[i + 1])});
}

std::vector<at::Tensor> Lbfgs::state() const {
  std::vector<at::Tensor> state = {point_, at::scalar_tensor(slope_.value, at::kDouble),
                                   slope_.gradient};
  for (const Pair& pair : pairs_) state.insert(state.end(), {pair.move, pair.change});
  return state;
}

at::Tensor Lbfgs::direction() const {
  at::Tensor q = slope_.gradient.clone();
  std::vector<double> alphas;
  for (auto pair = pairs_.rbegin(); pair != pairs_.rend(); ++pair) {
    alphas.push_back(sum_of_products(pair->move, q) / pair->product);
    q.sub_(pair->change, alphas.back());
  }
  if (pairs_.empty()) {
    q.div_(std::max(1.0, std::sqrt(sum_of_products(q, q))));
  } else {
    q.mul_(pairs_.back().product / sum_of_products(pairs_.back().change, pairs_.back().change));
  }
  for (const Pair& pair : pairs_) {
    q.add_(pair.move, alphas.back() - sum_of_products(pair.change, q) / pair.product);
    alphas.pop_back();
  }
  return q.neg_();
}

bool Lbfgs::step() {
  constexpr double kEnough = 1e-4, kSmallest = 1e-10, kRounding = 1e-13;
  constexpr size_t kPairs = 10;
  const at::Tensor along = direction();
  const double fall = sum_of_products(along, slope_.gradient);
  if (!(fall < 0)) return false;
  for (double length = 1; length >= kSmallest; length /= 2) {
    at::Tensor next = point_ + length * along;
    Slope there = function_(next);
    // Near the minimum, values differ by less than their rounding. The derivative then decides
    // (Hager, Zhang 2005, (4.1)).
    const bool falls = there.value <= slope_.value + kEnough * length * fall;
    const bool flat = there.value <= slope_.value + kRounding * std::abs(slope_.value) &&
                      sum_of_products(along, there.gradient) <= (2 * kEnough - 1) * fall;
    if (!falls && !flat) continue;
    Pair pair{.move = next - point_, .change = there.gradient - slope_.gradient};
    pair.product = sum_of_products(pair.move, pair.change);
    const bool better =
        there.value < slope_.value || sum_of_products(there.gradient, there.gradient) <
                                          sum_of_products(slope_.gradient, slope_.gradient);
    point_ = std::move(next);
    slope_ = std::move(there);
    if (!(pair.product > 0)) return better;
    pairs_.push_back(std::move(pair));
    if (pairs_.size() > kPairs) pairs_.pop_front();
    return better;
  }
  return false;
}

}  // namespace dovetail::fit
