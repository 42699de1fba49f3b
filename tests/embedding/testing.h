#pragma once

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/tiers/slot_mover.h"
#include "tests/ops/testing.h"

/// Common code of the embedding tests: random batches, and float64 lookups and updates by their
/// definitions.
namespace dovetail::embedding::testing {

inline at::Tensor ids_from(const std::vector<int64_t>& x) { return at::tensor(x, at::kLong); }

/// Memory on the CPU whose rows move through buffers, as rows of a GPU do.
inline SlotMemory apart_memory() { return {.apart = true}; }

/// Returns bags of 0 to 4 ids. They are drawn from few rows, so that ids repeat within bags and
/// between features.
inline Jagged random_batch(const PackedTables& tables, int64_t samples, uint64_t seed,
                           bool weighted) {
  auto generator = at::detail::createCPUGenerator(seed);
  std::vector<int64_t> values, offsets = {0};
  for (const int64_t rows : tables.feature_rows()) {
    const at::Tensor sizes = at::randint(0, 5, {samples}, generator, at::kLong);
    const at::Tensor ids =
        at::randint(0, std::max<int64_t>(1, rows), {samples * 4}, generator, at::kLong);
    int64_t used = 0;
    for (int64_t b = 0; b < samples; ++b) {
      for (int64_t i = 0; i < sizes[b].item<int64_t>(); ++i)
        values.push_back(ids[used++].item<int64_t>());
      offsets.push_back(static_cast<int64_t>(values.size()));
    }
  }
  const auto count = static_cast<int64_t>(values.size());
  return {.values = ids_from(values),
          .offsets = ids_from(offsets),
          .weights = weighted ? at::randn({count}, generator, at::TensorOptions(at::kFloat))
                              : at::Tensor(),
          .features = static_cast<int64_t>(tables.feature_rows().size()),
          .samples = samples};
}

/// Reference implementation of tables, state and steps in float64.
class Reference {
 public:
  explicit Reference(const PackedTables& tables) : tables_(tables) {
    for (size_t t = 0; t < tables.spec().tables.size(); ++t) {
      weight.push_back(tables.weight(static_cast<int64_t>(t)).to(at::kDouble));
      first.push_back(at::zeros_like(weight.back()));
      second.push_back(at::zeros_like(weight.back()));
    }
  }

  at::Tensor pool(const Jagged& batch) const {
    at::Tensor y = at::zeros({batch.samples, tables_.columns()}, at::kDouble);
    each_id(batch, [&](const FeatureLayout& feature, int64_t sample, int64_t id, double scale) {
      const at::Tensor row = weight[static_cast<size_t>(feature.table)][id];
      y[sample].narrow(0, feature.column, row.size(0)).add_(row * scale);
    });
    return y;
  }

  void update(const Jagged& batch, const at::Tensor& gradient) {
    ++steps_;
    std::map<std::pair<int64_t, int64_t>, at::Tensor> sums;
    each_id(batch, [&](const FeatureLayout& feature, int64_t sample, int64_t id, double scale) {
      const int64_t dim = weight[static_cast<size_t>(feature.table)].size(1);
      const at::Tensor part =
          gradient[sample].narrow(0, feature.column, dim).to(at::kDouble) * scale;
      const auto [place, fresh] = sums.try_emplace({feature.table, id}, part);
      if (!fresh) place->second = place->second + part;
    });
    for (const auto& [key, sum] : sums) {
      const auto t = static_cast<size_t>(key.first);
      for (int64_t d = 0; d < sum.size(0); ++d) g_.push_back(sum[d].item<double>());
      step(weight[t][key.second], first[t][key.second], second[t][key.second]);
      g_.clear();
    }
  }

  /// Weights, first state (u, s, m or z) and second state (v or n). The s of kRowWiseAdagrad and
  /// the v of kRowWiseAdam are column 0.
  std::vector<at::Tensor> weight, first, second;

 private:
  template <class Body>
  void each_id(const Jagged& batch, const Body& body) const {
    const int64_t* offsets = batch.offsets.const_data_ptr<int64_t>();
    for (int64_t f = 0; f < batch.features; ++f) {
      const FeatureLayout& feature = tables_.features()[static_cast<size_t>(f)];
      const bool mean =
          tables_.spec().tables[static_cast<size_t>(feature.table)].pooling == Pooling::kMean;
      for (int64_t b = 0; b < batch.samples; ++b) {
        const int64_t begin = offsets[f * batch.samples + b],
                      end = offsets[f * batch.samples + b + 1];
        for (int64_t i = begin; i < end; ++i) {
          const double w = batch.weights.defined() ? batch.weights[i].item<double>() : 1;
          body(feature, b, batch.values[i].item<int64_t>(),
               mean ? w / static_cast<double>(end - begin) : w);
        }
      }
    }
  }

  void step(const at::Tensor& w_row, const at::Tensor& first_row, const at::Tensor& second_row) {
    const OptimizerSpec& o = tables_.spec().optimizer;
    double *w = w_row.mutable_data_ptr<double>(), *a = first_row.mutable_data_ptr<double>(),
           *b = second_row.mutable_data_ptr<double>();
    const size_t dim = g_.size();
    double squares = 0;
    for (size_t d = 0; d < dim; ++d) {
      g_[d] += o.weight_decay * w[d];
      squares += g_[d] * g_[d];
    }
    const double mean = squares / static_cast<double>(dim);
    if (o.kind == OptimizerKind::kRowWiseAdagrad) a[0] += mean;
    if (o.kind == OptimizerKind::kRowWiseAdam) b[0] = o.beta2 * b[0] + (1 - o.beta2) * mean;
    const double t = static_cast<double>(steps_);
    const double corrected =
        o.lr * std::sqrt(1 - std::pow(o.beta2, t)) / (1 - std::pow(o.beta1, t));
    for (size_t d = 0; d < dim; ++d) {
      const double g = g_[d];
      switch (o.kind) {
        case OptimizerKind::kSgd:
          w[d] -= o.lr * g;
          break;
        case OptimizerKind::kMomentum:
          a[d] = o.momentum * a[d] + g;
          w[d] -= o.lr * a[d];
          break;
        case OptimizerKind::kAdagrad:
          a[d] += g * g;
          w[d] -= o.lr * g / (std::sqrt(a[d]) + o.eps);
          break;
        case OptimizerKind::kRowWiseAdagrad:
          w[d] -= o.lr * g / (std::sqrt(a[0]) + o.eps);
          break;
        case OptimizerKind::kAdam: {
          a[d] = o.beta1 * a[d] + (1 - o.beta1) * g;
          b[d] = o.beta2 * b[d] + (1 - o.beta2) * g * g;
          w[d] -= corrected * a[d] / (std::sqrt(b[d]) + o.eps);
          break;
        }
        case OptimizerKind::kRowWiseAdam:
          a[d] = o.beta1 * a[d] + (1 - o.beta1) * g;
          w[d] -= corrected * a[d] / (std::sqrt(b[0]) + o.eps);
          break;
        case OptimizerKind::kFtrl: {  // Algorithm 1 of McMahan et al. 2013
          const double sigma = (std::sqrt(b[d] + g * g) - std::sqrt(b[d])) / o.lr;
          a[d] += g - sigma * w[d];
          b[d] += g * g;
          const double sign = a[d] < 0 ? -1 : 1;
          w[d] = std::abs(a[d]) <= o.l1
                     ? 0
                     : -(a[d] - sign * o.l1) / ((o.beta + std::sqrt(b[d])) / o.lr + o.l2);
          break;
        }
      }
    }
  }

  const PackedTables& tables_;
  int64_t steps_ = 0;
  std::vector<double> g_;
};

}  // namespace dovetail::embedding::testing
