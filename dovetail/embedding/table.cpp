#include "dovetail/embedding/table.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/parallel.h"
#include "dovetail/base/philox.h"
#include "dovetail/base/rng.h"

namespace dovetail::embedding {

namespace {

constexpr int64_t kLine = 16;  // floats of a cache line

void check_spec(const PackSpec& spec) {
  std::set<std::string> names;
  for (const TableSpec& table : spec.tables) {
    user_check(names.insert(table.name).second, "embedding: two tables are named \"{}\"", table.name);
    user_check(table.rows >= 1 && table.rows <= int64_t{1} << 31 && table.dim >= 1,
               "embedding: table \"{}\" has {} rows of {} elements, but must have 1 to 2^31 rows of 1 element or more",
               table.name, table.rows, table.dim);
  }
  for (size_t f = 0; f < spec.feature_table.size(); ++f)
    user_check(spec.feature_table[f] >= 0 && spec.feature_table[f] < static_cast<int64_t>(spec.tables.size()),
               "embedding: feature {} looks into table {}, but there are {} tables", f, spec.feature_table[f],
               spec.tables.size());
  user_check(spec.feature_columns.empty() || spec.feature_columns.size() == spec.feature_table.size(),
             "embedding: {} features have {} columns", spec.feature_table.size(), spec.feature_columns.size());
  for (size_t f = 0; f < spec.feature_columns.size(); ++f) {
    const int64_t first = spec.feature_columns[f], dim = spec.tables[static_cast<size_t>(spec.feature_table[f])].dim;
    user_check(first >= 0 && first + dim <= spec.columns,
               "embedding: feature {} has columns {} to {} of an output of {}", f, first, first + dim, spec.columns);
  }
  check_optimizer(spec.optimizer);
}

/// The first elements of parts of `sizes` elements that each begin at a cache line, and the end of the last.
std::vector<int64_t> places(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> begins = {0};
  for (const int64_t size : sizes) begins.push_back(begins.back() + (size + kLine - 1) / kLine * kLine);
  return begins;
}

void use_huge_pages(const at::Tensor& storage) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  const auto begin = reinterpret_cast<uintptr_t>(storage.mutable_data_ptr());
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + storage.nbytes()) / kHugePage * kHugePage;
  if (first < last) madvise(reinterpret_cast<void*>(first), last - first, MADV_HUGEPAGE);  // advice: may be refused
}

}  // namespace

at::Tensor allocate(int64_t elements) {
  const at::Tensor storage = at::empty({elements}, at::kFloat);
  use_huge_pages(storage);
  return storage;
}

Pooling parse_pooling(std::string_view name) {
  if (name == "sum") return Pooling::kSum;
  if (name == "mean") return Pooling::kMean;
  throw UserError(fmt::format("embedding: no pooling is named \"{}\"", name), "use sum or mean");
}

InitialRows::InitialRows(uint64_t seed, std::string_view table, float bound, int64_t dim, const TableSlice& slice)
    : key_(mix_seed(seed, name_key(table))), bound_(bound), dim_(dim), slice_(slice) {}

void InitialRows::fill(uint64_t row, float* values) const {
  const uint64_t whole_row = static_cast<uint64_t>(slice_.first_row) + row * static_cast<uint64_t>(slice_.row_step);
  PhiloxWords words = {};
  for (int64_t i = 0; i < dim_; ++i) {
    const int64_t column = slice_.first_column + i;
    if (i == 0 || column % 4 == 0) {
      const auto stream = static_cast<uint64_t>(RandomStream::kInitialize) | static_cast<uint64_t>(column / 4) << 32;
      words = philox_words(key_, whole_row, stream);
    }
    const float uniform = static_cast<float>(words.word[column % 4] >> 8) * 0x1p-24f;
    values[i] = bound_ * (2 * uniform - 1);
  }
}

float initial_bound(int64_t rows) { return 1 / std::sqrt(static_cast<float>(rows)); }

InitialRows initial_rows(uint64_t seed, const TableSpec& table) {
  const int64_t rows = table.slice.whole_rows > 0 ? table.slice.whole_rows : table.rows;
  return {seed, table.name, initial_bound(rows), table.dim, table.slice};
}

PackedTables::PackedTables(PackSpec spec, Initial initial)
    : spec_(std::move(spec)), table_features_(spec_.tables.size()) {
  check_spec(spec_);
  for (size_t f = 0; f < spec_.feature_table.size(); ++f) {
    const int64_t t = spec_.feature_table[f];
    const TableSpec& table = spec_.tables[static_cast<size_t>(t)];
    const bool own_output = spec_.feature_columns.empty();
    features_.push_back({.table = t, .column = own_output ? columns_ : spec_.feature_columns[f]});
    feature_rows_.push_back(table.rows);
    table_features_[static_cast<size_t>(t)].push_back(static_cast<int64_t>(f));
    columns_ += table.dim;
  }
  if (!spec_.feature_columns.empty()) columns_ = spec_.columns;
  std::vector<int64_t> weight_sizes, state_sizes;
  for (const TableSpec& table : spec_.tables) {
    weight_sizes.push_back(table.rows * table.dim);
    state_sizes.push_back(table.rows * state_per_row(spec_.optimizer.kind, table.dim));
  }
  weight_begin_ = places(weight_sizes);
  state_begin_ = places(state_sizes);
  weights_ = allocate(weight_begin_.back());
  state_ = allocate(state_begin_.back());
  if (initial == Initial::kUnset) return;
  state_.zero_();
  for (size_t t = 0; t < spec_.tables.size(); ++t) initialize(static_cast<int64_t>(t));
}

void PackedTables::initialize(int64_t table) const {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  const InitialRows initial = initial_rows(spec_.seed, spec);
  float* weight = weights_.mutable_data_ptr<float>() + weight_begin_[static_cast<size_t>(table)];
  parallel_pieces(spec.rows, std::max<int64_t>(1, 16384 / spec.dim), [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) initial.fill(static_cast<uint64_t>(row), weight + row * spec.dim);
  });
}

at::Tensor PackedTables::weight(int64_t table) const {
  const TableSpec& spec = spec_.tables.at(static_cast<size_t>(table));
  return weights_.narrow(0, weight_begin_[static_cast<size_t>(table)], spec.rows * spec.dim)
      .view({spec.rows, spec.dim});
}

at::Tensor PackedTables::packed_state(int64_t table) const {
  const TableSpec& spec = spec_.tables.at(static_cast<size_t>(table));
  const int64_t width = state_per_row(spec_.optimizer.kind, spec.dim);
  return state_.narrow(0, state_begin_[static_cast<size_t>(table)], spec.rows * width).view({spec.rows, width});
}

std::vector<std::pair<std::string, at::Tensor>> PackedTables::state(int64_t table) const {
  const at::Tensor all = packed_state(table);
  const int64_t dim = spec_.tables[static_cast<size_t>(table)].dim;
  switch (spec_.optimizer.kind) {
    case OptimizerKind::kSgd:
      return {};
    case OptimizerKind::kMomentum:
      return {{"u", all}};
    case OptimizerKind::kAdagrad:
      return {{"s", all}};
    case OptimizerKind::kRowWiseAdagrad:
      return {{"s", all.select(1, 0)}};
    case OptimizerKind::kAdam:
      return {{"m", all.narrow(1, 0, dim)}, {"v", all.narrow(1, dim, dim)}};
  }
  DOVETAIL_CHECK(false, "no such optimizer");
}

void PackedTables::set_lr(double lr) {
  OptimizerSpec changed = spec_.optimizer;
  changed.lr = lr;
  check_optimizer(changed);
  spec_.optimizer = changed;
}

}  // namespace dovetail::embedding
