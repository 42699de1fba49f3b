#include "dovetail/embedding/pack/table.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/philox.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/threads.h"
#include "dovetail/embedding/pack/cuda_kernels.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

constexpr int64_t kFloatBytes = sizeof(float), kLine = 16;  // floats of a cache line

PackSpec without_state(PackSpec spec) {
  spec.optimizer = {.kind = OptimizerKind::kSgd};
  return spec;
}

void check_pooling(const PackSpec& spec) {
  for (const TableSpec& table : spec.tables) {
    const TableSpec& first = spec.tables.front();
    user_check((table.pooling == Pooling::kNone) == (first.pooling == Pooling::kNone),
               "embedding: tables \"{}\" and \"{}\" are in one collection, but only one of them "
               "has pooling none. Make a collection of the tables with pooling none",
               first.name, table.name);
    user_check(table.pooling != Pooling::kNone || table.dim == first.dim,
               "embedding: tables \"{}\" and \"{}\" have pooling none and share an output, but "
               "their rows have {} and {} elements. Make a collection of each",
               first.name, table.name, first.dim, table.dim);
  }
  user_check(spec.tables.empty() || spec.tables.front().pooling != Pooling::kNone ||
                 spec.feature_columns.empty(),
             "embedding: rows of pooling none have no columns beside others'");
}

void check_on_gpu(const PackSpec& spec, at::Device device) {
  user_check(device.is_cuda(),
             "embedding: tables are asked for on {}; they lie on the CPU or a CUDA device",
             device.str());
  user_check(spec.row_dtype != RowDtype::kMXFP8,
             "embedding: rows on a GPU are fp32 or bf16, not mxfp8");
  for (const TableSpec& table : spec.tables) {
    user_check(table.dim <= kCudaDim,
               "embedding: table \"{}\" has rows of {} elements, but a GPU's have at most {}",
               table.name, table.dim, kCudaDim);
    user_check(table.pooling != Pooling::kNone,
               "embedding: table \"{}\" has pooling none, but a GPU pools rows; give each id a bag "
               "of its own",
               table.name);
  }
  user_check(ops::kernel_enabled(ops::Kernel::kEmbedding),
             "embedding: tables on a GPU need the kernels that DOVETAIL_DISABLE takes away; leave "
             "\"embedding\" out of it");
  cuda_kernels();
}

/// Returns the first element of each part and the end of the last. Part i has sizes[i] elements,
/// and each part begins at a cache line.
std::vector<int64_t> places(const std::vector<int64_t>& sizes) {
  std::vector<int64_t> begins = {0};
  for (const int64_t size : sizes)
    begins.push_back(begins.back() + (size + kLine - 1) / kLine * kLine);
  return begins;
}

void use_huge_pages(const at::Tensor& storage) {
  constexpr uintptr_t kHugePage = uintptr_t{2} << 20;
  auto* const data = static_cast<char*>(storage.mutable_data_ptr());
  const auto begin = reinterpret_cast<uintptr_t>(data);
  const uintptr_t first = (begin + kHugePage - 1) / kHugePage * kHugePage;
  const uintptr_t last = (begin + storage.nbytes()) / kHugePage * kHugePage;
  if (first < last) madvise(data + (first - begin), last - first, MADV_HUGEPAGE);  // may be refused
}

}  // namespace

const OptimizerSpec& optimizer_of(const PackSpec& spec, int64_t table) {
  const std::optional<OptimizerSpec>& own = spec.tables.at(static_cast<size_t>(table)).optimizer;
  return own ? *own : spec.optimizer;
}

double rate_of(const PackSpec& spec, int64_t table, double lr) {
  const double own = optimizer_of(spec, table).lr, general = spec.optimizer.lr;
  // The weights of ftrl are its sums times the rate: another rate would scale all of them.
  if (optimizer_of(spec, table).kind == OptimizerKind::kFtrl) return own;
  if (own == general) return lr;
  user_check(general > 0,
             "embedding: table \"{}\" has a rate of its own beside a general one of 0, to which it "
             "has no ratio; give a positive one",
             spec.tables[static_cast<size_t>(table)].name);
  return lr * (own / general);
}

int64_t state_per_row(const PackSpec& spec, int64_t table) {
  return state_per_row(optimizer_of(spec, table).kind,
                       spec.tables.at(static_cast<size_t>(table)).dim);
}

void check_spec(const PackSpec& spec) {
  std::set<std::string> names;
  for (const TableSpec& table : spec.tables) {
    user_check(names.insert(table.name).second, "embedding: two tables are named \"{}\"",
               table.name);
    user_check(table.rows >= 1 && table.rows <= int64_t{1} << 31 && table.dim >= 1,
               "embedding: table \"{}\" has {} rows of {} elements, but must have 1 to 2^31 rows "
               "of 1 element or more",
               table.name, table.rows, table.dim);
    if (table.optimizer) check_optimizer(*table.optimizer);
  }
  for (size_t f = 0; f < spec.feature_table.size(); ++f)
    user_check(spec.feature_table[f] >= 0 &&
                   spec.feature_table[f] < static_cast<int64_t>(spec.tables.size()),
               "embedding: feature {} looks into table {}, but there are {} tables", f,
               spec.feature_table[f], spec.tables.size());
  user_check(
      spec.feature_columns.empty() || spec.feature_columns.size() == spec.feature_table.size(),
      "embedding: {} features have {} columns", spec.feature_table.size(),
      spec.feature_columns.size());
  for (size_t f = 0; f < spec.feature_columns.size(); ++f) {
    const int64_t first = spec.feature_columns[f],
                  dim = spec.tables[static_cast<size_t>(spec.feature_table[f])].dim;
    user_check(first >= 0 && first + dim <= spec.columns,
               "embedding: feature {} has columns {} to {} of an output of {}", f, first,
               first + dim, spec.columns);
  }
  check_optimizer(spec.optimizer);
  check_pooling(spec);
}

at::Tensor allocate(int64_t elements, at::Device device) {
  at::Tensor storage = at::empty({elements}, at::TensorOptions(device).dtype(at::kFloat));
  if (device.is_cpu()) use_huge_pages(storage);
  return storage;
}

Pooling parse_pooling(std::string_view name) {
  if (name == "sum") return Pooling::kSum;
  if (name == "mean") return Pooling::kMean;
  if (name == "none") return Pooling::kNone;
  throw UserError(fmt::format("embedding: no pooling is named \"{}\"", name),
                  "use sum, mean or none");
}

InitialRows::InitialRows(uint64_t seed, std::string_view table, float bound, int64_t dim,
                         const TableSlice& slice)
    : key_(mix_seed(seed, name_key(table))),
      rounding_key_(row_rounding(seed, table, slice, 0).key),
      bound_(bound),
      dim_(dim),
      slice_(slice) {}

void InitialRows::fill(uint64_t row, float* values) const {
  const uint64_t whole_row =
      static_cast<uint64_t>(slice_.first_row) + row * static_cast<uint64_t>(slice_.row_step);
  PhiloxWords words = {};
  for (int64_t i = 0; i < dim_; ++i) {
    const int64_t column = slice_.first_column + i;
    if (i == 0 || column % 4 == 0) {
      const auto stream = static_cast<uint64_t>(RandomStream::kInitialize) |
                          static_cast<uint64_t>(column / 4) << 32;
      words = philox_words(key_, whole_row, stream);
    }
    const float uniform = static_cast<float>(words.word[column % 4] >> 8) * 0x1p-24f;
    values[i] = bound_ * (2 * uniform - 1);
  }
}

void InitialRows::store(RowDtype dtype, uint64_t row, void* to) const {
  if (dtype == RowDtype::kFloat32) return fill(row, static_cast<float*>(to));
  thread_local std::vector<float> values;
  values.resize(static_cast<size_t>(dim_));
  fill(row, values.data());
  const RowRounding rounding{.key = rounding_key_,
                             .first_row = slice_.first_row,
                             .row_step = slice_.row_step,
                             .first_column = slice_.first_column,
                             .row_of = nullptr};
  encode_row(dtype, values.data(), dim_, rounding.words(row), to);
}

RowRounding row_rounding(uint64_t seed, std::string_view table, const TableSlice& slice,
                         int64_t step) {
  const uint64_t stream =
      mix_seed(static_cast<uint64_t>(RandomStream::kQuantize), static_cast<uint64_t>(step));
  return {.key = mix_seed(mix_seed(seed, name_key(table)), stream),
          .first_row = slice.first_row,
          .row_step = slice.row_step,
          .first_column = slice.first_column,
          .row_of = nullptr};
}

float initial_bound(const TableSpec& table) {
  if (table.initial_range >= 0) return static_cast<float>(table.initial_range);
  const int64_t rows = table.slice.whole_rows > 0 ? table.slice.whole_rows : table.rows;
  return 1 / std::sqrt(static_cast<float>(rows));
}

InitialRows initial_rows(uint64_t seed, const TableSpec& table) {
  return {seed, table.name, initial_bound(table), table.dim, table.slice};
}

uint32_t rounding_row(uint64_t key) { return static_cast<uint32_t>(mix_seed(key, 0)); }

std::vector<std::pair<std::string, at::Tensor>> named_state(OptimizerKind kind,
                                                            const at::Tensor& state) {
  switch (kind) {
    case OptimizerKind::kSgd:
      return {};
    case OptimizerKind::kMomentum:
      return {{"u", state}};
    case OptimizerKind::kAdagrad:
      return {{"s", state}};
    case OptimizerKind::kRowWiseAdagrad:
      return {{"s", state.select(1, 0)}};
    case OptimizerKind::kAdam: {
      const int64_t dim = state.size(1) / 2;
      return {{"m", state.narrow(1, 0, dim)}, {"v", state.narrow(1, dim, dim)}};
    }
    case OptimizerKind::kRowWiseAdam: {
      const int64_t dim = state.size(1) - 1;
      return {{"m", state.narrow(1, 0, dim)}, {"v", state.select(1, dim)}};
    }
    case OptimizerKind::kFtrl: {
      const int64_t dim = state.size(1) / 2;
      return {{"z", state.narrow(1, 0, dim)}, {"n", state.narrow(1, dim, dim)}};
    }
  }
  DOVETAIL_CHECK(false, "no such optimizer");
}

PackedTables::PackedTables(PackSpec spec, at::Device device)
    : spec_(std::move(spec)),
      device_(device),
      table_features_(spec_.tables.size()),
      rows_held_(spec_.tables.size()) {
  check_spec(spec_);
  for (const TableSpec& table : spec_.tables)
    user_check(!table.optimizer || *table.optimizer == spec_.optimizer,
               "embedding: table \"{}\" has an optimizer of its own, but tables that are looked up "
               "as one share theirs",
               table.name);
  if (!device.is_cpu()) check_on_gpu(spec_, device);
  for (size_t f = 0; f < spec_.feature_table.size(); ++f) {
    const int64_t t = spec_.feature_table[f];
    const TableSpec& table = spec_.tables[static_cast<size_t>(t)];
    const bool own_output = spec_.feature_columns.empty();
    const int64_t column = unpooled() ? 0 : own_output ? columns_ : spec_.feature_columns[f];
    features_.push_back({.table = t, .column = column});
    feature_rows_.push_back(table.rows);
    table_features_[static_cast<size_t>(t)].push_back(static_cast<int64_t>(f));
    columns_ += table.dim;
  }
  if (!spec_.feature_columns.empty()) columns_ = spec_.columns;
  if (unpooled()) columns_ = spec_.tables.front().dim;
  std::vector<int64_t> state_sizes;
  for (const TableSpec& table : spec_.tables)
    state_sizes.push_back(table.rows * state_per_row(spec_.optimizer.kind, table.dim));
  state_begin_ = places(state_sizes);
  state_ = allocate(state_begin_.back(), device);
}

PackedTables::PackedTables(PackSpec spec, Initial initial, at::Device device)
    : PackedTables(std::move(spec), device) {
  std::vector<int64_t> weight_sizes;
  for (const TableSpec& table : spec_.tables)
    weight_sizes.push_back((table.rows * row_bytes(spec_.row_dtype, table.dim) + kFloatBytes - 1) /
                           kFloatBytes);
  const std::vector<int64_t> weight_begin = places(weight_sizes);
  const at::Tensor weights = allocate(weight_begin.back(), device);
  for (size_t t = 0; t < spec_.tables.size(); ++t) {
    const TableSpec& table = spec_.tables[t];
    // A storage of its own for each table: whoever saves a table saves no other.
    stored_.push_back(at::from_blob(
        static_cast<char*>(weights.mutable_data_ptr()) + weight_begin[t] * kFloatBytes,
        {table.rows, stored_width(spec_.row_dtype, table.dim)}, [weights](void*) {},
        weights.options().dtype(stored_type(spec_.row_dtype))));
  }
  if (initial == Initial::kUnset) return;
  state_.zero_();
  for (size_t t = 0; t < spec_.tables.size(); ++t) initialize(static_cast<int64_t>(t));
}

PackedTables::PackedTables(PackSpec spec, std::vector<at::Tensor> stored)
    : PackedTables(without_state(std::move(spec)),
                   stored.empty() ? at::kCPU : stored.front().device()) {
  user_check(stored.size() == spec_.tables.size(), "embedding: rows of {} tables for {} tables",
             stored.size(), spec_.tables.size());
  for (size_t t = 0; t < stored.size(); ++t) {
    const TableSpec& table = spec_.tables[t];
    const at::Tensor& rows = stored[t];
    const int64_t width = stored_width(spec_.row_dtype, table.dim);
    user_check(rows.dim() == 2 && rows.size(0) == table.rows && rows.size(1) == width &&
                   rows.scalar_type() == stored_type(spec_.row_dtype) && rows.is_contiguous() &&
                   rows.device() == device_,
               "embedding: rows of table \"{}\" must be ({}, {}) {}, contiguous, on {}, but are {}",
               table.name, table.rows, width, c10::toString(stored_type(spec_.row_dtype)),
               device_.str(), ops::describe(rows));
  }
  stored_ = std::move(stored);
}

void PackedTables::initialize(int64_t table) const {
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  const InitialRows initial = initial_rows(spec_.seed, spec);
  const int64_t bytes = row_bytes(spec_.row_dtype, spec.dim);
  const at::Tensor rows =
      device().is_cpu() ? stored(table) : at::empty_like(stored(table), at::kCPU);
  char* first = static_cast<char*>(rows.mutable_data_ptr());
  parallel_pieces(
      spec.rows, std::max<int64_t>(1, 16384 / spec.dim), [&](int64_t begin, int64_t end) {
        for (int64_t row = begin; row < end; ++row)
          initial.store(spec_.row_dtype, static_cast<uint64_t>(row), first + row * bytes);
      });
  if (!device().is_cpu()) stored(table).copy_(rows);
}

at::Tensor PackedTables::weight(int64_t table) const {
  const TableSpec& spec = spec_.tables.at(static_cast<size_t>(table));
  if (spec_.row_dtype == RowDtype::kFloat32) return stored(table);
  if (spec_.row_dtype == RowDtype::kBFloat16) return stored(table).to(at::kFloat);
  at::Tensor values = at::empty({spec.rows, spec.dim}, at::kFloat);
  const int64_t bytes = row_bytes(spec_.row_dtype, spec.dim);
  auto* to = values.mutable_data_ptr<float>();
  for (int64_t row = 0; row < spec.rows; ++row)
    decode_row(spec_.row_dtype, row_data(table) + row * bytes, spec.dim, to + row * spec.dim);
  return values;
}

char* PackedTables::row_data(int64_t table) const {
  return static_cast<char*>(stored(table).mutable_data_ptr());
}

RowRounding PackedTables::rounding(int64_t table) const {
  const TableSpec& spec = spec_.tables.at(static_cast<size_t>(table));
  RowRounding rounding = row_rounding(spec_.seed, spec.name, spec.slice, steps_ + 1);
  rounding.row_of = rows_held_[static_cast<size_t>(table)];
  return rounding;
}

at::Tensor PackedTables::packed_state(int64_t table) const {
  const TableSpec& spec = spec_.tables.at(static_cast<size_t>(table));
  const int64_t width = state_per_row(spec_.optimizer.kind, spec.dim);
  return state_.narrow(0, state_begin_[static_cast<size_t>(table)], spec.rows * width)
      .view({spec.rows, width});
}

std::vector<std::pair<std::string, at::Tensor>> PackedTables::state(int64_t table) const {
  return named_state(spec_.optimizer.kind, packed_state(table));
}

void PackedTables::set_lr(double lr) {
  OptimizerSpec changed = spec_.optimizer;
  changed.lr = lr;
  check_optimizer(changed);
  spec_.optimizer = changed;
}

}  // namespace dovetail::embedding
