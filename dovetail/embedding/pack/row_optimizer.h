#pragma once

#include <cstdint>
#include <string_view>

namespace dovetail::embedding {

/// Optimizers of sparse gradients. Of a step, only the rows that occur in its batch change, and
/// their state only; a row that occurs in it changes once, however often it occurs. With G the sum
/// of the row's gradients over all of its occurrences, plus weight_decay * w (decay of L2 kind as
/// in torch.optim's SGD, Adagrad and Adam, of touched rows):
///   kSgd            w -= lr * G
///   kMomentum       u = momentum * u + G;  w -= lr * u (torch.optim.SGD, dampening 0) kAdagrad s
///   += G^2;  w -= lr * G / (sqrt(s) + eps) kRowWiseAdagrad s += mean over the row of G^2 (one s
///   per row);  w -= lr / (sqrt(s) + eps) * G kAdam           m += (1 - beta1) (G - m);  v += (1 -
///   beta2) (G^2 - v)           (torch.optim.SparseAdam)
///                   w -= lr * sqrt(1 - beta2^t) / (1 - beta1^t) * m / (sqrt(v) + eps), t the
///                   number of steps of all rows together
enum class OptimizerKind { kSgd, kMomentum, kAdagrad, kRowWiseAdagrad, kAdam };

/// "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam".
std::string_view name(OptimizerKind kind);
/// The inverse. Throws UserError for another name.
OptimizerKind parse_optimizer(std::string_view name);

struct OptimizerSpec {
  OptimizerKind kind = OptimizerKind::kRowWiseAdagrad;
  double lr = 0.01;
  double momentum = 0.9;              ///< of kMomentum
  double beta1 = 0.9, beta2 = 0.999;  ///< of kAdam
  double eps = 1e-8;                  ///< of kAdagrad, kRowWiseAdagrad, kAdam
  double weight_decay = 0;
  bool operator==(const OptimizerSpec&) const = default;
};

/// OptimizerSpec as the kernels use it.
struct UpdateScalars {
  OptimizerKind kind;
  float lr;  ///< of kAdam: lr * sqrt(1 - beta2^t) / (1 - beta1^t)
  float momentum, rest1, rest2, eps, weight_decay;
};

/// Of the update with this number, from 1.
UpdateScalars update_scalars(const OptimizerSpec& spec, int64_t step);

/// Throws UserError for a number that is out of its range, naming it.
void check_optimizer(const OptimizerSpec& spec);

/// The float32 numbers of state that a row of `dim` elements has.
int64_t state_per_row(OptimizerKind kind, int64_t dim);

}  // namespace dovetail::embedding
