#include "dovetail/embedding/pack/row_optimizer.h"

#include <fmt/ranges.h>

#include <array>
#include <cmath>

#include "dovetail/base/error.h"

namespace dovetail::embedding {

namespace {

constexpr std::array<std::string_view, 7> kOptimizerNames = {
    "sgd", "momentum", "adagrad", "rowwise_adagrad", "adam", "rowwise_adam", "ftrl"};

}  // namespace

std::string_view name(OptimizerKind kind) { return kOptimizerNames[static_cast<size_t>(kind)]; }

OptimizerKind parse_optimizer(std::string_view name) {
  for (size_t i = 0; i < kOptimizerNames.size(); ++i) {
    if (name == kOptimizerNames[i]) return static_cast<OptimizerKind>(i);
  }
  throw UserError(fmt::format("embedding: no optimizer is named \"{}\"", name),
                  fmt::format("use one of {}", fmt::join(kOptimizerNames, ", ")));
}

UpdateScalars update_scalars(const OptimizerSpec& spec, int64_t step) {
  const auto t = static_cast<double>(step);
  const double correction = std::sqrt(1 - std::pow(spec.beta2, t)) / (1 - std::pow(spec.beta1, t));
  const bool corrects =
      spec.kind == OptimizerKind::kAdam || spec.kind == OptimizerKind::kRowWiseAdam;
  return {.kind = spec.kind,
          .lr = static_cast<float>(corrects ? spec.lr * correction : spec.lr),
          .momentum = static_cast<float>(spec.momentum),
          .rest1 = static_cast<float>(1 - spec.beta1),
          .rest2 = static_cast<float>(1 - spec.beta2),
          .eps = static_cast<float>(spec.eps),
          .weight_decay = static_cast<float>(spec.weight_decay),
          .l1 = static_cast<float>(spec.l1),
          .l2 = static_cast<float>(spec.l2),
          .beta = static_cast<float>(spec.beta)};
}

void check_optimizer(const OptimizerSpec& spec) {
  const auto check = [](const char* name, double value, double below) {
    user_check(std::isfinite(value) && value >= 0 && value < below,
               "embedding: {} is {}, but must lie in [0, {})", name, value, below);
  };
  check("lr", spec.lr, INFINITY);
  check("momentum", spec.momentum, 1);
  check("beta1", spec.beta1, 1);
  check("beta2", spec.beta2, 1);
  check("eps", spec.eps, INFINITY);
  check("weight_decay", spec.weight_decay, INFINITY);
  check("l1", spec.l1, INFINITY);
  check("l2", spec.l2, INFINITY);
  check("beta", spec.beta, INFINITY);
  user_check(spec.kind != OptimizerKind::kFtrl || spec.lr > 0,
             "embedding: lr is 0, but ftrl divides by it");
}

int64_t state_per_row(OptimizerKind kind, int64_t dim) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return 0;
    case OptimizerKind::kRowWiseAdagrad:
      return 1;
    case OptimizerKind::kMomentum:
    case OptimizerKind::kAdagrad:
      return dim;
    case OptimizerKind::kRowWiseAdam:
      return dim + 1;
    case OptimizerKind::kAdam:
    case OptimizerKind::kFtrl:
      return 2 * dim;
  }
  DOVETAIL_CHECK(false, "no such optimizer");
}

}  // namespace dovetail::embedding
