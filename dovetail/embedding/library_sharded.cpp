#include <ATen/ATen.h>
#include <fmt/format.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/embedding/library_spec.h"
#include "dovetail/embedding/ranks/sharded_tables.h"

/// Implements the operators torch.ops.dovetail.sharded_embedding_*: tables over the ranks of a
/// ProcessGroup of PyTorch. Tables are given by their handle.
namespace dovetail::embedding {

namespace {

using Owner = c10::intrusive_ptr<OwnedTables>;
using Contents = c10::Dict<std::string, at::Tensor>;

std::optional<Sharding> sharding_or_auto(const std::string& name) {
  return name == "auto" ? std::nullopt : std::optional(parse_sharding(name));
}

PlacementOptions placement_from_json(const nlohmann::json& options, const nlohmann::json& tables) {
  PlacementOptions placement{
      .sharding = sharding_or_auto(options.at("sharding")),
      .rank_bytes = options.at("rank_bytes"),
      .ids_per_sample = options.at("ids_per_sample").get<std::vector<double>>(),
      .transfer = parse_transfer(options.at("transfer").get<std::string>())};
  for (const nlohmann::json& table : tables) {
    const auto& own = table.at("sharding");
    placement.table_sharding.push_back(own.is_null() ? placement.sharding : sharding_or_auto(own));
  }
  return placement;
}

std::optional<TierOptions> tiers_from_json(const nlohmann::json& options) {
  if (options.is_null()) return std::nullopt;
  return TierOptions{.policy = parse_tier_policy(options.at("policy").get<std::string>()),
                     .memory_bytes = options.at("memory_bytes"),
                     .step_rows = options.at("step_rows"),
                     .warmup_steps = options.at("warmup_steps"),
                     .refresh_steps = options.at("refresh_steps"),
                     .folder = options.at("folder").get<std::string>()};
}

HashedOptions hashed_from_json(const nlohmann::json& options) {
  return {.admission = parse_admission(options.at("admission").get<std::string>()),
          .min_count = options.at("min_count"),
          .max_candidates = options.at("max_candidates"),
          .probability = options.at("probability"),
          .eviction = parse_eviction(options.at("eviction").get<std::string>()),
          .evict_steps = options.at("evict_steps"),
          .max_age = options.at("max_age"),
          .keep_rows = options.at("keep_rows")};
}

RankGradients parse_rank_gradients(const std::string& name) {
  if (name == "mean") return RankGradients::kMean;
  user_check(name == "sum",
             "embedding: no rule for the gradients of ranks is named \"{}\"; use mean or sum",
             name);
  return RankGradients::kSum;
}

/// Makes tables over a ProcessGroup, whose ranks find each other through its store under `name`.
/// Null: the tables of one rank.
Owner make_sharded(const std::string& text,
                   const std::optional<c10::intrusive_ptr<c10d::ProcessGroup>>& ranks,
                   const std::string& name, double timeout_s) {
  const auto description = nlohmann::json::parse(text);
  const PackSpec spec = spec_from_json(description);
  const nlohmann::json& options = description.at("options");
  const comm::Payload payload = comm::parse_payload(options.at("exchange").get<std::string>());
  ShardedTables::Options made{.placement = placement_from_json(options, description.at("tables")),
                              .payloads = {.forward = payload, .backward = payload},
                              .tiers = tiers_from_json(options.at("tiers")),
                              .hashed = hashed_from_json(options.at("dynamic")),
                              .gradients = parse_rank_gradients(options.at("gradients")),
                              .description = {}};
  const nlohmann::json flat = description.flatten();
  for (const auto& [key, value] : flat.items())
    made.description += fmt::format("{} = {}\n", key.substr(1), value.dump());
  const std::shared_ptr<comm::Group> group = comm::group_over_store(
      ranks ? c10::make_intrusive<c10d::PrefixStore>(name, (*ranks)->getStore()) : nullptr,
      ranks ? (*ranks)->getRank() : 0, ranks ? (*ranks)->getSize() : 1, {.timeout_s = timeout_s});
  return c10::make_intrusive<OwnedTables>(std::make_shared<ShardedTables>(spec, made, group));
}

std::shared_ptr<ShardedTables> sharded(int64_t handle) {
  auto tables = std::dynamic_pointer_cast<ShardedTables>(tables_of(handle));
  user_check(tables != nullptr, "embedding: the tables with handle {} are not sharded", handle);
  return tables;
}

Contents as_dict(const ShardedTables::Contents& contents) {
  Contents made;
  for (const auto& [name, tensor] : contents) made.insert(name, tensor);
  return made;
}

void library_write(int64_t handle, int64_t table, const Contents& given) {
  ShardedTables::Contents contents;
  for (const auto& entry : given) contents[entry.key()] = entry.value();
  sharded(handle)->write(table, contents);
}

/// Sends rank 0's numbers to all ranks. Throws on all ranks if any rank has an error.
std::vector<int64_t> from_rank_zero(int64_t handle, const std::vector<int64_t>& numbers,
                                    const std::string& error) {
  const std::shared_ptr<ShardedTables> tables = sharded(handle);
  comm::agree(tables->group(), "embedding", error);
  at::Tensor sent = at::tensor(numbers, at::kLong);
  if (tables->group().size() > 1 && !numbers.empty()) tables->group().broadcast(sent, 0);
  return {sent.const_data_ptr<int64_t>(), sent.const_data_ptr<int64_t>() + sent.numel()};
}

c10::Dict<std::string, int64_t> tier_counts(int64_t handle) {
  c10::Dict<std::string, int64_t> counts;
  const std::optional<TierCounters> counters = sharded(handle)->tables().tier_counters();
  if (!counters) return counts;
  counts.insert("hits", counters->hits);
  counts.insert("misses", counters->misses);
  counts.insert("rows_read", counters->rows_read);
  counts.insert("rows_written", counters->rows_written);
  counts.insert("rows_initialized", counters->rows_initialized);
  return counts;
}

c10::Dict<std::string, int64_t> key_counts(int64_t handle) {
  c10::Dict<std::string, int64_t> counts;
  const std::optional<HashedCounters> counters = sharded(handle)->tables().hashed_counters();
  if (!counters) return counts;
  for (const auto& [name, counter] : kHashedCounters)
    counts.insert(std::string(name), (*counters).*counter);
  return counts;
}

}  // namespace

}  // namespace dovetail::embedding

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  using dovetail::embedding::sharded;
  dovetail::define<"sharded_embedding_tables", dovetail::embedding::make_sharded>(m);
  dovetail::define<"sharded_embedding_plan", [](int64_t tables) {
    const auto& made = sharded(tables)->tables();
    return dovetail::embedding::to_json(made.spec(), made.plan()).dump();
  }>(m);
  dovetail::define<"sharded_embedding_shapes", [](int64_t tables, int64_t table) {
    return dovetail::embedding::as_dict(sharded(tables)->shapes(table));
  }>(m);
  dovetail::define<"sharded_embedding_read", [](int64_t tables, int64_t table) {
    return dovetail::embedding::as_dict(sharded(tables)->read(table));
  }>(m);
  dovetail::define<"sharded_embedding_write", dovetail::embedding::library_write>(m);
  dovetail::define<"sharded_embedding_from_rank_zero", dovetail::embedding::from_rank_zero>(m);
  dovetail::define<"sharded_embedding_set_lr",
                   [](int64_t tables, double lr) { sharded(tables)->set_lr(lr); }>(m);
  dovetail::define<"sharded_embedding_steps", [](int64_t tables) {
    const auto [updates, steps] = sharded(tables)->steps();
    return std::vector<int64_t>{updates, steps};
  }>(m);
  dovetail::define<"sharded_embedding_set_steps",
                   [](int64_t tables, int64_t updates, int64_t steps) {
                     sharded(tables)->set_steps(updates, steps);
                   }>(m);
  dovetail::define<"sharded_embedding_tier_counts", dovetail::embedding::tier_counts>(m);
  dovetail::define<"sharded_embedding_key_counts", dovetail::embedding::key_counts>(m);
}
