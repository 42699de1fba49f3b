#include "dovetail/train/embedding_tables/optimizers.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::train {
namespace {

constexpr double kGeneral = EmbeddingOverride::kGeneral;

/// Number of an optimizer: which optimizers read it, and whether the config gives it.
struct Number {
  std::string_view key;
  std::vector<std::string_view> readers;
  bool (*in_section)(const EmbeddingSection& config, const EmbeddingSection& none);
  bool (*in_override)(const EmbeddingOverride& entry);

  bool is_read_by(std::string_view optimizer) const {
    return std::ranges::find(readers, optimizer) != readers.end();
  }
};

std::vector<Number> numbers() {
  using Section = EmbeddingSection;
  using Override = EmbeddingOverride;
  return {
      {"momentum",
       {"momentum"},
       [](const Section& config, const Section& none) { return config.momentum != none.momentum; },
       [](const Override& entry) { return entry.momentum != kGeneral; }},
      {"betas",
       {"adam", "rowwise_adam"},
       [](const Section& config, const Section& none) { return config.betas != none.betas; },
       [](const Override& entry) { return !entry.betas.empty(); }},
      {"eps",
       {"adagrad", "rowwise_adagrad", "adam", "rowwise_adam"},
       [](const Section& config, const Section& none) { return config.eps != none.eps; },
       [](const Override& entry) { return entry.eps != 0; }},
      {"l1",
       {"ftrl"},
       [](const Section& config, const Section& none) { return config.l1 != none.l1; },
       [](const Override& entry) { return entry.l1 != kGeneral; }},
      {"l2",
       {"ftrl"},
       [](const Section& config, const Section& none) { return config.l2 != none.l2; },
       [](const Override& entry) { return entry.l2 != kGeneral; }},
      {"beta",
       {"ftrl"},
       [](const Section& config, const Section& none) { return config.beta != none.beta; },
       [](const Override& entry) { return entry.beta != kGeneral; }}};
}

const std::string& optimizer_of(const EmbeddingSection& config, const EmbeddingOverride& entry) {
  return entry.optimizer.empty() ? config.optimizer : entry.optimizer;
}

void check_betas(const std::vector<double>& betas, std::string_view key) {
  user_check(betas.size() == 2, "{} has {} entries, but Adam has two: [beta1, beta2]", key,
             betas.size());
}

void check_override(const EmbeddingSection& config, const EmbeddingOverride& entry) {
  user_check(!entry.tables.empty(),
             "embedding.override names no tables; give their names, for example tables = "
             "[\"user\", \"*.wide\"]");
  const std::string& optimizer = optimizer_of(config, entry);
  bool says_something = !entry.optimizer.empty() || entry.lr != 0 ||
                        entry.weight_decay != kGeneral || entry.initial_range != kGeneral;
  for (const Number& number : numbers()) {
    const bool given = number.in_override(entry);
    user_check(!given || number.is_read_by(optimizer),
               "embedding.override of {}: {} does nothing with optimizer = \"{}\"; leave it out",
               fmt::join(entry.tables, ", "), number.key, optimizer);
    says_something = says_something || given;
  }
  user_check(says_something,
             "embedding.override of {} gives no optimizer, no number of one and no initial_range; "
             "leave it out",
             fmt::join(entry.tables, ", "));
  for (const auto& [key, value] :
       {std::pair("momentum", entry.momentum), std::pair("weight_decay", entry.weight_decay),
        std::pair("l1", entry.l1), std::pair("l2", entry.l2), std::pair("beta", entry.beta),
        std::pair("initial_range", entry.initial_range)})
    user_check(
        value == kGeneral || value >= 0,
        "embedding.override of {}: {} is {}, but must be 0 or more, or -1 for the general one",
        fmt::join(entry.tables, ", "), key, value);
  if (!entry.betas.empty()) check_betas(entry.betas, "embedding.override.betas");
}

bool matches(const std::string& glob, const embedding::TableSpec& table) {
  return fnmatch(glob.c_str(), table.name.c_str(), 0) == 0;
}

/// Returns a number of an override, or the one of [embedding] if the override does not set it.
double own_or(double own, double general) { return own == kGeneral ? general : own; }

embedding::OptimizerSpec spec_of(const EmbeddingSection& config, const EmbeddingOverride& entry) {
  const std::vector<double>& betas = entry.betas.empty() ? config.betas : entry.betas;
  return {.kind = embedding::parse_optimizer(optimizer_of(config, entry)),
          .lr = entry.lr == 0 ? config.lr : entry.lr,
          .momentum = own_or(entry.momentum, config.momentum),
          .beta1 = betas[0],
          .beta2 = betas[1],
          .eps = entry.eps == 0 ? config.eps : entry.eps,
          .weight_decay = own_or(entry.weight_decay, config.weight_decay),
          .l1 = own_or(entry.l1, config.l1),
          .l2 = own_or(entry.l2, config.l2),
          .beta = own_or(entry.beta, config.beta)};
}

/// Returns the last entry that names a table; null if none does.
const EmbeddingOverride* entry_of(const EmbeddingSection& config,
                                  const embedding::TableSpec& table) {
  const EmbeddingOverride* found = nullptr;
  for (const EmbeddingOverride& entry : config.overrides)
    if (std::ranges::any_of(entry.tables,
                            [&](const std::string& glob) { return matches(glob, table); }))
      found = &entry;
  return found;
}

}  // namespace

void check_table_optimizers(const EmbeddingSection& config) {
  check_betas(config.betas, "embedding.betas");
  for (const EmbeddingOverride& entry : config.overrides) check_override(config, entry);
  const EmbeddingSection none;
  for (const Number& number : numbers()) {
    const bool is_read =
        number.is_read_by(config.optimizer) ||
        std::ranges::any_of(config.overrides, [&](const EmbeddingOverride& entry) {
          return !number.in_override(entry) && number.is_read_by(optimizer_of(config, entry));
        });
    user_check(is_read || !number.in_section(config, none),
               "embedding.{} does nothing with embedding.optimizer = \"{}\"; leave it out",
               number.key, config.optimizer);
  }
}

void set_optimizers(const EmbeddingSection& config, embedding::PackSpec& pack) {
  pack.optimizer = spec_of(config, {});
  for (embedding::TableSpec& table : pack.tables) table.initial_range = config.initial_range;
  for (const EmbeddingOverride& entry : config.overrides) {
    for (const std::string& glob : entry.tables) {
      bool used = false;
      for (embedding::TableSpec& table : pack.tables) {
        if (!matches(glob, table)) continue;
        used = true;
        table.optimizer = spec_of(config, entry);
        table.initial_range = own_or(entry.initial_range, config.initial_range);
      }
      if (used) continue;
      std::vector<std::string_view> names;
      for (const embedding::TableSpec& table : pack.tables) names.emplace_back(table.name);
      throw UserError(
          fmt::format("embedding.override.tables: \"{}\" is no table of this model", glob),
          fmt::format("they are called {}", fmt::join(names, ", ")));
    }
  }
}

void check_overrides(const EmbeddingSection& config, const embedding::PackSpec& pack) {
  if (config.overrides.empty()) return;
  std::vector<const EmbeddingOverride*> entries;
  for (const embedding::TableSpec& table : pack.tables) entries.push_back(entry_of(config, table));
  for (const EmbeddingOverride& entry : config.overrides)
    user_check(
        std::ranges::find(entries, &entry) != entries.end(),
        "embedding.override of {} does nothing: later entries name the same tables; leave it out",
        fmt::join(entry.tables, ", "));
  const EmbeddingSection none;
  const auto unread = [&](const char* key, bool given,
                          bool (*in_override)(const EmbeddingOverride&)) {
    const bool read = std::ranges::any_of(
        entries, [&](const auto* entry) { return entry == nullptr || !in_override(*entry); });
    user_check(
        read || !given,
        "embedding.{} does nothing: embedding.override gives each table its own; leave it out",
        key);
  };
  unread("optimizer", config.optimizer != none.optimizer,
         [](const auto& entry) { return !entry.optimizer.empty(); });
  unread("lr", config.lr != none.lr, [](const auto& entry) { return entry.lr != 0; });
  unread("weight_decay", config.weight_decay != none.weight_decay,
         [](const auto& entry) { return entry.weight_decay != kGeneral; });
  unread("initial_range", config.initial_range != none.initial_range,
         [](const auto& entry) { return entry.initial_range != kGeneral; });
  for (const Number& number : numbers()) {
    const bool read = std::ranges::any_of(entries, [&](const auto* entry) {
      return number.is_read_by(entry == nullptr ? config.optimizer
                                                : optimizer_of(config, *entry)) &&
             (entry == nullptr || !number.in_override(*entry));
    });
    user_check(read || !number.in_section(config, none),
               "embedding.{} does nothing: embedding.override gives each table that reads it its "
               "own; leave it out",
               number.key);
  }
}

}  // namespace dovetail::train
