#include "dovetail/embedding/pack/composed.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <cmath>

namespace dovetail::embedding::composed {

namespace {

/// Ids of one feature. `offsets`: first id of each bag. `sizes`: ids of each bag. `scale`: factor
/// of each id's row.
struct FeatureIds {
  at::Tensor ids, offsets, sizes, scale;
  int64_t begin;  ///< first of these ids in the batch's values
};

FeatureIds ids_of(const PackedTables& tables, const Jagged& batch, int64_t feature) {
  const at::Tensor offsets = batch.offsets.narrow(0, feature * batch.samples, batch.samples + 1);
  const int64_t begin = offsets[0].item<int64_t>(),
                count = offsets[batch.samples].item<int64_t>() - begin;
  const at::Tensor sizes = offsets.diff();
  at::Tensor scale = batch.weights.defined() ? batch.weights.narrow(0, begin, count)
                                             : at::ones({count}, at::kFloat);
  const int64_t table = tables.features()[static_cast<size_t>(feature)].table;
  if (tables.spec().tables[static_cast<size_t>(table)].pooling == Pooling::kMean)
    scale = scale * at::repeat_interleave(at::reciprocal(sizes.to(at::kFloat)), sizes);
  return {batch.values.narrow(0, begin, count), offsets.narrow(0, 0, batch.samples) - begin, sizes,
          scale, begin};
}

/// Applies one step of optimizer.h: w -= ... for rows w and gradients g. Updates the state's rows
/// in place.
void step(const OptimizerSpec& o, int64_t t, at::Tensor& w, at::Tensor g, at::Tensor& state) {
  g = g + o.weight_decay * w;
  const int64_t dim = w.size(1);
  switch (o.kind) {
    case OptimizerKind::kSgd:
      w.sub_(o.lr * g);
      return;
    case OptimizerKind::kMomentum:
      state.mul_(o.momentum).add_(g);
      w.sub_(o.lr * state);
      return;
    case OptimizerKind::kAdagrad:
      state.addcmul_(g, g);
      w.addcdiv_(g, state.sqrt().add_(o.eps), -o.lr);
      return;
    case OptimizerKind::kRowWiseAdagrad:
      state.add_(g.square().mean(1, true));
      w.addcdiv_(g, state.sqrt().add_(o.eps), -o.lr);
      return;
    case OptimizerKind::kAdam: {
      at::Tensor m = state.narrow(1, 0, dim), v = state.narrow(1, dim, dim);
      m.lerp_(g, 1 - o.beta1);
      v.lerp_(g.square(), 1 - o.beta2);
      const auto steps = static_cast<double>(t);
      const double rate =
          o.lr * std::sqrt(1 - std::pow(o.beta2, steps)) / (1 - std::pow(o.beta1, steps));
      w.addcdiv_(m, v.sqrt().add_(o.eps), -rate);
      return;
    }
    case OptimizerKind::kRowWiseAdam: {
      at::Tensor m = state.narrow(1, 0, dim), v = state.narrow(1, dim, 1);
      m.lerp_(g, 1 - o.beta1);
      v.lerp_(g.square().mean(1, true), 1 - o.beta2);
      w.addcdiv_(m, v.sqrt().add_(o.eps), -double{update_scalars(o, t).lr});
      return;
    }
    case OptimizerKind::kFtrl: {
      at::Tensor z = state.narrow(1, 0, dim), n = state.narrow(1, dim, dim);
      const at::Tensor before = n.sqrt(), root = n.addcmul_(g, g).sqrt();
      z.add_(g).addcmul_(g.square().div_((root + before).clamp_min_(kLeastRoot)), w, -1 / o.lr);
      const at::Tensor beyond = z.abs().sub_(o.l1).clamp_min_(0);
      w.copy_(z.sign().neg_() * beyond / ((root + o.beta) / o.lr + o.l2).clamp_min_(kLeastRoot));
      return;
    }
  }
}

void store_rows(const PackedTables& tables, int64_t table, const at::Tensor& rows,
                const at::Tensor& w) {
  const RowDtype dtype = tables.spec().row_dtype;
  const int64_t dim = w.size(1), bytes = row_bytes(dtype, dim);
  const RowRounding rounding = tables.rounding(table);
  const auto* numbers = rows.const_data_ptr<int64_t>();
  const auto* values = w.const_data_ptr<float>();
  for (int64_t i = 0; i < rows.numel(); ++i)
    encode_row(dtype, values + i * dim, dim, rounding.words(static_cast<uint64_t>(numbers[i])),
               tables.row_data(table) + numbers[i] * bytes);
}

/// Updates the rows `ids` of a table, which may repeat. Element i of `gradients` has one row for
/// each element of ids[i].
void update_rows_of(const PackedTables& tables, int64_t table, const std::vector<at::Tensor>& ids,
                    const std::vector<at::Tensor>& gradients) {
  if (ids.empty()) return;
  const int64_t dim = tables.spec().tables[static_cast<size_t>(table)].dim;
  const auto [rows, inverse, counts] = at::_unique2(at::cat(ids), true, true);
  const at::Tensor g =
      at::zeros({rows.size(0), dim}, at::kFloat).index_add_(0, inverse, at::cat(gradients));
  at::Tensor all_state = tables.packed_state(table);
  const at::Tensor all_rows = tables.weight(table);
  at::Tensor w = all_rows.index_select(0, rows), state = all_state.index_select(0, rows);
  step(tables.spec().optimizer, tables.steps() + 1, w, g, state);
  store_rows(tables, table, rows, w);
  all_state.index_copy_(0, rows, state);
}

void update_table(const PackedTables& tables, int64_t table,
                  const std::vector<PooledGradient>& micro_batches) {
  std::vector<at::Tensor> ids, gradients;
  const int64_t dim = tables.spec().tables[static_cast<size_t>(table)].dim;
  for (const PooledGradient& part : micro_batches) {
    for (const int64_t f : tables.features_of(table)) {
      const FeatureIds feature = ids_of(tables, part.batch, f);
      const at::Tensor columns =
          part.gradient.narrow(1, tables.features()[static_cast<size_t>(f)].column, dim);
      const at::Tensor of_ids = tables.unpooled()
                                    ? columns.narrow(0, feature.begin, feature.ids.numel())
                                    : columns.repeat_interleave(feature.sizes, 0);
      ids.push_back(feature.ids);
      gradients.push_back(of_ids * feature.scale.unsqueeze(1));
    }
  }
  update_rows_of(tables, table, ids, gradients);
}

}  // namespace

void pool(const PackedTables& tables, const Jagged& batch, const at::Tensor& y) {
  const at::NoGradGuard no_grad;
  for (int64_t f = 0; f < batch.features; ++f) {
    const FeatureIds feature = ids_of(tables, batch, f);
    const FeatureLayout& layout = tables.features()[static_cast<size_t>(f)];
    const at::Tensor rows = tables.weight(layout.table);
    if (tables.unpooled()) {
      y.narrow(0, feature.begin, feature.ids.numel())
          .copy_(rows.index_select(0, feature.ids) * feature.scale.unsqueeze(1));
      continue;
    }
    y.narrow(1, layout.column, rows.size(1))
        .copy_(std::get<0>(at::embedding_bag(rows, feature.ids, feature.offsets,
                                             /*scale_grad_by_freq=*/false,
                                             /*mode=*/0, /*sparse=*/false, feature.scale)));
  }
}

void update(PackedTables& tables, const std::vector<PooledGradient>& micro_batches) {
  const at::NoGradGuard no_grad;
  for (size_t t = 0; t < tables.spec().tables.size(); ++t)
    update_table(tables, static_cast<int64_t>(t), micro_batches);
}

void update_single_rows(PackedTables& tables, const std::vector<RowGradients>& parts) {
  const at::NoGradGuard no_grad;
  for (size_t t = 0; t < tables.spec().tables.size(); ++t) {
    std::vector<at::Tensor> ids, gradients;
    for (const RowGradients& part : parts) {
      ids.push_back(part.rows[t]);
      gradients.push_back(part.gradient[t]);
    }
    update_rows_of(tables, static_cast<int64_t>(t), ids, gradients);
  }
}

}  // namespace dovetail::embedding::composed
