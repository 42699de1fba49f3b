#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace dovetail::fit {

/// A function's value and gradient at a point.
struct Slope {
  double value = 0;
  at::Tensor gradient;
};

/// A minimum of a smooth convex function by L-BFGS (Liu, Nocedal 1989), of ten pairs, with a line
/// search that halves the step until it is good enough. Float64, in plain order: no bits depend on
/// threads.
class Lbfgs {
 public:
  Lbfgs(std::function<Slope(const at::Tensor&)> function, at::Tensor start);
  /// Goes on from the `state` of another search for the same function.
  Lbfgs(std::function<Slope(const at::Tensor&)> function, const std::vector<at::Tensor>& state);

  /// One iteration. False when no step makes the value or the gradient smaller: the point is as
  /// good as can be told.
  bool step();

  const at::Tensor& point() const { return point_; }
  const Slope& slope() const { return slope_; }
  std::vector<at::Tensor> state() const;

 private:
  struct Pair {
    at::Tensor move, change;  ///< of the point and of the gradient
    double product = 0;
  };
  at::Tensor direction() const;

  std::function<Slope(const at::Tensor&)> function_;
  at::Tensor point_;
  Slope slope_;
  std::deque<Pair> pairs_;
};

}  // namespace dovetail::fit
