#include "dovetail/embedding/tiers/tiered.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "dovetail/base/error.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

/// Rows that one step examines for choices of TierPolicy::kHot: of all tables, and at least of one.
/// Half a million rows take about a millisecond.
constexpr int64_t kSweptRows = int64_t{1} << 19, kLeastSwept = int64_t{1} << 14;

int64_t step_rows_of(const TableSpec& table, const TierOptions& options) {
  return table.step_rows > 0 ? table.step_rows : options.step_rows;
}

RowCacheOptions cache_options(const PackSpec& spec, const TableSpec& table,
                              const TierOptions& options, int64_t fast_rows) {
  const bool whole = fast_rows >= table.rows;
  const bool sets = options.policy != TierPolicy::kHot && !whole;
  return {.policy = options.policy,
          .rows = table.rows,
          .fast_rows = whole  ? table.rows
                       : sets ? fast_rows / RowCache::kWays * RowCache::kWays
                              : fast_rows,
          .staging_rows = whole ? 0 : std::min(step_rows_of(table, options), table.rows),
          .warmup_steps = options.warmup_steps,
          .refresh_steps = options.refresh_steps,
          .sweep_rows = std::max(kLeastSwept, kSweptRows / std::ssize(spec.tables)),
          .releases = table.hashed};
}

/// Returns the number of a table's slots in memory.
int64_t slots_of(const TableSpec& table, const RowCacheOptions& cache) {
  return cache.fast_rows + cache.staging_rows + (table.hashed ? 1 : 0);
}

/// Returns true if slots need numbers by which their rows are rounded. In other tables in RAM, the
/// map of the cache has them.
bool needs_rounding_rows(const PackSpec& spec, bool apart) {
  return spec.row_dtype != RowDtype::kFloat32 &&
         (apart || std::ranges::any_of(spec.tables, &TableSpec::hashed));
}

int64_t bytes_of(const PackSpec& spec, const TableSpec& table, const TierOptions& options,
                 bool apart, int64_t fast_rows) {
  const RowCacheOptions cache = cache_options(spec, table, options, fast_rows);
  const int64_t state_bytes =
      state_per_row(spec.optimizer.kind, table.dim) * static_cast<int64_t>(sizeof(float));
  const int64_t rounding_bytes = needs_rounding_rows(spec, apart) ? SlotMover::kRoundingBytes : 0;
  const int64_t slot_bytes = row_bytes(spec.row_dtype, table.dim) + state_bytes + rounding_bytes;
  return (apart ? 0 : RowCache::bytes_for(cache) + SlowRows::bytes_for(table.rows)) +
         slots_of(table, cache) * slot_bytes;
}

int64_t bytes_of(const PackSpec& spec, const TierOptions& options, bool apart, int64_t fast_rows) {
  int64_t bytes = 0;
  for (const TableSpec& table : spec.tables)
    bytes += bytes_of(spec, table, options, apart, fast_rows);
  return bytes;
}

/// Returns the maximum number of fast rows for each table that fits into the memory.
int64_t choose_fast_rows(const PackSpec& spec, const TierOptions& options, bool apart) {
  user_check(options.step_rows >= 1,
             "embedding: step_rows of the tiers is {}, but must be 1 or more", options.step_rows);
  user_check(options.warmup_steps >= 1 && options.refresh_steps >= 0,
             "embedding: warmup_steps of the tiers is {} and refresh_steps {}, but they must be 1 "
             "or more and 0 or more",
             options.warmup_steps, options.refresh_steps);
  int64_t low = RowCache::kWays, high = low;
  for (const TableSpec& table : spec.tables) {
    user_check(table.rows <= int64_t{1} << 31,
               "embedding: table \"{}\" has {} rows, but 2^31 are the most", table.name,
               table.rows);
    high = std::max(high, table.rows);
  }
  memory_left(options.memory_bytes, TieredTables::least_memory(spec, options, apart));
  while (low < high) {
    const int64_t middle = low + (high - low + 1) / 2;
    if (bytes_of(spec, options, apart, middle) <= options.memory_bytes) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

PackSpec fast_spec(PackSpec spec, const TierOptions& options, int64_t fast_rows) {
  for (TableSpec& table : spec.tables) {
    const RowCacheOptions cache = cache_options(spec, table, options, fast_rows);
    table.rows = slots_of(table, cache);
  }
  return spec;
}

}  // namespace

int64_t memory_left(int64_t memory_bytes, std::vector<TableMemory> least) {
  constexpr size_t kNamed = 5;
  const auto bytes_of = [](const TableMemory& table) { return table.keys + table.rows; };
  int64_t needed = 0;
  for (const TableMemory& table : least) needed += bytes_of(table);
  if (needed <= memory_bytes) return memory_bytes - needed;
  std::ranges::sort(least, std::ranges::greater(), bytes_of);
  std::vector<std::string> parts;
  for (size_t i = 0; i < std::min(kNamed, least.size()); ++i)
    parts.push_back(least[i].keys > 0
                        ? fmt::format("table \"{}\" {} for its ids and {} for rows", least[i].table,
                                      least[i].keys, least[i].rows)
                        : fmt::format("table \"{}\" {} for rows", least[i].table, least[i].rows));
  if (least.size() > kNamed) parts.push_back(fmt::format("{} others", least.size() - kNamed));
  const bool keys = std::ranges::any_of(least, [](const auto& table) { return table.keys > 0; });
  throw UserError(fmt::format("embedding: memory_bytes is {}, but at least {} are needed: {}",
                              memory_bytes, needed, fmt::join(parts, ", ")),
                  keys ? "raise memory_bytes, or lower step_rows, or the maximum number of rows or "
                         "candidates"
                       : "raise memory_bytes, or lower step_rows");
}

std::vector<TableMemory> TieredTables::least_memory(const PackSpec& spec,
                                                    const TierOptions& options, bool apart) {
  std::vector<TableMemory> least;
  for (const TableSpec& table : spec.tables)
    least.push_back(
        {.table = table.name, .rows = bytes_of(spec, table, options, apart, RowCache::kWays)});
  return least;
}

TieredTables::TieredTables(const PackSpec& spec, const TierOptions& options, KeyOfRow key_of,
                           SlotMemory memory)
    : TieredTables(spec, options, std::move(key_of), memory,
                   choose_fast_rows(spec, options, memory.apart)) {}

TieredTables::TieredTables(const PackSpec& spec, const TierOptions& options, KeyOfRow key_of,
                           SlotMemory memory, int64_t fast_rows)
    : spec_(spec),
      options_(options),
      key_of_(std::move(key_of)),
      memory_bytes_(bytes_of(spec, options, memory.apart, fast_rows)),
      fast_(fast_spec(spec, options, fast_rows), PackedTables::Initial::kUnset, memory.device) {
  std::vector<int64_t> zero_slots;
  SlotMover::RoundingRow rounding;
  if (needs_rounding_rows(spec, memory.apart))
    rounding = [this](int64_t table, int64_t row) {
      return key_of_ ? rounding_row(key_of_(table, row)) : static_cast<uint32_t>(row);
    };
  for (size_t t = 0; t < spec.tables.size(); ++t) {
    const TableSpec& table = spec.tables[t];
    DOVETAIL_CHECK(table.hashed == static_cast<bool>(key_of_), "table {}", table.name);
    const auto number = static_cast<int64_t>(t);
    const int64_t state_width = state_per_row(spec.optimizer.kind, table.dim);
    std::function<uint64_t(int64_t)> key_of_row;
    if (table.hashed)
      key_of_row = [key_of = key_of_, number](int64_t row) { return key_of(number, row); };
    tables_.push_back(std::make_unique<Table>(cache_options(spec, table, options, fast_rows),
                                              SlowRows::Options{.table = table.name,
                                                                .rows = table.rows,
                                                                .dim = table.dim,
                                                                .state_width = state_width,
                                                                .dtype = spec.row_dtype,
                                                                .folder = options.folder,
                                                                .key_of = key_of_row},
                                              initial_rows(spec.seed, table)));
    Table& own = *tables_.back();
    own.row_bytes = row_bytes(spec.row_dtype, table.dim);
    own.state_width = state_width;
    if (table.hashed) zero_slots.push_back(slots_of(table, own.cache_options) - 1);
    if (!table.hashed && !memory.apart) fast_.set_rows_held(number, own.cache.rows_in());
  }
  mover_ = std::make_unique<SlotMover>(fast_, memory.apart, zero_slots, rounding);
  for (const int64_t t : spec.feature_table) {
    const TableSpec& table = spec.tables[static_cast<size_t>(t)];
    feature_rows_.push_back(table.hashed ? kAnyKey : table.rows);
  }
}

SlotMover::Moves TieredTables::moves() const {
  SlotMover::Moves of_tables;
  for (const auto& table : tables_) of_tables.emplace_back(table->moves);
  return of_tables;
}

void TieredTables::advise_moves() const {
  if (options_.folder.empty()) return;
  SlotMover::each(moves(), [&](int64_t t, int64_t i) {
    const Table& table = *tables_[static_cast<size_t>(t)];
    const RowMove& move = table.moves[static_cast<size_t>(i)];
    table.slow.advise(move.row);
    if (move.evicted >= 0) table.slow.advise(move.evicted);
  });
}

void TieredTables::move_rows() const {
  mover_->move(
      moves(),
      [this](int64_t t, int64_t i, char* stored, float* state) {
        Table& table = *tables_[static_cast<size_t>(t)];
        table.slow.read(table.moves[static_cast<size_t>(i)].row, stored, state);
      },
      [this](int64_t t, int64_t row, const char* stored, const float* state) {
        tables_[static_cast<size_t>(t)]->slow.write(row, stored, state);
      });
}

template <class Body>
void TieredTables::each_table(const Jagged& ids, const at::Tensor& slots, const Body& body) const {
  const int64_t *from = ids.values.const_data_ptr<int64_t>(),
                *offsets = ids.offsets.const_data_ptr<int64_t>();
  int64_t* to = slots.mutable_data_ptr<int64_t>();
  parallel_pieces(static_cast<int64_t>(tables_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::vector<RowCache::Ids> parts;
      for (const int64_t f : fast_.features_of(t)) {
        const int64_t first = offsets[f * ids.samples];
        parts.push_back({from + first, to + first, offsets[(f + 1) * ids.samples] - first});
      }
      tables_[static_cast<size_t>(t)]->moves.clear();
      body(t, parts);
    }
  });
}

Jagged TieredTables::begin(const Jagged& ids) {
  check_jagged(ids, feature_rows_);
  user_check(!in_step_,
             "embedding: a step of the tiers begins before the last has ended; call end first");
  const TraceSpan span("dovetail::embedding_tiers_begin");
  in_step_ = true;
  steps_at_begin_ = fast_.steps();
  Jagged slots = ids;
  slots.values = at::empty_like(ids.values);
  each_table(ids, slots.values, [&](int64_t t, const std::vector<RowCache::Ids>& parts) {
    Table& table = *tables_[static_cast<size_t>(t)];
    table.cache.begin(parts, spec_.tables[static_cast<size_t>(t)].name, table.moves);
  });
  advise_moves();
  move_rows();
  return slots;
}

void TieredTables::pool_into(const Jagged& ids, const at::Tensor& y) const {
  check_jagged(ids, feature_rows_);
  user_check(!in_step_, "embedding: the tiers are looked up within a step; call end first");
  DOVETAIL_CHECK(!fast_.unpooled(),
                 "rows of a batch without pooling are not in the order of its samples");
  Jagged slots = ids;
  slots.values = at::empty_like(ids.values);
  std::atomic<int64_t> too_many = -1;
  each_table(ids, slots.values, [&](int64_t t, const std::vector<RowCache::Ids>& parts) {
    Table& table = *tables_[static_cast<size_t>(t)];
    if (!table.cache.look_up(parts, table.moves)) too_many = t;
  });
  if (too_many >= 0) {
    user_check(ids.samples > 1,
               "embedding: one sample reads more than {} rows of table \"{}\" that are not in the "
               "fast tier; raise step_rows",
               options_.step_rows, spec_.tables[static_cast<size_t>(too_many)].name);
    const int64_t half = ids.samples / 2;
    pool_into(samples_of(ids, 0, half), y.narrow(0, 0, half));
    return pool_into(samples_of(ids, half, ids.samples - half),
                     y.narrow(0, half, ids.samples - half));
  }
  advise_moves();
  move_rows();
  embedding::pool_into(fast_, on(slots, fast_.device()), y, Ids::kChecked);
}

void TieredTables::prefetch(const Jagged& ids) const {
  check_jagged(ids, feature_rows_);
  if (options_.folder.empty()) return;
  const TraceSpan span("dovetail::embedding_tiers_prefetch");
  const int64_t *values = ids.values.const_data_ptr<int64_t>(),
                *offsets = ids.offsets.const_data_ptr<int64_t>();
  parallel_pieces(ids.features, 1, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      const Table& table =
          *tables_[static_cast<size_t>(spec_.feature_table[static_cast<size_t>(f)])];
      for (int64_t i = offsets[f * ids.samples]; i < offsets[(f + 1) * ids.samples]; ++i)
        if (values[i] != RowCache::kNoId && table.cache.find(values[i]) < 0)
          table.slow.advise(values[i]);
    }
  });
}

void TieredTables::end() {
  user_check(in_step_, "embedding: a step of the tiers ends that has not begun; call begin first");
  const TraceSpan span("dovetail::embedding_tiers_end");
  const auto changed =
      fast_.steps() == steps_at_begin_ ? RowCache::Rows::kSame : RowCache::Rows::kChanged;
  parallel_pieces(static_cast<int64_t>(tables_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      Table& table = *tables_[static_cast<size_t>(t)];
      table.moves.clear();
      table.cache.end(changed, table.moves);
    }
  });
  move_rows();
  mover_->clear_zero_slots();
  in_step_ = false;
}

TieredTables::Table& TieredTables::checked(int64_t table, int64_t begin, int64_t count) const {
  user_check(!in_step_,
             "embedding: rows of the tiers are read or written within a step; call end first");
  user_check(table >= 0 && table < static_cast<int64_t>(tables_.size()),
             "embedding: there is no table {} of {}", table, tables_.size());
  const int64_t rows = spec_.tables[static_cast<size_t>(table)].rows;
  user_check(begin >= 0 && count >= 0 && begin + count <= rows,
             "embedding: there are no rows {} to {} of {}", begin, begin + count, rows);
  return *tables_[static_cast<size_t>(table)];
}

std::pair<at::Tensor, at::Tensor> TieredTables::rows(int64_t table, int64_t begin,
                                                     int64_t count) const {
  const Table& from = checked(table, begin, count);
  const int64_t width = stored_width(spec_.row_dtype, spec_.tables[static_cast<size_t>(table)].dim);
  const at::Tensor stored = at::empty({count, width}, stored_type(spec_.row_dtype)),
                   state = at::empty({count, from.state_width});
  auto* rows = static_cast<char*>(stored.mutable_data_ptr());
  auto* s = state.mutable_data_ptr<float>();
  settle();
  from.slow.read_range(begin, count, rows, s);
  std::vector<RowMove> in_slots;
  for (int64_t i = 0; i < count; ++i)
    if (const int64_t slot = from.cache.find(begin + i); slot >= 0)
      in_slots.push_back({.slot = slot, .row = -1, .evicted = i});
  read_slots(table, in_slots, rows, s);
  return {stored, state};
}

std::pair<at::Tensor, at::Tensor> TieredTables::rows(int64_t table, const at::Tensor& rows) const {
  const int64_t count = rows.numel();
  const auto* row = rows.const_data_ptr<int64_t>();
  const Table& from =
      count == 0 ? checked(table, 0, 0) : checked(table, row[0], row[count - 1] - row[0] + 1);
  if (count > 0 && row[count - 1] - row[0] + 1 == count) return this->rows(table, row[0], count);
  const int64_t width = stored_width(spec_.row_dtype, spec_.tables[static_cast<size_t>(table)].dim);
  const at::Tensor stored = at::empty({count, width}, stored_type(spec_.row_dtype)),
                   state = at::empty({count, from.state_width});
  auto* to = static_cast<char*>(stored.mutable_data_ptr());
  auto* s = state.mutable_data_ptr<float>();
  const auto in_slow_tier = [&](int64_t i) { return from.cache.find(row[i]) < 0; };
  settle();
  std::vector<RowMove> in_slots;
  for (int64_t i = 0, end = 0; i < count; i = end) {
    end = i + 1;
    if (const int64_t slot = from.cache.find(row[i]); slot >= 0) {
      in_slots.push_back({.slot = slot, .row = -1, .evicted = i});
      continue;
    }
    while (end < count && row[end] == row[end - 1] + 1 && in_slow_tier(end)) ++end;
    from.slow.read_range(row[i], end - i, to + i * from.row_bytes, s + i * from.state_width);
  }
  read_slots(table, in_slots, to, s);
  return {stored, state};
}

void TieredTables::read_slots(int64_t table, const std::vector<RowMove>& leaving, char* stored,
                              float* state) const {
  const Table& from = *tables_[static_cast<size_t>(table)];
  SlotMover::Moves moves(tables_.size());
  moves[static_cast<size_t>(table)] = leaving;
  mover_->move(moves, {}, [&](int64_t, int64_t i, const char* row, const float* of_row) {
    std::copy_n(row, from.row_bytes, stored + i * from.row_bytes);
    std::copy_n(of_row, from.state_width, state + i * from.state_width);
  });
  settle();
}

at::Tensor TieredTables::look_up(int64_t table, const at::Tensor& rows) const {
  const int64_t count = rows.numel();
  const TableSpec& spec = spec_.tables[static_cast<size_t>(table)];
  at::Tensor found = at::empty({count, spec.dim}, at::kFloat);
  if (count == 0) return found;
  const auto [ascending, order] = at::sort(rows);
  const PackedTables stored({.tables = {{.name = spec.name, .rows = count, .dim = spec.dim}},
                             .feature_table = {},
                             .optimizer = {},
                             .row_dtype = spec_.row_dtype},
                            {this->rows(table, ascending).first});
  return found.index_copy_(0, order, stored.weight(0));
}

void TieredTables::set_rows(int64_t table, int64_t begin, const at::Tensor& stored,
                            const at::Tensor& state) {
  Table& to = checked(table, begin, stored.dim() == 2 ? stored.size(0) : 0);
  const auto check = [&](const char* name, const at::Tensor& x, int64_t columns,
                         at::ScalarType type) {
    user_check(x.dim() == 2 && x.size(0) == stored.size(0) && x.size(1) == columns &&
                   x.scalar_type() == type && x.is_cpu(),
               "embedding: {} must be (rows, {}) {} on the CPU, but is {}", name, columns,
               c10::toString(type), ops::describe(x));
  };
  check("rows", stored, stored_width(spec_.row_dtype, spec_.tables[static_cast<size_t>(table)].dim),
        stored_type(spec_.row_dtype));
  check("state", state, to.state_width, at::kFloat);
  const at::Tensor all_rows = stored.contiguous(), states = state.contiguous();
  const auto* rows = static_cast<const char*>(all_rows.const_data_ptr());
  const auto* s = states.const_data_ptr<float>();
  settle();
  to.slow.write_range(begin, stored.size(0), rows, s);
  std::vector<RowMove> coming;
  for (int64_t row = begin; row < begin + stored.size(0); ++row) {
    const int64_t slot = to.cache.find(row);
    if (slot < 0) continue;
    coming.push_back({.slot = slot, .row = row, .evicted = -1});
    to.cache.set_unchanged(slot);
  }
  SlotMover::Moves moves(tables_.size());
  moves[static_cast<size_t>(table)] = coming;
  mover_->move(moves,
               [&](int64_t, int64_t i, char* row, float* of_row) {
                 const int64_t number = coming[static_cast<size_t>(i)].row - begin;
                 std::copy_n(rows + number * to.row_bytes, to.row_bytes, row);
                 std::copy_n(s + number * to.state_width, to.state_width, of_row);
               },
               {});
}

void TieredTables::release(int64_t table, int64_t row) {
  DOVETAIL_CHECK(!mover_->pending(), "row {} is released before the rows on their way came", row);
  Table& from = checked(table, row, 1);
  from.cache.release(row);
  from.slow.forget(row);
}

TierCounters& TierCounters::operator+=(const TierCounters& other) {
  hits += other.hits;
  misses += other.misses;
  rows_read += other.rows_read;
  rows_written += other.rows_written;
  bytes_read += other.bytes_read;
  bytes_written += other.bytes_written;
  rows_initialized += other.rows_initialized;
  counted += other.counted;
  counted_hot += other.counted_hot;
  return *this;
}

TierCounters TieredTables::counters() const {
  TierCounters sum;
  for (const auto& table : tables_)
    sum += {.hits = table->cache.hits(),
            .misses = table->cache.misses(),
            .rows_read = table->slow.rows_read(),
            .rows_written = table->slow.rows_written(),
            .bytes_read = table->slow.rows_read() * table->slow.record_bytes(),
            .bytes_written = table->slow.rows_written() * table->slow.record_bytes(),
            .rows_initialized = table->slow.rows_initialized(),
            .counted = table->cache.counted(),
            .counted_hot = table->cache.counted_hot()};
  return sum;
}

}  // namespace dovetail::embedding
