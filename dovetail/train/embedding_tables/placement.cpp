#include "dovetail/train/embedding_tables/placement.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <string_view>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

/// Returns the last entry that names each table; null if none does.
std::vector<const EmbeddingPlacement*> entries_of(const EmbeddingSection& config,
                                                  const embedding::PackSpec& pack) {
  std::vector<const EmbeddingPlacement*> entries(pack.tables.size(), nullptr);
  for (const EmbeddingPlacement& entry : config.placements) {
    user_check(!entry.tables.empty(),
               "embedding.placement names no tables; give their names, for example tables = "
               "[\"user\", \"*.wide\"]");
    for (const std::string& glob : entry.tables) {
      bool used = false;
      for (size_t t = 0; t < pack.tables.size(); ++t) {
        if (fnmatch(glob.c_str(), pack.tables[t].name.c_str(), 0) != 0) continue;
        used = true;
        entries[t] = &entry;
      }
      if (used) continue;
      std::vector<std::string_view> names;
      for (const embedding::TableSpec& table : pack.tables) names.emplace_back(table.name);
      throw UserError(
          fmt::format("embedding.placement.tables: \"{}\" is no table of this model", glob),
          fmt::format("they are called {}", fmt::join(names, ", ")));
    }
  }
  return entries;
}

}  // namespace

embedding::PlacementOptions placement_options(const EmbeddingSection& config,
                                              const embedding::PackSpec& pack) {
  embedding::PlacementOptions options{.rank_bytes = config.rank_bytes, .packing = config.packing};
  const comm::Payload payload = comm::parse_payload(config.exchange);
  options.payloads = {.forward = payload, .backward = payload};
  options.transfer = config.transfer == "auto"
                         ? std::nullopt
                         : std::optional(embedding::parse_transfer(config.transfer));
  if (config.sharding != "auto") options.sharding = embedding::parse_sharding(config.sharding);
  const std::vector<const EmbeddingPlacement*> entries = entries_of(config, pack);
  for (const EmbeddingPlacement* entry : entries) {
    options.table_sharding.emplace_back();
    if (entry != nullptr)
      options.table_sharding.back() = embedding::parse_sharding(entry->sharding);
  }
  for (const EmbeddingPlacement& entry : config.placements)
    user_check(std::ranges::find(entries, &entry) != entries.end(),
               "embedding.placement of {} does nothing: later entries name the same tables; leave "
               "it out",
               fmt::join(entry.tables, ", "));
  return options;
}

}  // namespace dovetail::train
