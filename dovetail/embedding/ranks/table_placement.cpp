#include "dovetail/embedding/ranks/table_placement.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <tuple>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/enum_names.h"

namespace dovetail::embedding {

namespace {

constexpr std::array<std::string_view, 4> kShardings = {"row", "table", "column", "replicated"};
constexpr std::array<std::string_view, 2> kTransfers = {"bags", "rows"};
/// Columns are cut at multiples of this number.
constexpr int64_t kColumnUnit = 4;

const TableSpec& table_of(const PackSpec& spec, int64_t t) {
  return spec.tables[static_cast<size_t>(t)];
}

int64_t bytes_of(const PackSpec& spec, int64_t t) {
  const TableSpec& table = table_of(spec, t);
  const int64_t state_bytes = state_per_row(spec, t) * static_cast<int64_t>(sizeof(float));
  const int64_t bytes = table.rows * (row_bytes(spec.row_dtype, table.dim) + state_bytes);
  return table.max_bytes > 0 ? std::min(bytes, table.max_bytes) : bytes;
}

bool has_row_wise_state(const PackSpec& spec, int64_t t) {
  const OptimizerKind kind = optimizer_of(spec, t).kind;
  return kind == OptimizerKind::kRowWiseAdagrad || kind == OptimizerKind::kRowWiseAdam;
}

bool columns_can_be_cut(const PackSpec& spec, int64_t t, int64_t ranks) {
  return !has_row_wise_state(spec, t) && spec.row_dtype != RowDtype::kMXFP8 &&
         !table_of(spec, t).hashed && table_of(spec, t).dim >= kColumnUnit * ranks;
}

/// Returns the begin of part `index` if `count` units are cut into equal parts.
int64_t part_begin(int64_t count, int64_t parts, int64_t index) { return count * index / parts; }

/// Balanced bytes: a rank has at most kBalanced times the mean, or less than kSmallBytes above it.
constexpr double kBalanced = 1.1, kSmallBytes = 1 << 20;

std::vector<PlacedTable> measure_tables(const PackSpec& spec, const PlacementOptions& options) {
  std::vector<PlacedTable> tables(spec.tables.size(), {.volume = 0});
  for (size_t f = 0; f < spec.feature_table.size(); ++f) {
    const int64_t t = spec.feature_table[f];
    const double ids = options.ids_per_sample.empty() ? 1 : options.ids_per_sample[f];
    tables[static_cast<size_t>(t)].volume += ids * static_cast<double>(table_of(spec, t).dim);
  }
  return tables;
}

void check_column_wise(const PackSpec& spec, int64_t t, int64_t ranks) {
  user_check(spec.row_dtype != RowDtype::kMXFP8,
             "embedding: mxfp8 has one scale for 32 elements of a row, which column-wise tables "
             "would cut; use another sharding, or bf16");
  const TableSpec& table = table_of(spec, t);
  user_check(!has_row_wise_state(spec, t),
             "embedding: table \"{}\": row-wise Adagrad has one state for a whole row, which "
             "column-wise tables would cut. Use another sharding, or adagrad",
             table.name);
  user_check(!table.hashed,
             "embedding: table \"{}\", which has no fixed vocabulary, cannot be column-wise: its "
             "keys have whole rows. Use another sharding",
             table.name);
  user_check(table.dim >= kColumnUnit * ranks,
             "embedding: table \"{}\" has {} columns, too few to be cut over {} ranks ({} each); "
             "use another sharding",
             table.name, table.dim, ranks, kColumnUnit);
}

/// Returns the sharding that the options give a table.
std::optional<Sharding> given_sharding(const PlacementOptions& options, size_t t) {
  if (t < options.table_sharding.size() && options.table_sharding[t])
    return options.table_sharding[t];
  return options.sharding;
}

Sharding cut_sharding(const PackSpec& spec, int64_t t, int64_t ranks) {
  return columns_can_be_cut(spec, t, ranks) ? Sharding::kColumnWise : Sharding::kRowWise;
}

void choose_sharding(const PackSpec& spec, const PlacementOptions& options,
                     std::vector<PlacedTable>& tables) {
  double volume = 0, bytes = 0;
  for (size_t t = 0; t < tables.size(); ++t) {
    volume += tables[t].volume;
    bytes += static_cast<double>(bytes_of(spec, static_cast<int64_t>(t)));
  }
  const double share = 1 / static_cast<double>(options.ranks);
  for (size_t t = 0; t < tables.size(); ++t) {
    const auto number = static_cast<int64_t>(t);
    const bool too_large = tables[t].volume > share * volume ||
                           static_cast<double>(bytes_of(spec, number)) > share * bytes;
    const bool may_be_cut = options.ranks > 1 && !spec.tables[t].hashed;
    const Sharding chosen =
        may_be_cut && too_large ? cut_sharding(spec, number, options.ranks) : Sharding::kTableWise;
    tables[t].sharding = given_sharding(options, t).value_or(chosen);
    if (tables[t].sharding == Sharding::kColumnWise) check_column_wise(spec, number, options.ranks);
    if (options.ranks == 1) tables[t].sharding = Sharding::kTableWise;
  }
}

/// Returns the fraction of a table that is on `rank`.
double fraction_on(const PackSpec& spec, const TablePlacement& plan, int64_t t, int64_t rank) {
  const PlacedTable& placed = plan.tables[static_cast<size_t>(t)];
  switch (placed.sharding) {
    case Sharding::kRowWise:
      return 1 / static_cast<double>(plan.ranks);
    case Sharding::kColumnWise:
      return static_cast<double>(local_table(spec, plan, t, rank).dim) /
             static_cast<double>(table_of(spec, t).dim);
    case Sharding::kTableWise:
      return placed.rank == rank ? 1 : 0;
    case Sharding::kReplicated:
      return 1;
  }
  DOVETAIL_CHECK(false, "no such sharding");
}

/// Bytes or volume on each rank.
using Loads = std::vector<double>;

void add_table(const PackSpec& spec, const TablePlacement& plan, int64_t t, double whole,
               Loads& loads) {
  for (size_t r = 0; r < loads.size(); ++r)
    loads[r] += whole * fraction_on(spec, plan, t, static_cast<int64_t>(r));
}

double mean_of(const Loads& loads) {
  return std::accumulate(loads.begin(), loads.end(), 0.0) / static_cast<double>(loads.size());
}

/// Places the whole tables, and returns the bytes on each rank.
Loads place_whole_tables(const PackSpec& spec, TablePlacement& plan) {
  const auto ranks = static_cast<size_t>(plan.ranks);
  Loads bytes(ranks, 0), volume(ranks, 0);
  std::vector<size_t> whole;
  double whole_bytes = 0, whole_volume = 0;
  const auto bytes_of_table = [&](size_t t) {
    return static_cast<double>(bytes_of(spec, static_cast<int64_t>(t)));
  };
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    if (plan.tables[t].sharding != Sharding::kTableWise) {
      add_table(spec, plan, static_cast<int64_t>(t), bytes_of_table(t), bytes);
      add_table(spec, plan, static_cast<int64_t>(t), plan.tables[t].volume, volume);
      continue;
    }
    whole.push_back(t);
    whole_bytes += bytes_of_table(t);
    whole_volume += plan.tables[t].volume;
  }
  const double mean_bytes = mean_of(bytes) + whole_bytes / static_cast<double>(ranks),
               mean_volume = mean_of(volume) + whole_volume / static_cast<double>(ranks);
  const auto larger_load = [&](double of_bytes, double of_volume) {
    return std::max(of_bytes / std::max(1.0, mean_bytes),
                    mean_volume == 0 ? 0 : of_volume / mean_volume);
  };
  std::ranges::stable_sort(whole, std::greater<>(), [&](size_t t) {
    return larger_load(bytes_of_table(t), plan.tables[t].volume);
  });
  for (const size_t t : whole) {
    size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (size_t r = 0; r < ranks; ++r) {
      const double load =
          larger_load(bytes[r] + bytes_of_table(t), volume[r] + plan.tables[t].volume);
      if (load >= least) continue;
      best = r;
      least = load;
    }
    plan.tables[t].rank = static_cast<int64_t>(best);
    bytes[best] += bytes_of_table(t);
    volume[best] += plan.tables[t].volume;
  }
  return bytes;
}

/// Cuts a table on `rank` so that its bytes are spread more evenly. Returns false if there is none.
bool cut_largest(const PackSpec& spec, const PlacementOptions& options, TablePlacement& plan,
                 int64_t rank) {
  PlacedTable* largest = nullptr;
  int64_t most = 0;
  Sharding to = Sharding::kRowWise;
  for (const Sharding from : {Sharding::kTableWise, Sharding::kColumnWise}) {
    for (size_t t = 0; t < plan.tables.size(); ++t) {
      PlacedTable& table = plan.tables[t];
      const auto number = static_cast<int64_t>(t);
      if (table.sharding != from || given_sharding(options, t) ||
          fraction_on(spec, plan, number, rank) * static_cast<double>(plan.ranks) <= 1 ||
          bytes_of(spec, number) <= most)
        continue;
      largest = &table;
      most = bytes_of(spec, number);
      to = from == Sharding::kTableWise ? cut_sharding(spec, number, plan.ranks)
                                        : Sharding::kRowWise;
    }
    if (largest != nullptr) break;
  }
  if (largest == nullptr) return false;
  largest->sharding = to;
  return true;
}

/// Places whole tables, and cuts tables until the bytes of the ranks are balanced.
void balance_bytes(const PackSpec& spec, const PlacementOptions& options, TablePlacement& plan) {
  while (true) {
    const Loads bytes = place_whole_tables(spec, plan);
    const auto rank = std::ranges::max_element(bytes) - bytes.begin();
    const double most = bytes[static_cast<size_t>(rank)], mean = mean_of(bytes);
    const bool fits = options.rank_bytes == 0 || most <= static_cast<double>(options.rank_bytes);
    const bool balanced = most <= kBalanced * mean || most - mean < kSmallBytes;
    if (fits && balanced) return;
    if (plan.ranks > 1 && cut_largest(spec, options, plan, rank)) continue;
    user_check(fits,
               "embedding: rank {} needs {:.0f} bytes for its tables, but embedding.rank_bytes is "
               "{}. Raise it, take more ranks or fewer rows, or store rows on disk "
               "(embedding.memory_bytes)",
               rank, most, options.rank_bytes);
    return;
  }
}

/// Expected numbers of one rank's part of a batch, for a table. `bags` counts features times
/// samples.
struct TableIds {
  double features = 0, bags = 0, ids = 0, distinct = 0;
};

TableIds ids_of(const PackSpec& spec, const PlacementOptions& options, int64_t t) {
  TableIds found{.distinct = options.measured->distinct[static_cast<size_t>(t)]};
  for (size_t f = 0; f < spec.feature_table.size(); ++f) {
    if (spec.feature_table[f] != t) continue;
    ++found.features;
    found.bags += options.measured->samples;
    found.ids += options.measured->samples *
                 (options.ids_per_sample.empty() ? 1 : options.ids_per_sample[f]);
  }
  return found;
}

/// Sets the bytes that a rank is expected to send to others for a table. They are int32 words of
/// bag lengths, ids and occurrences, and the elements of rows and gradients.
void expect_bytes(const PackSpec& spec, const PlacementOptions& options, TablePlacement& plan,
                  int64_t t) {
  PlacedTable& placed = plan.tables[static_cast<size_t>(t)];
  const TableIds of = ids_of(spec, options, t);
  const auto ranks = static_cast<double>(plan.ranks);
  const bool whole = placed.sharding == Sharding::kTableWise,
             by_rows = placed.sharding == Sharding::kRowWise;
  // Ranks that get a bag's length, an id, and a gradient of a bag or row.
  const double to = whole ? 1 : ranks, id_to = whole || by_rows ? 1 : ranks;
  double row = 0, gradient = 0;  // bytes of a row, and of its gradient, to all ranks that have it
  for (int64_t r = 0; r < plan.ranks; ++r) {
    if (r > 0 && (whole || by_rows)) break;
    const int64_t dim = local_table(spec, plan, t, whole ? placed.rank : r).dim;
    row += static_cast<double>(comm::row_bytes(options.payloads.forward, dim, at::kFloat));
    gradient += static_cast<double>(comm::row_bytes(options.payloads.backward, dim, at::kFloat));
  }
  if (placed.sharding == Sharding::kReplicated) row = 0;
  constexpr double kWord = sizeof(int32_t);
  const bool hashed = table_of(spec, t).hashed;
  const double id_bytes = kWord * (hashed ? 2 : 1) * id_to,
               occurrence_bytes = hashed ? kWord * id_to : 0;
  const double to_others = (ranks - 1) / ranks;
  placed.bags_bytes = to_others * (kWord * of.bags * to + id_bytes * of.ids +
                                   of.bags * (by_rows ? ranks : 1) * (row + gradient));
  placed.rows_bytes = to_others * (kWord * of.features * to +
                                   of.distinct * (id_bytes + occurrence_bytes + row + gradient));
}

void choose_transfer(const PackSpec& spec, const PlacementOptions& options, TablePlacement& plan) {
  if (plan.ranks == 1) return;
  DOVETAIL_CHECK(options.transfer || options.measured, "a transfer is chosen without measured ids");
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    PlacedTable& table = plan.tables[t];
    if (options.measured) expect_bytes(spec, options, plan, static_cast<int64_t>(t));
    table.transfer = options.transfer.value_or(
        table.rows_bytes < table.bags_bytes ? Transfer::kRows : Transfer::kBags);
  }
}

void pack_tables(const PackSpec& spec, TablePlacement& plan, bool packing) {
  std::map<std::tuple<Sharding, bool, Transfer, size_t>, size_t> pack_of;
  std::vector<size_t> optimizer(plan.tables.size());
  const std::vector<std::vector<int64_t>> alike = tables_by_optimizer(spec);
  for (size_t i = 0; i < alike.size(); ++i)
    for (const int64_t t : alike[i]) optimizer[static_cast<size_t>(t)] = i;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const PlacedTable& table = plan.tables[t];
    const bool hashed = spec.tables[t].hashed;
    const auto [place, fresh] = pack_of.try_emplace(
        {table.sharding, hashed, table.transfer, optimizer[t]}, plan.packs.size());
    if (fresh || !packing)
      plan.packs.push_back(
          {.tables = {}, .sharding = table.sharding, .hashed = hashed, .transfer = table.transfer});
    PlacedPack& pack = packing ? plan.packs[place->second] : plan.packs.back();
    pack.tables.push_back(static_cast<int64_t>(t));
    pack.volume += table.volume;
  }
}

/// Parts of a plan with their volumes on each rank. Only ranks that hold some of an item count. The
/// item goes to the part whose largest volume on them stays least. Ties go to the part with the
/// least sum.
class Parts {
 public:
  Parts(int64_t parts, int64_t ranks)
      : loads_(static_cast<size_t>(parts), Loads(static_cast<size_t>(ranks), 0)) {}

  /// Returns the part that gets an item with these volumes.
  size_t add(const Loads& item) {
    const auto key = [&](const Loads& part) {
      double most = 0;
      for (size_t r = 0; r < item.size(); ++r)
        if (item[r] > 0) most = std::max(most, part[r] + item[r]);
      return std::pair(most, mean_of(part));
    };
    const auto best = std::ranges::min_element(loads_, {}, key);
    std::ranges::transform(*best, item, best->begin(), std::plus<>());
    return static_cast<size_t>(best - loads_.begin());
  }

 private:
  std::vector<Loads> loads_;
};

Loads volumes_of(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack) {
  Loads volumes(static_cast<size_t>(plan.ranks), 0);
  for (const int64_t t : pack.tables)
    add_table(spec, plan, t, plan.tables[static_cast<size_t>(t)].volume, volumes);
  return volumes;
}

/// Splits a pack into `parts`.
std::vector<PlacedPack> split(const PackSpec& spec, const TablePlacement& plan,
                              const PlacedPack& pack, int64_t parts) {
  std::vector<PlacedPack> found(
      static_cast<size_t>(parts),
      {.tables = {}, .sharding = pack.sharding, .hashed = pack.hashed, .transfer = pack.transfer});
  std::vector<int64_t> tables = pack.tables;
  const auto volume = [&](int64_t t) { return plan.tables[static_cast<size_t>(t)].volume; };
  std::ranges::stable_sort(tables, std::greater<>(), volume);
  Parts loads(parts, plan.ranks);
  for (const int64_t t : tables) {
    PlacedPack& to = found[loads.add(volumes_of(spec, plan, {.tables = {t}}))];
    to.tables.push_back(t);
    to.volume += volume(t);
  }
  std::erase_if(found, [](const PlacedPack& part) { return part.tables.empty(); });
  for (PlacedPack& part : found) std::ranges::sort(part.tables);
  return found;
}

void replace(const PackSpec& spec, TablePlacement& plan, size_t index, int64_t parts) {
  const std::vector<PlacedPack> found = split(spec, plan, plan.packs[index], parts);
  plan.packs.erase(plan.packs.begin() + static_cast<int64_t>(index));
  plan.packs.insert(plan.packs.begin() + static_cast<int64_t>(index), found.begin(), found.end());
}

void split_packs(const PackSpec& spec, TablePlacement& plan) {
  double sum = 0;
  for (const PlacedPack& pack : plan.packs) sum += pack.volume;
  const double mean = sum / static_cast<double>(plan.packs.size());
  for (size_t i = plan.packs.size(); i-- > 0;) {
    const auto parts = static_cast<int64_t>(std::ceil(plan.packs[i].volume / mean));
    if (parts > 1) replace(spec, plan, i, parts);
  }
  while (static_cast<int64_t>(plan.packs.size()) < plan.groups) {
    const auto divisible_volume = [](const PlacedPack& pack) {
      return pack.tables.size() > 1 ? pack.volume : -1;
    };
    const auto largest = std::ranges::max_element(plan.packs, {}, divisible_volume);
    replace(spec, plan, static_cast<size_t>(largest - plan.packs.begin()), 2);
  }
}

void group_packs(const PackSpec& spec, TablePlacement& plan) {
  std::vector<size_t> order(plan.packs.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater<>(), [&](size_t i) { return plan.packs[i].volume; });
  Parts groups(plan.groups, plan.ranks);
  for (const size_t i : order)
    plan.packs[i].group = static_cast<int64_t>(groups.add(volumes_of(spec, plan, plan.packs[i])));
  std::ranges::stable_sort(plan.packs, {}, &PlacedPack::group);
}

/// Lists only the numbers that the optimizer's kind uses.
nlohmann::ordered_json to_json(const OptimizerSpec& optimizer) {
  nlohmann::ordered_json json = {{"kind", name(optimizer.kind)}, {"lr", optimizer.lr}};
  if (optimizer.kind == OptimizerKind::kMomentum) json["momentum"] = optimizer.momentum;
  if (optimizer.kind == OptimizerKind::kAdam || optimizer.kind == OptimizerKind::kRowWiseAdam)
    json["betas"] = {optimizer.beta1, optimizer.beta2};
  if (optimizer.kind == OptimizerKind::kFtrl) {
    json.update({{"l1", optimizer.l1}, {"l2", optimizer.l2}, {"beta", optimizer.beta}});
  } else if (optimizer.kind != OptimizerKind::kSgd && optimizer.kind != OptimizerKind::kMomentum) {
    json["eps"] = optimizer.eps;
  }
  json["weight_decay"] = optimizer.weight_decay;
  return json;
}

}  // namespace

std::string_view name(Sharding sharding) { return kShardings[static_cast<size_t>(sharding)]; }

Sharding parse_sharding(std::string_view text) {
  return parse_enum<Sharding>("embedding", "sharding", text, kShardings);
}

std::string_view name(Transfer transfer) { return kTransfers[static_cast<size_t>(transfer)]; }

Transfer parse_transfer(std::string_view text) {
  return parse_enum<Transfer>("embedding", "transfer", text, kTransfers);
}

TablePlacement place_tables(const PackSpec& spec, const PlacementOptions& options) {
  const auto tables = static_cast<int64_t>(spec.tables.size());
  user_check(options.groups >= 1 && options.groups <= std::max<int64_t>(tables, 1),
             "embedding: {} tables cannot be in {} groups", tables, options.groups);
  for (const TableSpec& table : spec.tables)
    user_check(table.pooling != Pooling::kNone,
               "embedding: table \"{}\" has pooling none, but tables over ranks send pooled rows. "
               "Look up each position of its bags as a feature of its own, with bags of one id",
               table.name);
  TablePlacement plan{
      .ranks = options.ranks, .groups = options.groups, .tables = measure_tables(spec, options)};
  if (tables == 0) return plan;
  choose_sharding(spec, options, plan.tables);
  balance_bytes(spec, options, plan);
  choose_transfer(spec, options, plan);
  pack_tables(spec, plan, options.packing);
  if (options.packing) split_packs(spec, plan);
  group_packs(spec, plan);
  return plan;
}

std::vector<std::vector<int64_t>> tables_by_optimizer(const PackSpec& spec) {
  std::vector<std::vector<int64_t>> alike;
  for (int64_t t = 0; t < std::ssize(spec.tables); ++t) {
    const auto found = std::ranges::find_if(alike, [&](const auto& tables) {
      return optimizer_of(spec, tables.front()) == optimizer_of(spec, t);
    });
    if (found == alike.end()) {
      alike.push_back({t});
    } else {
      found->push_back(t);
    }
  }
  return alike;
}

std::vector<int64_t> whole_columns(const PackSpec& spec) {
  std::vector<int64_t> columns = {0};
  for (const int64_t t : spec.feature_table)
    columns.push_back(columns.back() + table_of(spec, t).dim);
  return columns;
}

std::vector<int64_t> features_of(const PackSpec& spec, const PlacedPack& pack) {
  std::vector<int64_t> features;
  for (size_t f = 0; f < spec.feature_table.size(); ++f)
    if (std::ranges::binary_search(pack.tables, spec.feature_table[f]))
      features.push_back(static_cast<int64_t>(f));
  return features;
}

TableSpec local_table(const PackSpec& spec, const TablePlacement& plan, int64_t t, int64_t rank) {
  TableSpec table = table_of(spec, t);
  switch (plan.tables[static_cast<size_t>(t)].sharding) {
    case Sharding::kRowWise:
      table.pooling = Pooling::kSum;
      if (table.hashed) {
        table.slice = {.whole_rows = table.rows};
        table.rows = (table.rows + plan.ranks - 1) / plan.ranks;
        table.max_bytes /= plan.ranks;
        return table;
      }
      table.slice = {.first_row = rank, .row_step = plan.ranks, .whole_rows = table.rows};
      table.rows = (table.rows - rank + plan.ranks - 1) / plan.ranks;
      return table;
    case Sharding::kColumnWise: {
      const int64_t units = table.dim / kColumnUnit;
      const int64_t first = kColumnUnit * part_begin(units, plan.ranks, rank);
      const int64_t end = rank + 1 == plan.ranks
                              ? table.dim
                              : kColumnUnit * part_begin(units, plan.ranks, rank + 1);
      table.slice = {.first_column = first};
      table.dim = end - first;
      return table;
    }
    case Sharding::kTableWise:
    case Sharding::kReplicated:
      return table;
  }
  DOVETAIL_CHECK(false, "no such sharding");
}

PackSpec local_spec(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                    int64_t rank, std::vector<int64_t>& features) {
  PackSpec local{.tables = {},
                 .feature_table = {},
                 .optimizer = optimizer_of(spec, pack.tables.front()),
                 .seed = spec.seed,
                 .row_dtype = spec.row_dtype};
  features.clear();
  std::map<int64_t, int64_t> local_number;
  for (const int64_t t : pack.tables) {
    const PlacedTable& planned = plan.tables[static_cast<size_t>(t)];
    if (planned.sharding == Sharding::kTableWise && planned.rank != rank) continue;
    TableSpec table = local_table(spec, plan, t, rank);
    if (table.rows == 0) table.rows = 1;  // fewer rows than ranks: keep one row that no id reaches
    table.optimizer.reset();
    local_number[t] = static_cast<int64_t>(local.tables.size());
    local.tables.push_back(std::move(table));
  }
  for (const int64_t f : features_of(spec, pack)) {
    const auto found = local_number.find(spec.feature_table[static_cast<size_t>(f)]);
    if (found == local_number.end()) continue;
    features.push_back(f);
    local.feature_table.push_back(found->second);
  }
  return local;
}

int64_t bytes_on(const PackSpec& spec, const TablePlacement& plan, const PlacedPack& pack,
                 int64_t rank) {
  std::vector<int64_t> features;
  const PackSpec local = local_spec(spec, plan, pack, rank, features);
  int64_t bytes = 0;
  for (size_t t = 0; t < local.tables.size(); ++t)
    bytes += bytes_of(local, static_cast<int64_t>(t));
  return bytes;
}

namespace {

/// Returns the sums over a pack's tables: expected bytes with its transfer, and with the other one.
std::pair<double, double> sent_bytes(const TablePlacement& plan, const PlacedPack& pack) {
  double bags = 0, rows = 0;
  for (const int64_t t : pack.tables) {
    bags += plan.tables[static_cast<size_t>(t)].bags_bytes;
    rows += plan.tables[static_cast<size_t>(t)].rows_bytes;
  }
  return pack.transfer == Transfer::kRows ? std::pair(rows, bags) : std::pair(bags, rows);
}

std::string transfer_text(const TablePlacement& plan, const PlacedPack& pack) {
  if (plan.ranks == 1) return "nothing";
  const auto [sent, otherwise] = sent_bytes(plan, pack);
  if (sent == 0) return std::string(name(pack.transfer));
  const Transfer other = pack.transfer == Transfer::kRows ? Transfer::kBags : Transfer::kRows;
  return fmt::format("{} {:.2f} MB ({} {:.2f})", name(pack.transfer), 1e-6 * sent, name(other),
                     1e-6 * otherwise);
}

}  // namespace

std::string print(const PackSpec& spec, const TablePlacement& plan) {
  double volume = 0;
  for (const PlacedPack& pack : plan.packs) volume += pack.volume;
  std::string text = fmt::format("{:>4} {:>5}  {:<10} {:>7} {:>9} {:<22} {:<26} {:>7}  {}\n",
                                 "pack", "group", "sharding", "tables", "features", "optimizer",
                                 "sent in a step", "volume", "MB on each rank");
  for (size_t i = 0; i < plan.packs.size(); ++i) {
    const PlacedPack& pack = plan.packs[i];
    std::vector<std::string> megabytes;
    for (int64_t r = 0; r < plan.ranks; ++r)
      megabytes.push_back(
          fmt::format("{:.1f}", 1e-6 * static_cast<double>(bytes_on(spec, plan, pack, r))));
    const OptimizerSpec& optimizer = optimizer_of(spec, pack.tables.front());
    text += fmt::format(
        "{:>4} {:>5}  {:<10} {:>7} {:>9} {:<22} {:<26} {:>5.1f} %  {}\n", i, pack.group,
        plan.ranks == 1 ? "local" : name(pack.sharding), pack.tables.size(),
        features_of(spec, pack).size(), fmt::format("{} {}", name(optimizer.kind), optimizer.lr),
        transfer_text(plan, pack), 100 * pack.volume / volume, fmt::join(megabytes, " "));
  }
  return text;
}

nlohmann::ordered_json to_json(const PackSpec& spec, const TablePlacement& plan) {
  nlohmann::ordered_json packs = nlohmann::ordered_json::array();
  for (const PlacedPack& pack : plan.packs) {
    nlohmann::ordered_json tables = nlohmann::ordered_json::array();
    for (const int64_t t : pack.tables) {
      nlohmann::ordered_json table = {{"name", table_of(spec, t).name},
                                      {"rows", table_of(spec, t).rows},
                                      {"dim", table_of(spec, t).dim},
                                      {"volume", plan.tables[static_cast<size_t>(t)].volume}};
      if (pack.hashed) table["hashed"] = true;
      if (plan.tables[static_cast<size_t>(t)].bags_bytes > 0)
        table["step_bytes"] = {{"bags", plan.tables[static_cast<size_t>(t)].bags_bytes},
                               {"rows", plan.tables[static_cast<size_t>(t)].rows_bytes}};
      if (pack.sharding == Sharding::kTableWise)
        table["rank"] = plan.tables[static_cast<size_t>(t)].rank;
      tables.push_back(std::move(table));
    }
    std::vector<int64_t> bytes;
    for (int64_t r = 0; r < plan.ranks; ++r) bytes.push_back(bytes_on(spec, plan, pack, r));
    packs.push_back({{"sharding", name(pack.sharding)},
                     {"transfer", name(pack.transfer)},
                     {"group", pack.group},
                     {"optimizer", to_json(optimizer_of(spec, pack.tables.front()))},
                     {"volume", pack.volume},
                     {"bytes", bytes},
                     {"tables", std::move(tables)}});
  }
  return {{"ranks", plan.ranks},
          {"groups", plan.groups},
          {"row_dtype", name(spec.row_dtype)},
          {"packs", std::move(packs)}};
}

}  // namespace dovetail::embedding
