#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

namespace dovetail::fit {

/// Value and gradient of a function at a point.
struct Slope {
  double value = 0;
  at::Tensor gradient;
};

/// Minimizes a smooth convex function by L-BFGS (Liu, Nocedal 1989) with ten pairs. The line search
/// halves the step until the decrease is sufficient. All arithmetic is float64 in a fixed order, so
/// no bits depend on the number of threads.
class Lbfgs {
 public:
  Lbfgs(std::function<Slope(const at::Tensor&)> function, at::Tensor start);
  /// Resumes from the `state` of another search for the same function.
  Lbfgs(std::function<Slope(const at::Tensor&)> function, const std::vector<at::Tensor>& state);

  /// Runs one iteration. Returns false if no step reduces the value or the gradient. The point is
  /// then a minimum within the precision of float64.
  bool step();

  const at::Tensor& point() const { return point_; }
  const Slope& slope() const { return slope_; }
  std::vector<at::Tensor> state() const;

 private:
  struct Pair {
    at::Tensor move, change;  ///< change of the point and of the gradient in one iteration
    double product = 0;
  };
  at::Tensor direction() const;

  std::function<Slope(const at::Tensor&)> function_;
  at::Tensor point_;
  Slope slope_;
  std::deque<Pair> pairs_;
};

}  // namespace dovetail::fit
