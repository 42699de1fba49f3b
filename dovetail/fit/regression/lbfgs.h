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

/// Search for the minimum of a smooth convex function by L-BFGS (Liu, Nocedal 1989). It remembers
/// how point and gradient changed in each of the last ten iterations. The line search halves the
/// step until the decrease is sufficient. All arithmetic is float64 in a fixed order, so no bits
/// depend on the number of threads.
class Lbfgs {
 public:
  /// Starts at the point `start`. `function` returns value and gradient at a point.
  Lbfgs(std::function<Slope(const at::Tensor&)> function, at::Tensor start);
  /// Resumes a search for the minimum of the same function; `state` is the result of its state().
  Lbfgs(std::function<Slope(const at::Tensor&)> function, const std::vector<at::Tensor>& state);

  /// Runs one iteration. Returns false if no step reduces the value or the gradient. The point is
  /// then a minimum within the precision of float64.
  bool step();

  /// Returns the current point.
  const at::Tensor& point() const { return point_; }
  /// Returns value and gradient at the current point.
  const Slope& slope() const { return slope_; }
  /// Returns tensors from which another object can resume this search.
  std::vector<at::Tensor> state() const;

 private:
  struct Pair {
    at::Tensor move, change;  ///< change of the point and of the gradient in one iteration
    double product = 0;       ///< scalar product of both
  };
  /// Returns the direction of the next step.
  at::Tensor direction() const;

  std::function<Slope(const at::Tensor&)> function_;
  at::Tensor point_;
  Slope slope_;
  std::deque<Pair> pairs_;
};

}  // namespace dovetail::fit
