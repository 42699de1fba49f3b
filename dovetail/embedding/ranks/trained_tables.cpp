#include "dovetail/embedding/ranks/trained_tables.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/embedding/ranks/table_placement.h"

namespace dovetail::embedding {

namespace {

/// Selects the rows of some features, one feature after another. `rows` has one row for each id of
/// the batch.
std::vector<at::Tensor> rows_of(const at::Tensor& rows, const Jagged& batch,
                                const std::vector<int64_t>& features) {
  const auto* offsets = batch.offsets.const_data_ptr<int64_t>();
  std::vector<at::Tensor> parts;
  for (const int64_t f : features) {
    const int64_t first = offsets[f * batch.samples];
    parts.push_back(rows.narrow(0, first, offsets[(f + 1) * batch.samples] - first));
  }
  return parts;
}

}  // namespace

TrainedTables::TrainedTables(const PackSpec& spec, UpdateTime time, at::Device device)
    : spec_(spec), time_(time) {
  check_spec(spec_);
  const std::vector<std::vector<int64_t>> alike = tables_by_optimizer(spec_);
  user_check(device.is_cpu() || alike.size() <= 1,
             "embedding: {} optimizers are asked for on {}, where the tables of a collection have "
             "one; make a collection for each",
             alike.size(), device.str());
  for (const std::vector<int64_t>& tables : alike) add_pack(tables, device);
  for (const int64_t t : spec_.feature_table)
    feature_rows_.push_back(spec_.tables[static_cast<size_t>(t)].rows);
}

void TrainedTables::add_pack(const std::vector<int64_t>& tables, at::Device device) {
  const std::vector<int64_t> features = features_of(spec_, {.tables = tables}),
                             columns = whole_columns(spec_);
  PackSpec pack{.tables = {},
                .feature_table = {},
                .optimizer = optimizer_of(spec_, tables.front()),
                .seed = spec_.seed,
                .row_dtype = spec_.row_dtype};
  for (const int64_t t : tables) {
    pack.tables.push_back(spec_.tables[static_cast<size_t>(t)]);
    pack.tables.back().optimizer.reset();
  }
  const bool pools = pack.tables.front().pooling != Pooling::kNone;
  for (const int64_t f : features) {
    const auto table =
        std::ranges::lower_bound(tables, spec_.feature_table[static_cast<size_t>(f)]);
    pack.feature_table.push_back(table - tables.begin());
    if (pools) pack.feature_columns.push_back(columns[static_cast<size_t>(f)]);
  }
  pack.columns = columns.back();
  packs_.push_back(
      {tables, features, PackedTables(std::move(pack), PackedTables::Initial::kDrawn, device)});
}

std::pair<const TrainedTables::Pack*, int64_t> TrainedTables::pack_of(int64_t table) const {
  for (const Pack& pack : packs_) {
    const auto found = std::ranges::find(pack.whole_tables, table);
    if (found != pack.whole_tables.end()) return {&pack, found - pack.whole_tables.begin()};
  }
  throw UserError(fmt::format("embedding: there is no table {} of {}", table, spec_.tables.size()));
}

at::Tensor TrainedTables::stored(int64_t table) const {
  const auto [pack, number] = pack_of(table);
  return pack->tables.stored(number);
}

std::vector<std::pair<std::string, at::Tensor>> TrainedTables::state(int64_t table) const {
  const auto [pack, number] = pack_of(table);
  return pack->tables.state(number);
}

void TrainedTables::set_lr(double lr) {
  for (const Pack& pack : packs_)
    user_check(
        pack.tables.spec().optimizer.kind != OptimizerKind::kFtrl || lr == spec_.optimizer.lr,
        "embedding: the learning rate of ftrl is constant, since another one would scale "
        "all weights");
  for (Pack& pack : packs_) pack.tables.set_lr(rate_of(spec_, pack.whole_tables.front(), lr));
}

void TrainedTables::set_steps(int64_t steps) {
  for (Pack& pack : packs_) pack.tables.set_steps(steps);
}

at::Tensor TrainedTables::pool(const Jagged& batch) {
  if (packs_.size() == 1) return embedding::pool(packs_.front().tables, batch);
  check_jagged(batch, feature_rows_);
  const int64_t rows = unpooled() ? batch.values.numel() : batch.samples,
                columns =
                    unpooled() ? packs_.front().tables.columns() : whole_columns(spec_).back();
  at::Tensor y = allocate(rows * columns).view({rows, columns});
  for (const Pack& pack : packs_) {
    const Jagged own = embedding::features_of(batch, pack.features);
    if (!unpooled()) {
      pool_into(pack.tables, own, y);
      continue;
    }
    int64_t first = 0;
    const at::Tensor found = embedding::pool(pack.tables, own);
    for (const at::Tensor& to : rows_of(y, batch, pack.features)) {
      to.copy_(found.narrow(0, first, to.size(0)));
      first += to.size(0);
    }
  }
  return y;
}

void TrainedTables::update(const std::vector<PooledGradient>& micro_batches) {
  // `pool` has checked the batches. A second check on a GPU would wait for it.
  const Ids ids = packs_.front().tables.device().is_cpu() ? Ids::kUnchecked : Ids::kChecked;
  if (packs_.size() == 1) return embedding::update(packs_.front().tables, micro_batches, ids);
  for (Pack& pack : packs_) {
    std::vector<PooledGradient> own;
    for (const PooledGradient& part : micro_batches) {
      std::vector<at::Tensor> rows;
      if (unpooled()) rows = rows_of(part.gradient, part.batch, pack.features);
      own.push_back({.batch = embedding::features_of(part.batch, pack.features),
                     .gradient = rows.empty() ? part.gradient : at::cat(rows)});
    }
    embedding::update(pack.tables, own, ids);
  }
}

void TrainedTables::apply() {
  user_check(time_ == UpdateTime::kOnApply,
             "embedding: apply was called, but every backward has been a step already; make the "
             "tables with update = \"apply\"");
  if (queue_.empty()) return;
  std::sort(queue_.begin(), queue_.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<PooledGradient> micro_batches;
  for (auto& [number, part] : queue_) micro_batches.push_back(std::move(part));
  queue_.clear();
  update(micro_batches);
}

std::pair<at::Tensor, int64_t> TrainedTables::pool_for_training(const Jagged& batch) {
  return {pool(batch), lookups_++};
}

void TrainedTables::add_gradient(int64_t number, PooledGradient part) {
  if (time_ == UpdateTime::kInBackward) return update({std::move(part)});
  queue_.emplace_back(number, std::move(part));
}

}  // namespace dovetail::embedding
