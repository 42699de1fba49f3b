#pragma once

#include <cstdint>
#include <string_view>

namespace dovetail::embedding {

/// Optimizers for sparse gradients. A step changes only the rows that occur in its batch, and their
/// state. Each of these rows changes once, no matter how often it occurs. In the formulas below, w
/// is the row, and u, s, m and v are its state. All operations are element by element, unless
/// stated. G is the sum of the row's gradients over its occurrences, plus weight_decay * w. This L2
/// decay is the same as in torch.optim's SGD, Adagrad and Adam, but for touched rows only.
///   kSgd             w -= lr * G
///   kMomentum        u = momentum * u + G;  w -= lr * u  (torch.optim.SGD with dampening 0)
///   kAdagrad         s += G^2;  w -= lr * G / (sqrt(s) + eps)
///   kRowWiseAdagrad  s += mean of G^2 over the row (one s per row);  w -= lr / (sqrt(s) + eps) * G
///   kAdam            m += (1 - beta1) (G - m);  v += (1 - beta2) (G^2 - v);
///                    w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps)
///                    (torch.optim.SparseAdam). t counts the updates, the same for all rows.
///   kRowWiseAdam     as kAdam, with the mean of G^2 over the row (one v per row)
///   kFtrl            n' = n + G^2;  z += G - (sqrt(n') - sqrt(n)) / lr * w;
///                    w = -sign(z) max(|z| - l1, 0) / ((beta + sqrt(n')) / lr + l2);  n = n'
///                    (FTRL-Proximal, McMahan et al. 2013, Algorithm 1). z and n begin at 0. So the
///                    first update forgets the initial w.
enum class OptimizerKind { kSgd, kMomentum, kAdagrad, kRowWiseAdagrad, kAdam, kRowWiseAdam, kFtrl };

/// Returns "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam" or "ftrl".
std::string_view name(OptimizerKind kind);
/// Inverse of name(). Throws UserError for another name.
OptimizerKind parse_optimizer(std::string_view name);

/// Optimizer and its hyperparameters.
struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kRowWiseAdagrad;
  double lr = 0.01;
  double momentum = 0.9;              ///< for kMomentum
  double beta1 = 0.9, beta2 = 0.999;  ///< for kAdam, kRowWiseAdam
  double eps = 1e-8;                  ///< for all but kSgd, kMomentum, kFtrl
  double weight_decay = 0;
  double l1 = 0, l2 = 0, beta = 1;  ///< for kFtrl
  bool operator==(const OptimizerSpec&) const = default;
};

/// OptimizerSpec as float32 numbers that the kernels use in one update. rest1 is 1 - beta1, rest2
/// is 1 - beta2.
struct UpdateScalars {
  OptimizerKind kind;
  float lr;  ///< for kAdam and kRowWiseAdam: lr * sqrt(1 - beta2^t) / (1 - beta1^t)
  float momentum, rest1, rest2, eps, weight_decay, l1, l2, beta;
};

/// Returns the scalars for update number `step`, counted from 1 (Adam bias correction).
UpdateScalars update_scalars(const OptimizerSpec& spec, int64_t step);

/// Least divisor of kFtrl, for elements whose gradients were all 0.
inline constexpr float kLeastRoot = 1e-30f;

/// Throws UserError if a number in `spec` is out of its range, and names the number.
void check_optimizer(const OptimizerSpec& spec);

/// Returns the number of float32 state values for a row with `dim` elements.
int64_t state_per_row(OptimizerKind kind, int64_t dim);

}  // namespace dovetail::embedding
