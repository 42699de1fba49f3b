#include "dovetail/embedding/hashed/hashed.h"

#include <ATen/ATen.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <tuple>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/schema/enum_names.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::embedding {

namespace {

/// Number of keys whose places in the map are prefetched ahead of the lookup.
constexpr int64_t kAhead = 12;

constexpr std::array<std::string_view, 3> kAdmissions = {"always", "count", "probability"},
                                          kEvictions = {"none", "age", "frequency"};

void check_options(const HashedOptions& options) {
  const auto check = [](const char* name, int64_t value, int64_t least) {
    user_check(value >= least, "embedding: {} is {}, but must be {} or more", name, value, least);
  };
  check("evict_steps", options.evict_steps, 1);
  if (options.admission == Admission::kCount) {
    check("min_count", options.min_count, 1);
    check("max_candidates", options.max_candidates, 1);
  }
  if (options.admission == Admission::kProbability)
    user_check(options.probability > 0 && options.probability <= 1,
               "embedding: probability is {}, but must be above 0 and at most 1",
               options.probability);
  if (options.eviction == Eviction::kAge || options.admission == Admission::kCount)
    check("max_age", options.max_age, 1);
  if (options.eviction == Eviction::kFrequency) check("keep_rows", options.keep_rows, 1);
}

}  // namespace

Admission parse_admission(std::string_view name) {
  return parse_enum<Admission>("embedding", "admission", name, kAdmissions);
}

Eviction parse_eviction(std::string_view name) {
  return parse_enum<Eviction>("embedding", "eviction", name, kEvictions);
}

PackSpec HashedTables::limited(PackSpec spec, const HashedOptions& options, Changes changes,
                               int64_t more_rows) {
  check_options(options);
  for (TableSpec& table : spec.tables) {
    user_check(table.rows < int64_t{1} << 31,
               "embedding: table \"{}\" may have {} rows, but must be below 2^31", table.name,
               table.rows);
    user_check(table.rows >= 1,
               "embedding: table \"{}\" may have {} rows, but must have room for one", table.name,
               table.rows);
    table.initial_range = initial_bound(table);
    table.rows = rows_within(spec, table, options, changes) + more_rows;
    table.hashed = true;
  }
  return spec;
}

HashedTables::HashedTables(const PackSpec& spec, const HashedOptions& options, Changes changes,
                           const std::optional<TierOptions>& tiers, SlotMemory memory)
    : spec_(spec), options_(options), changes_(changes) {
  feature_rows_.assign(spec.feature_table.size(), kAnyKey);
  const PackSpec all = limited(spec, options, changes, 0);
  std::optional<TierOptions> of_rows = tiers;
  if (tiers) {
    const std::vector<TableMemory> least =
        least_memory(spec, options, changes, *tiers, memory.apart);
    memory_left(tiers->memory_bytes, least);
    for (const TableMemory& table : least) of_rows->memory_bytes -= table.keys;
  }
  for (const TableSpec& table : all.tables) {
    tables_.push_back(std::make_unique<Table>(initial_rows(spec.seed, table),
                                              mix_seed(spec.seed, name_key(table.name))));
    Table& own = *tables_.back();
    own.rows = table.rows;
    own.capped = own.rows < spec.tables[tables_.size() - 1].rows;
    own.row_bytes = row_bytes(spec.row_dtype, table.dim);
    own.state_width = state_per_row(spec.optimizer.kind, table.dim);
    const bool limited_by_tiers = tiers && !memory.apart;
    if (table.max_bytes == 0 && !limited_by_tiers) continue;
    own.keys = Keys(own.rows, changes);
    if (options.admission == Admission::kCount)
      own.candidates = Keys(options.max_candidates, changes);
  }
  if (tiers) {
    make_tiers(all, *of_rows, memory);
  } else {
    make_packed(limited(spec, options, changes, 1), memory);
  }
}

void HashedTables::make_packed(const PackSpec& spec, SlotMemory memory) {
  packed_.emplace(spec, PackedTables::Initial::kUnset, memory.device);
  SlotMover::RoundingRow rounding;
  if (spec.row_dtype != RowDtype::kFloat32)
    rounding = [this](int64_t t, int64_t number) { return rounding_row(key_of(t, number)); };
  mover_.emplace(*packed_, memory.apart, std::vector<int64_t>(tables_.size(), 0), rounding);
}

void HashedTables::make_tiers(const PackSpec& spec, const TierOptions& tiers, SlotMemory memory) {
  tiers_.emplace(spec, tiers, [this](int64_t t, int64_t row) { return key_of(t, row); }, memory);
}

Jagged HashedTables::begin(const Jagged& keys) {
  check_jagged(keys, feature_rows_);
  user_check(!in_step_,
             "embedding: a step of hashed tables begins before the last has ended; call end first");
  const TraceSpan span("dovetail::embedding_hashed_begin");
  in_step_ = true;
  Jagged slots = keys;
  slots.values = at::empty_like(keys.values);
  int64_t* to = slots.values.mutable_data_ptr<int64_t>();
  parallel_pieces(static_cast<int64_t>(tables_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) begin_table(t, keys, to);
  });
  if (!tiers_) {
    initialize_rows();
    return slots;
  }
  slots.values.sub_(1);
  return tiers_->begin(slots);
}

void HashedTables::initialize_rows() {
  SlotMover::Moves moves;
  for (const auto& table : tables_) moves.emplace_back(table->moves);
  mover_->move(moves,
               [this](int64_t t, int64_t i, char* stored, float* state) {
                 const Table& table = *tables_[static_cast<size_t>(t)];
                 table.initial.store(spec_.row_dtype,
                                     key_of(t, table.moves[static_cast<size_t>(i)].row), stored);
                 std::fill_n(state, table.state_width, 0.0f);
               },
               {});
}

void HashedTables::begin_table(int64_t t, const Jagged& keys, int64_t* slots) {
  Table& table = *tables_[static_cast<size_t>(t)];
  table.moves.clear();
  const int64_t *values = keys.values.const_data_ptr<int64_t>(),
                *offsets = keys.offsets.const_data_ptr<int64_t>();
  SlotMap<uint64_t> numbers(16);
  std::vector<NewKey> fresh;
  const auto each_key = [&](const auto& body) {
    for (const int64_t f : packed().features_of(t))
      for (int64_t i = offsets[f * keys.samples]; i < offsets[(f + 1) * keys.samples]; ++i)
        body(i, static_cast<uint64_t>(values[i]));
  };
  const auto occurred = [&](uint32_t number, int64_t count) {
    Keys::Entry& entry = table.keys.entries()[number];
    entry.occurrences = occurrences_after(entry, step_) + count;
    entry.last_step = step_ + 1;
    entry.changed = true;
  };
  each_key([&](int64_t i, uint64_t key) {
    if (i + kAhead < keys.values.size(0))
      table.keys.prefetch(static_cast<uint64_t>(values[i + kAhead]));
    const uint32_t number = table.keys.find(key);
    slots[i] = number == kNone ? 0 : static_cast<int64_t>(number) + 1;
    if (number != kNone) {
      ++table.counters.found;
      return occurred(number, 1);
    }
    if (numbers.size() == numbers.room()) numbers.resize(2 * numbers.room());
    if (numbers.find(key) == kNone) {
      numbers.insert(key, static_cast<uint32_t>(fresh.size()));
      fresh.push_back({key, 0});
    }
    ++fresh[numbers.find(key)].count;
  });
  if (fresh.empty()) return;
  std::vector<int64_t> slot_of(fresh.size());
  for (size_t i = 0; i < fresh.size(); ++i) {
    const uint32_t number = admit(table, fresh[i]);
    if (number == kNone) continue;
    slot_of[i] = static_cast<int64_t>(number) + 1;
    occurred(number, fresh[i].count);
  }
  each_key([&](int64_t i, uint64_t key) {
    if (slots[i] == 0) slots[i] = slot_of[numbers.find(key)];
  });
}

/// Admits a key and returns its number. Returns kNone if it gets no row.
uint32_t HashedTables::admit(Table& table, const NewKey& key) {
  if (!is_admitted(table, key)) return kNone;
  if (table.keys.size() == table.rows) {
    (table.capped ? table.counters.refused_memory : table.counters.refused_full) += key.count;
    return kNone;
  }
  int64_t before = 0;
  if (const uint32_t candidate = table.candidates.find(key.key); candidate != kNone) {
    before = table.candidates.entries()[candidate].occurrences - key.count;
    table.candidates.erase(candidate);
  }
  const uint32_t number = table.keys.insert(key.key);
  table.keys.entries()[number].occurrences = before;
  table.keys.entries()[number].last_step = step_ + 1;
  if (!tiers_) table.moves.push_back({.slot = int64_t{number} + 1, .row = number, .evicted = -1});
  ++table.counters.admitted;
  return number;
}

/// Decides on admission. With kCount, a key that is not admitted is counted as a candidate.
bool HashedTables::is_admitted(Table& table, const NewKey& key) const {
  if (options_.admission == Admission::kAlways) return true;
  if (options_.admission == Admission::kProbability) {
    const double chance = 1 - std::pow(1 - options_.probability, static_cast<double>(key.count));
    const uint64_t seed = mix_seed(table.admission_seed, static_cast<uint64_t>(step_ + 1));
    const bool admitted = random_uniform(seed, RandomStream::kAdmission, key.key) < chance;
    if (!admitted) table.counters.not_admitted += key.count;
    return admitted;
  }
  uint32_t number = table.candidates.find(key.key);
  if (number == kNone) {
    if (key.count >= options_.min_count) return true;
    if (table.candidates.size() == options_.max_candidates) {
      table.counters.refused_candidates += key.count;
      return false;
    }
    number = table.candidates.insert(key.key);
  }
  Keys::Entry& candidate = table.candidates.entries()[number];
  candidate.occurrences += key.count;
  candidate.last_step = step_ + 1;
  candidate.changed = true;
  if (candidate.occurrences >= options_.min_count) return true;
  table.counters.not_admitted += key.count;
  return false;
}

void HashedTables::end() {
  user_check(in_step_,
             "embedding: a step of hashed tables ends that has not begun; call begin first");
  const TraceSpan span("dovetail::embedding_hashed_end");
  tiers_ ? tiers_->end() : mover_->clear_zero_slots();
  in_step_ = false;
  ++step_;
  if (step_ % options_.evict_steps != 0) return;
  if (tiers_) tiers_->settle();
  parallel_pieces(static_cast<int64_t>(tables_.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (options_.eviction != Eviction::kNone) evict(t);
      evict_candidates(*tables_[static_cast<size_t>(t)]);
    }
  });
}

/// Applies pending halvings when a count is read. Halving all counts at eviction would write every
/// entry.
int64_t HashedTables::occurrences_after(const Keys::Entry& entry, int64_t steps) const {
  if (options_.eviction != Eviction::kFrequency) return entry.occurrences;
  const int64_t halvings =
      steps / options_.evict_steps - (entry.last_step - 1) / options_.evict_steps;
  return entry.occurrences >> std::clamp<int64_t>(halvings, 0, 63);
}

void HashedTables::evict(int64_t t) {
  Table& table = *tables_[static_cast<size_t>(t)];
  const std::vector<Keys::Entry>& entries = table.keys.entries();
  std::vector<uint32_t> leaving;
  for (uint32_t i = 0; i < entries.size(); ++i) {
    if (!entries[i].taken) continue;
    if (options_.eviction == Eviction::kFrequency ||
        step_ - entries[i].last_step > options_.max_age)
      leaving.push_back(i);
  }
  if (options_.eviction == Eviction::kFrequency) {
    const int64_t excess = table.keys.size() - options_.keep_rows;
    if (excess <= 0) return;
    std::nth_element(leaving.begin(), leaving.begin() + excess - 1, leaving.end(),
                     [&](uint32_t a, uint32_t b) {
                       const auto rank = [&](const Keys::Entry& e) {
                         return std::tuple(occurrences_after(e, step_ - 1), e.last_step, e.key);
                       };
                       return rank(entries[a]) < rank(entries[b]);
                     });
    leaving.resize(static_cast<size_t>(excess));
  }
  for (const uint32_t number : leaving) erase(t, number);
  table.counters.evicted += static_cast<int64_t>(leaving.size());
}

/// Removes the key with this entry number, and its row.
void HashedTables::erase(int64_t t, uint32_t number) {
  tables_[static_cast<size_t>(t)]->keys.erase(number);
  if (tiers_) tiers_->release(t, number);
}

void HashedTables::evict_candidates(Table& table) const {
  for (uint32_t i = 0; i < table.candidates.entries().size(); ++i) {
    const Keys::Entry& entry = table.candidates.entries()[i];
    if (!entry.taken || step_ - entry.last_step <= options_.max_age) continue;
    table.candidates.erase(i);
    ++table.counters.candidates_evicted;
  }
}

Jagged HashedTables::find(const Jagged& keys) const {
  check_jagged(keys, feature_rows_);
  Jagged slots = keys;
  slots.values = at::empty_like(keys.values);
  const int64_t *values = keys.values.const_data_ptr<int64_t>(),
                *offsets = keys.offsets.const_data_ptr<int64_t>();
  int64_t* to = slots.values.mutable_data_ptr<int64_t>();
  const int64_t first = tiers_ ? 0 : 1;
  parallel_pieces(keys.features, 1, [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      const Table& table =
          *tables_[static_cast<size_t>(spec_.feature_table[static_cast<size_t>(f)])];
      for (int64_t i = offsets[f * keys.samples]; i < offsets[(f + 1) * keys.samples]; ++i) {
        const uint32_t number = table.keys.find(static_cast<uint64_t>(values[i]));
        to[i] = first + (number == kNone ? -1 : static_cast<int64_t>(number));
      }
    }
  });
  return slots;
}

void HashedTables::pool_into(const Jagged& keys, const at::Tensor& y) const {
  const Jagged rows = find(keys);
  if (tiers_) return tiers_->pool_into(rows, y);
  embedding::pool_into(*packed_, on(rows, packed_->device()), y, Ids::kChecked);
}

void HashedTables::prefetch(const Jagged& keys) const {
  if (tiers_) tiers_->prefetch(find(keys));
}

void HashedTables::forget_changes() {
  if (changes_ == Changes::kUntracked) return;
  for (const auto& table : tables_) {
    table->keys.forget_changes();
    table->candidates.forget_changes();
  }
}

HashedCounters operator+(HashedCounters a, const HashedCounters& b) {
  for (const auto& [name, counter] : kHashedCounters) a.*counter += b.*counter;
  return a;
}

HashedCounters HashedTables::counters() const {
  HashedCounters sum;
  for (const auto& table : tables_) {
    HashedCounters now = table->counters;
    now.rows = table->keys.size();
    now.candidates = table->candidates.size();
    sum = sum + now;
  }
  sum.bytes = memory_bytes();
  return sum;
}

}  // namespace dovetail::embedding
