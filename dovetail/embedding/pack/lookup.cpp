#include "dovetail/embedding/pack/lookup.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/embedding/pack/composed.h"
#include "dovetail/embedding/pack/lookup_cuda.h"
#include "dovetail/embedding/pack/occurrences.h"
#include "dovetail/embedding/pack/pool_simd.h"
#include "dovetail/embedding/pack/update_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

/// Output size above which y is written past the caches. A larger output would leave the caches
/// before it is read, and normal stores would read it first.
constexpr int64_t kStreamBytes = int64_t{8} << 20;
constexpr int64_t kVectorBytes = 64, kVector = kVectorBytes / static_cast<int64_t>(sizeof(float));
/// Samples of a feature in one piece of work.
constexpr int64_t kPoolSamples = 4096;

bool kernels_on(const PackedTables& tables) {
  return tables.spec().tables.empty() ||
         ops::use_kernel(ops::Kernel::kEmbedding, tables.packed_state(0));
}

PoolProblem pool_problem(const PackedTables& tables, const Jagged& batch, const at::Tensor& y) {
  PoolProblem problem{
      .dtype = tables.spec().row_dtype,
      .values = batch.values.const_data_ptr<int64_t>(),
      .offsets = batch.offsets.const_data_ptr<int64_t>(),
      .weights = ops::data_or_null(batch.weights),
      .samples = batch.samples,
      .y = y.mutable_data_ptr<float>(),
      .columns = tables.columns(),
      .stream = tables.columns() % kVector == 0 &&
                static_cast<int64_t>(y.nbytes()) > kStreamBytes &&
                reinterpret_cast<uintptr_t>(y.const_data_ptr()) % kVectorBytes == 0};
  for (const FeatureLayout& feature : tables.features()) {
    const TableSpec& table = tables.spec().tables[static_cast<size_t>(feature.table)];
    problem.features.push_back({.rows = tables.row_data(feature.table),
                                .row_bytes = row_bytes(tables.spec().row_dtype, table.dim),
                                .dim = table.dim,
                                .column = feature.column,
                                .mean = table.pooling == Pooling::kMean});
    problem.stream = problem.stream && table.dim % kVector == 0 && feature.column % kVector == 0;
  }
  return problem;
}

/// Number of rows in a lookup's output.
int64_t rows_out(const PackedTables& tables, const Jagged& batch) {
  if (!tables.unpooled()) return batch.samples;
  return batch.values.defined() ? batch.values.numel() : 0;
}

void check_output(const PackedTables& tables, const Jagged& batch, const at::Tensor& y,
                  const char* what) {
  const int64_t rows = rows_out(tables, batch);
  user_check(y.defined() && y.dim() == 2 && y.size(0) == rows && y.size(1) == tables.columns() &&
                 y.scalar_type() == at::kFloat && y.device() == tables.device(),
             "embedding: the {} of {} {} must be ({}, {}) Float on {}, but is {}", what, rows,
             tables.unpooled() ? "ids" : "pooled samples", rows, tables.columns(),
             tables.device().is_cpu() ? "the CPU" : tables.device().str(), ops::describe(y));
}

void check_gradient(const PackedTables& tables, const PooledGradient& part, Ids ids) {
  if (ids == Ids::kUnchecked) check_jagged(part.batch, tables.feature_rows(), tables.device());
  check_output(tables, part.batch, part.gradient, "gradient");
}

/// Copies the row of every id to the output. Each id is treated as a bag of its own, numbered over
/// all features.
void copy_rows(PoolProblem problem, const Jagged& batch) {
  std::vector<int64_t> one_each(static_cast<size_t>(batch.values.numel()) + 1);
  std::iota(one_each.begin(), one_each.end(), 0);
  const int64_t* features = problem.offsets;
  problem.offsets = one_each.data();
  problem.samples = 0;
  parallel_pieces(batch.values.numel(), kPoolSamples, [&](int64_t begin, int64_t end) {
    for (int64_t f = 0; f < batch.features; ++f) {
      const int64_t first = std::max(begin, features[f * batch.samples]),
                    last = std::min(end, features[(f + 1) * batch.samples]);
      if (first < last) pool_samples(problem, f, first, last);
    }
  });
}

/// One update of a pack. A table with few occurrences is one piece of work. It is listed, sorted
/// and updated while its keys are in the cache. A table with many occurrences is listed by ranges
/// of samples. Its keys are then distributed to ranges of rows, and each range of rows is a piece.
/// These tables run in waves of kWaveIds ids. Lists of all ids at once would need half as much
/// memory as their gradients at dimension 16.
class Update {
 public:
  Update(const PackedTables& tables, const std::vector<PooledGradient>& parts)
      : tables_(tables),
        scalars_(update_scalars(tables.spec().optimizer, tables.steps() + 1)),
        batches_(tables.spec().tables.size()) {
    std::vector<MicroBatch> all;
    all.reserve(parts.size());
    for (const PooledGradient& part : parts) all.push_back(batch_of(part));
    for (size_t t = 0; t < batches_.size(); ++t) {
      batches_[t] = all;
      const auto number = static_cast<int64_t>(t);
      TableColumns columns{.features = tables.features_of(number),
                           .columns = {},
                           .mean = tables.spec().tables[t].pooling == Pooling::kMean,
                           .unpooled = tables.unpooled()};
      for (const int64_t f : columns.features)
        columns.columns.push_back(tables.features()[static_cast<size_t>(f)].column);
      add_table(number, std::move(columns));
    }
  }

  /// Each row is the bag of a sample.
  Update(const PackedTables& tables, const std::vector<RowGradients>& parts)
      : tables_(tables),
        scalars_(update_scalars(tables.spec().optimizer, tables.steps() + 1)),
        batches_(tables.spec().tables.size()) {
    int64_t most = 0;
    for (const RowGradients& part : parts)
      for (const at::Tensor& rows : part.rows) most = std::max(most, rows.numel());
    one_each_ = at::arange(most + 1, at::kLong);
    for (size_t t = 0; t < batches_.size(); ++t) {
      for (const RowGradients& part : parts) batches_[t].push_back(batch_of(part, t));
      add_table(static_cast<int64_t>(t),
                {.features = {0}, .columns = {0}, .mean = false, .unpooled = true});
    }
  }

  void run() {
    for (size_t next = 0; next < large_.size() || !pieces_.empty();) {
      for (int64_t ids = 0;
           next < large_.size() && (ids == 0 || ids + large_[next].count <= kWaveIds); ++next) {
        add_distribution(large_[next]);
        ids += large_[next].count;
      }
      run_wave();
      pieces_.clear();
      listings_.clear();
      distributions_.clear();
    }
  }

 private:
  static constexpr int64_t kWholeTable = 1 << 15, kListed = 1 << 14, kWaveIds = 1 << 18,
                           kNoDistribution = -1;
  static constexpr int kRangeBits = 8;

  struct LargeTable {
    int64_t table, count;
  };
  struct Piece {
    int64_t table, distribution, begin, count, cost;
  };
  /// Keys of a table with many occurrences. A range of rows has the rows with equal `row >> shift`.
  struct Distribution {
    int64_t table;
    int shift;
    std::unique_ptr<uint64_t[]> listed, ranged;
    std::unique_ptr<Occurrence[]> occurrences;
  };
  /// Samples [begin, end) of a micro-batch. `first` is the table's number of their first
  /// occurrence.
  struct Listing {
    int64_t distribution;
    size_t batch;
    int64_t begin, end, first, count;
    std::array<int64_t, size_t{1} << kRangeBits>
        in_range;  // number of keys in each range, then their next place
  };

  void run_wave() {
    parallel_pieces(static_cast<int64_t>(listings_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) list(listings_[static_cast<size_t>(i)]);
    });
    for (Distribution& table : distributions_) place_ranges(table);
    parallel_pieces(static_cast<int64_t>(listings_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) distribute(listings_[static_cast<size_t>(i)]);
    });
    // Start the longest pieces first, so that no long piece starts when all other threads are done.
    std::stable_sort(pieces_.begin(), pieces_.end(),
                     [](const Piece& a, const Piece& b) { return a.cost > b.cost; });
    parallel_pieces(static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) work(pieces_[static_cast<size_t>(i)]);
    });
  }

  MicroBatch batch_of(const PooledGradient& part) {
    gradients_.push_back(part.gradient.stride(1) == 1 ? part.gradient : part.gradient.contiguous());
    return {.values = part.batch.values.const_data_ptr<int64_t>(),
            .offsets = part.batch.offsets.const_data_ptr<int64_t>(),
            .weights = ops::data_or_null(part.batch.weights),
            .samples = part.batch.samples,
            .gradient = gradients_.back().const_data_ptr<float>(),
            .gradient_stride = gradients_.back().stride(0)};
  }

  MicroBatch batch_of(const RowGradients& part, size_t table) {
    gradients_.push_back(part.gradient[table].contiguous());
    return {.values = part.rows[table].const_data_ptr<int64_t>(),
            .offsets = one_each_.const_data_ptr<int64_t>(),
            .weights = nullptr,
            .samples = part.rows[table].numel(),
            .gradient = gradients_.back().const_data_ptr<float>(),
            .gradient_stride = gradients_.back().stride(0)};
  }

  void add_table(int64_t t, TableColumns columns) {
    const TableSpec& spec = tables_.spec().tables[static_cast<size_t>(t)];
    columns_.push_back(std::move(columns));
    rows_.push_back(tables_.row_data(t));
    rounding_.push_back(tables_.rounding(t));
    state_.push_back(tables_.packed_state(t).mutable_data_ptr<float>());
    row_bits_.push_back(std::bit_width(static_cast<uint64_t>(spec.rows - 1)));
    int64_t count = 0;
    for (const MicroBatch& batch : batches_[static_cast<size_t>(t)])
      count += count_occurrences(columns_.back(), batch, batch.samples);
    user_check(count < int64_t{1} << 32,
               "embedding: table \"{}\" has {} ids in one update, but 2^32 - 1 are the most",
               spec.name, count);
    if (count > kWholeTable) {
      large_.push_back({t, count});
    } else if (count > 0) {
      pieces_.push_back({t, kNoDistribution, 0, count, count * spec.dim});
    }
  }

  void add_distribution(const LargeTable& large) {
    const auto [t, count] = large;
    const TableColumns& columns = columns_[static_cast<size_t>(t)];
    const auto index = static_cast<int64_t>(distributions_.size());
    const auto n = static_cast<size_t>(count);
    distributions_.push_back({.table = t,
                              .shift = std::max(0, row_bits_[static_cast<size_t>(t)] - kRangeBits),
                              .listed = std::make_unique_for_overwrite<uint64_t[]>(n),
                              .ranged = std::make_unique_for_overwrite<uint64_t[]>(n),
                              .occurrences = std::make_unique_for_overwrite<Occurrence[]>(n)});
    int64_t first = 0;
    const std::vector<MicroBatch>& batches = batches_[static_cast<size_t>(t)];
    for (size_t m = 0; m < batches.size(); ++m) {
      const MicroBatch& batch = batches[m];
      const int64_t ids = std::max<int64_t>(1, count_occurrences(columns, batch, batch.samples));
      const int64_t grain = std::max<int64_t>(1, batch.samples * kListed / ids);
      for (int64_t begin = 0; begin < batch.samples; begin += grain) {
        const int64_t end = std::min(begin + grain, batch.samples);
        const int64_t here =
            count_occurrences(columns, batch, end) - count_occurrences(columns, batch, begin);
        listings_.push_back({index, m, begin, end, first, here, {}});
        first += here;
      }
    }
  }

  void list(Listing& listing) const {
    const Distribution& to = distributions_[static_cast<size_t>(listing.distribution)];
    uint64_t* keys = to.listed.get() + listing.first;
    const auto t = static_cast<size_t>(to.table);
    list_occurrences(columns_[t], batches_[t][listing.batch], listing.begin, listing.end,
                     static_cast<uint64_t>(listing.first), keys,
                     to.occurrences.get() + listing.first);
    for (int64_t i = 0; i < listing.count; ++i) ++listing.in_range[row_of(keys[i]) >> to.shift];
  }

  /// Computes where each listing puts its keys: ranges in order, and within a range the listings in
  /// order.
  void place_ranges(const Distribution& table) {
    const int64_t index = &table - distributions_.data();
    const int64_t dim = tables_.spec().tables[static_cast<size_t>(table.table)].dim;
    int64_t place = 0;
    for (size_t range = 0; range < size_t{1} << kRangeBits; ++range) {
      const int64_t begin = place;
      for (Listing& listing : listings_) {
        if (listing.distribution == index) place += std::exchange(listing.in_range[range], place);
      }
      if (place > begin)
        pieces_.push_back({table.table, index, begin, place - begin, (place - begin) * dim});
    }
  }

  void distribute(Listing& listing) const {
    const Distribution& to = distributions_[static_cast<size_t>(listing.distribution)];
    for (int64_t i = listing.first; i < listing.first + listing.count; ++i)
      to.ranged[static_cast<size_t>(
          listing.in_range[row_of(to.listed[static_cast<size_t>(i)]) >> to.shift]++)] =
          to.listed[static_cast<size_t>(i)];
  }

  void work(const Piece& piece) const {
    if (piece.distribution == kNoDistribution) return work_on_table(piece);
    const Distribution& from = distributions_[static_cast<size_t>(piece.distribution)];
    sort_and_update(piece, from.ranged.get() + piece.begin, from.listed.get() + piece.begin,
                    from.shift, from.occurrences.get());
  }

  void work_on_table(const Piece& piece) const {
    thread_local std::vector<uint64_t> keys(2 * kWholeTable);
    thread_local std::vector<Occurrence> occurrences(kWholeTable);
    const TableColumns& columns = columns_[static_cast<size_t>(piece.table)];
    uint64_t first = 0;
    for (const MicroBatch& batch : batches_[static_cast<size_t>(piece.table)]) {
      list_occurrences(columns, batch, 0, batch.samples, first, keys.data() + first,
                       occurrences.data() + first);
      first += static_cast<uint64_t>(count_occurrences(columns, batch, batch.samples));
    }
    sort_and_update(piece, keys.data(), keys.data() + kWholeTable,
                    row_bits_[static_cast<size_t>(piece.table)], occurrences.data());
  }

  void sort_and_update(const Piece& piece, uint64_t* keys, uint64_t* scratch, int bits,
                       const Occurrence* occurrences) const {
    const auto t = static_cast<size_t>(piece.table);
    update_rows(
        {.keys = sort_keys(keys, scratch, piece.count, bits),
         .count = piece.count,
         .occurrences = occurrences,
         .dim = tables_.spec().tables[t].dim,
         .dtype = tables_.spec().row_dtype,
         .rows = rows_[t],
         .row_bytes = row_bytes(tables_.spec().row_dtype, tables_.spec().tables[t].dim),
         .rounding = rounding_[t],
         .state = state_[t],
         .state_width = state_per_row(tables_.spec().optimizer.kind, tables_.spec().tables[t].dim)},
        scalars_);
  }

  const PackedTables& tables_;
  const UpdateScalars scalars_;
  std::vector<at::Tensor> gradients_;
  at::Tensor one_each_;                           // offsets of bags with one id each
  std::vector<std::vector<MicroBatch>> batches_;  // this and all below: one for each table
  std::vector<TableColumns> columns_;
  std::vector<char*> rows_;
  std::vector<RowRounding> rounding_;
  std::vector<float*> state_;
  std::vector<int> row_bits_;
  std::vector<LargeTable> large_;
  std::vector<Distribution> distributions_;  // this and all below: of the current wave
  std::vector<Listing> listings_;
  std::vector<Piece> pieces_;
};

}  // namespace

at::Tensor pool(const PackedTables& tables, const Jagged& batch) {
  const int64_t rows = rows_out(tables, batch);
  at::Tensor y = allocate(rows * tables.columns(), tables.device()).view({rows, tables.columns()});
  pool_into(tables, batch, y);
  return y;
}

void pool_into(const PackedTables& tables, const Jagged& batch, const at::Tensor& y, Ids ids) {
  const bool on_gpu = !tables.device().is_cpu();
  if (on_gpu) {
    check_shapes(batch, tables.feature_rows(), tables.device());
  } else if (ids == Ids::kUnchecked) {
    check_jagged(batch, tables.feature_rows());
  }
  check_output(tables, batch, y, "output");
  DOVETAIL_CHECK(y.is_contiguous(), "pooled rows are not contiguous");
  const TraceSpan span("dovetail::embedding_pool");
  if (on_gpu) {
    std::optional<ContentsCheck> check;
    if (ids == Ids::kUnchecked) check.emplace(batch, tables.feature_rows());
    pool_on_gpu(tables, batch, y);
    if (check) check->wait();
    return;
  }
  if (!kernels_on(tables)) return composed::pool(tables, batch, y);
  const PoolProblem problem = pool_problem(tables, batch, y);
  if (tables.unpooled()) return copy_rows(problem, batch);
  // Loop over features first, then samples. The TLB covers the pages of one table and the output,
  // but not of all tables.
  const int64_t pieces_of_feature = (batch.samples + kPoolSamples - 1) / kPoolSamples;
  parallel_pieces(batch.features * pieces_of_feature, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t first = i % pieces_of_feature * kPoolSamples;
      pool_samples(problem, i / pieces_of_feature, first,
                   std::min(first + kPoolSamples, batch.samples));
    }
  });
}

void update(PackedTables& tables, const std::vector<PooledGradient>& micro_batches, Ids ids) {
  for (const PooledGradient& part : micro_batches) check_gradient(tables, part, ids);
  const TraceSpan span("dovetail::embedding_update");
  if (!tables.device().is_cpu()) {
    update_on_gpu(tables, micro_batches, cuda_kernels());
  } else if (kernels_on(tables)) {
    Update(tables, micro_batches).run();
  } else {
    composed::update(tables, micro_batches);
  }
  tables.set_steps(tables.steps() + 1);
}

at::Tensor gather_rows(const PackedTables& tables, int64_t table, const at::Tensor& rows) {
  if (!tables.device().is_cpu()) return tables.stored(table).index_select(0, rows).to(at::kFloat);
  if (!kernels_on(tables)) return tables.weight(table).index_select(0, rows);
  const TraceSpan span("dovetail::embedding_rows");
  const int64_t count = rows.numel(), dim = tables.spec().tables[static_cast<size_t>(table)].dim;
  at::Tensor y = allocate(count * dim).view({count, dim});
  const at::Tensor one_each = at::arange(count + 1, at::kLong);
  const PoolProblem problem{.dtype = tables.spec().row_dtype,
                            .features = {{.rows = tables.row_data(table),
                                          .row_bytes = row_bytes(tables.spec().row_dtype, dim),
                                          .dim = dim,
                                          .column = 0,
                                          .mean = false}},
                            .values = rows.const_data_ptr<int64_t>(),
                            .offsets = one_each.const_data_ptr<int64_t>(),
                            .weights = nullptr,
                            .samples = count,
                            .y = y.mutable_data_ptr<float>(),
                            .columns = dim,
                            .stream = false};
  parallel_pieces(count, kPoolSamples,
                  [&](int64_t begin, int64_t end) { pool_samples(problem, 0, begin, end); });
  return y;
}

void update_single_rows(PackedTables& tables, const std::vector<RowGradients>& parts) {
  const TraceSpan span("dovetail::embedding_update");
  if (!tables.device().is_cpu()) {
    update_single_rows_on_gpu(tables, parts, cuda_kernels());
  } else if (kernels_on(tables)) {
    Update(tables, parts).run();
  } else {
    composed::update_single_rows(tables, parts);
  }
  tables.set_steps(tables.steps() + 1);
}

}  // namespace dovetail::embedding
