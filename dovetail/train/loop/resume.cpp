#include "dovetail/train/loop/resume.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/resolve/unread_keys.h"
#include "dovetail/train/run/tokenizer_state.h"

namespace dovetail::train {
namespace {

nlohmann::json to_plain_json(const std::optional<StepMetrics>& metrics) {
  return metrics ? nlohmann::json::parse(to_json(*metrics).dump()) : nlohmann::json();
}

std::optional<StepMetrics> metrics_or_none(const nlohmann::json& state, const char* key) {
  if (!state.contains(key) || state[key].is_null()) return std::nullopt;
  return step_metrics_from_json(state[key]);
}

/// Converts "/data/mixture/0/weight" to "data.mixture.0.weight".
std::string dotted(std::string_view pointer) {
  std::string key(pointer.substr(1));
  std::replace(key.begin(), key.end(), '/', '.');
  return key;
}

/// A key whose values differ, with both values.
struct Difference {
  std::string key, stored, now;
};

/// Entries of a list of the config, by name.
using NamedEntries = std::vector<std::pair<std::string, nlohmann::json>>;

std::string joined(const nlohmann::json& words) {
  return fmt::format("{}", fmt::join(words.get<std::vector<std::string>>(), ","));
}

/// Returns the entries of `list`, a list in the section `section` of a config. Features are called
/// by their names, others by what they list. Each dense column is an entry of its own.
NamedEntries named_entries(const nlohmann::json& config, const char* section, const char* list) {
  NamedEntries entries;
  const auto add = [&](const std::string& name, const nlohmann::json& entry) {
    const auto same = std::ranges::count_if(
        entries, [&](const auto& other) { return other.first.starts_with(name + "#"); });
    const bool first =
        std::ranges::find(entries, name, &NamedEntries::value_type::first) == entries.end();
    entries.emplace_back(first ? name : fmt::format("{}#{}", name, same + 2), entry);
  };
  for (nlohmann::json entry : config.at(section).at(list)) {
    if (entry.contains("tables")) {
      add(joined(entry["tables"]), entry);
    } else if (std::string_view(list) == "dense") {
      const auto columns = entry["columns"].get<std::vector<std::string>>();
      entry.erase("columns");
      for (const std::string& column : columns) add(column, entry);
    } else {
      data::SparseConfig feature;
      feature.name = entry["name"];
      feature.columns = entry["columns"].get<std::vector<std::string>>();
      add(feature.feature_name(), entry);
    }
  }
  return entries;
}

/// Takes a list of named entries out of two configs and puts back, as objects, the entries that
/// both have. So they are compared by name. Returns what else differs: entries that only one config
/// has, and another order.
std::vector<Difference> compare_entries(nlohmann::json& stored, nlohmann::json& now,
                                        const char* section, const char* list) {
  const NamedEntries before = named_entries(stored, section, list),
                     after = named_entries(now, section, list);
  std::vector<Difference> result;
  const auto common = [&](const NamedEntries& of, const NamedEntries& others,
                          nlohmann::json& config, const auto& missing) {
    std::vector<std::string> names;
    auto& objects = config[section][list] = nlohmann::json::object();
    for (const auto& [name, entry] : of) {
      if (std::ranges::find(others, name, &NamedEntries::value_type::first) == others.end()) {
        missing(fmt::format("{}.{}.{}", section, list, name));
        continue;
      }
      names.push_back(name);
      objects[name] = entry;
    }
    return fmt::format("in the order {}", fmt::join(names, ", "));
  };
  const std::string order_before = common(
      before, after, stored, [&](const std::string& key) { result.push_back({key, "there", ""}); });
  const std::string order_now = common(
      after, before, now, [&](const std::string& key) { result.push_back({key, "", "there"}); });
  if (order_before != order_now)
    result.push_back({fmt::format("{}.{}", section, list), order_before, order_now});
  return result;
}

std::vector<Difference> differences(nlohmann::json stored, nlohmann::json now) {
  std::vector<Difference> result;
  for (const auto& [section, list] :
       {std::pair("rows", "dense"), std::pair("rows", "sparse"), std::pair("embedding", "override"),
        std::pair("embedding", "placement")})
    std::ranges::move(compare_entries(stored, now, section, list), std::back_inserter(result));
  std::map<std::string, std::pair<std::string, std::string>> values;
  const nlohmann::json flat_stored = stored.flatten(), flat_now = now.flatten();
  // An empty list is flattened to null, like an absent one.
  const auto text = [](const nlohmann::json& value) {
    return value.is_null() ? std::string() : value.dump();
  };
  for (const auto& [pointer, value] : flat_stored.items())
    values[dotted(pointer)].first = text(value);
  for (const auto& [pointer, value] : flat_now.items())
    values[dotted(pointer)].second = text(value);
  for (const auto& [key, value] : values) {
    if (value.first != value.second) result.push_back({key, value.first, value.second});
  }
  return result;
}

nlohmann::json json_of(RunConfig config) {
  return config_to_json([&](Section& s) { config.describe(s); });
}

StartedFrom started_from(const nlohmann::json& started) {
  return {.table_steps = started.value("table_steps", int64_t{0}),
          .updates_before = started.value("updates_before", std::map<std::string, int64_t>())};
}

bool starts_with_any(std::string_view key, std::initializer_list<std::string_view> prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](std::string_view p) { return key.starts_with(p); });
}

/// Returns true for all keys of [rows] except the files' location and keys that only affect time or
/// memory.
bool decides_which_rows(std::string_view key) {
  return key.starts_with("rows.") &&
         !starts_with_any(key, {"rows.files", "rows.threads", "rows.cache_bytes"});
}

/// Returns true for all keys of [images] except locations, the validation data and threads.
bool decides_how_images_are_seen(std::string_view key) {
  return key.starts_with("images.") &&
         !starts_with_any(key, {"images.train", "images.targets", "images.validation_targets",
                                "images.threads"}) &&
         key != "images.validation";
}

bool is_a_number_of_an_override(std::string_view key) {
  constexpr std::string_view kNumbers[] = {".lr", ".momentum", ".eps", ".weight_decay"};
  return key.starts_with("embedding.override.") &&
         (key.find(".betas") != std::string_view::npos ||
          std::ranges::any_of(kNumbers,
                              [&](std::string_view number) { return key.ends_with(number); }));
}

bool decides_what_is_trained(std::string_view key) {
  return (key.starts_with("embedding.override") && !is_a_number_of_an_override(key)) ||
         (key.starts_with("model.") && key != "model.preset" && key != "model.moe.load_scope" &&
          key != "model.moe.eval_capacity_factor") ||
         key == "run.seed" || key == "run.start_from" || key == "run.start_optimizer" ||
         key == "train.batch" || key == "train.init_noise" ||
         starts_with_any(key, {"precision.override.", "precision.recipes.", "embedding.optimizer",
                               "embedding.pooling"}) ||
         (key.starts_with("recommender.") && key != "recommender.grain") ||
         decides_which_rows(key) || key.starts_with("vision.") || decides_how_images_are_seen(key);
}

/// Returns true for keys that decide the order in which prepared text is read. The preparation
/// itself shows in the sha256. The location of the text does not matter.
bool mixes_the_data(std::string_view key) {
  return starts_with_any(key, {"data.mixture.", "data.phase."}) && !key.ends_with(".path");
}

bool changes_the_rest(std::string_view key) {
  constexpr std::string_view kOfRows[] = {
      "embedding.lr",           "embedding.momentum", "embedding.betas",   "embedding.eps",
      "embedding.weight_decay", "embedding.exchange", "embedding.transfer"};
  return starts_with_any(key, {"optimizer.", "schedule.", "parallel.dispatch", "parallel.combine",
                               "embedding.dynamic."}) ||
         is_a_number_of_an_override(key) || std::ranges::find(kOfRows, key) != std::end(kOfRows) ||
         key == "recommender.grain" || key == "model.moe.load_scope" || key == "train.steps" ||
         key == "train.clip" || key == "train.micro_batch" ||
         key == "train.checkpoint_activations" || key.starts_with("rows.files") ||
         key.starts_with("images.train") || key.starts_with("images.targets");
}

}  // namespace

nlohmann::json checkpoint_state(const RunState& state, const ResolvedRun& run,
                                const data::Tokenizer* tokenizer, int ranks) {
  return {{"config", json_of(run.config)},
          {"tokenizer", tokenizer == nullptr ? nlohmann::json() : tokenizer_state(*tokenizer)},
          {"data_sha256", run.data.sha256},
          {"precision", run.precision.name},
          {"attention", run.attention.name},
          {"ranks", ranks},
          {"seed", run.config.run.seed},
          {"data_position", {{"step", state.step}}},
          {"updates", state.updates},
          {"skipped_in_a_row", state.skipped_in_a_row},
          {"tokens", state.tokens},
          {"last", to_plain_json(state.last)},
          {"last_evaluated", to_plain_json(state.last_evaluated)},
          {"dense_scales", to_json(state.dense_scales)},
          {"shares", state.shares},
          {"resumed_from", state.resumed_from},
          {"started",
           {{"table_steps", state.started.table_steps},
            {"updates_before", state.started.updates_before}}}};
}

RunConfig stored_config(const nlohmann::json& state, const std::string& name) {
  RunConfig config;
  config_from_json([&](Section& s) { config.describe(s); }, state.at("config"), name);
  forget_unread_keys(config);
  return config;
}

nlohmann::json to_json(const std::vector<data::DenseScale>& scales) {
  auto list = nlohmann::json::array();
  for (const data::DenseScale& scale : scales)
    list.push_back(
        {{"column", scale.column}, {"mean", scale.mean}, {"deviation", scale.deviation}});
  return list;
}

std::vector<data::DenseScale> dense_scales(const nlohmann::json& state) {
  std::vector<data::DenseScale> scales;
  for (const nlohmann::json& scale : state.value("dense_scales", nlohmann::json::array()))
    scales.push_back({.column = scale.at("column"),
                      .mean = scale.at("mean"),
                      .deviation = scale.at("deviation")});
  return scales;
}

RunState run_state(const nlohmann::json& state, int64_t step) {
  return {.step = step,
          .updates = state.value("updates", int64_t{0}),
          .skipped_in_a_row = state.value("skipped_in_a_row", int64_t{0}),
          .tokens = state.value("tokens", int64_t{0}),
          .last = metrics_or_none(state, "last"),
          .last_evaluated = metrics_or_none(state, "last_evaluated"),
          .dense_scales = dense_scales(state),
          .shares = state.value("shares", std::vector<int64_t>()),
          .resumed_from = state.value("resumed_from", std::vector<int64_t>()),
          .started = started_from(state.value("started", nlohmann::json::object()))};
}

std::optional<std::string> stored_choice(const nlohmann::json& state, const char* key) {
  const std::string choice = state.value(key, "");
  return choice.empty() ? std::nullopt : std::optional(choice);
}

std::vector<std::string> check_same_run(const nlohmann::json& state, const ResolvedRun& run,
                                        int64_t step, int ranks) {
  const RunConfig& config = run.config;
  const nlohmann::json now = json_of(config);
  const bool same_text =
      !state.contains("data_sha256") || state["data_sha256"] == nlohmann::json(run.data.sha256);
  // A finished run would name files that it has not read. With rows.day it continues with another
  // day.
  const bool finished =
      step >= config.train.steps && config.train.steps > 0 && !config.rows.by_day();
  std::vector<std::string> refused, changed;
  for (const Difference& d :
       differences(json_of(stored_config(state, run.config.run.folder)), now)) {
    const std::string text =
        fmt::format("{} was {}, is {}", d.key, d.stored.empty() ? "absent" : d.stored,
                    d.now.empty() ? "absent" : d.now);
    const bool changes_data = mixes_the_data(d.key) || (!same_text && d.key.starts_with("data."));
    // Before the first step (imported weights), only the model and its weights are fixed.
    if (step == 0
            ? starts_with_any(d.key, {"model.", "recommender.", "vision.", "train.init_noise"})
            : decides_what_is_trained(d.key) || changes_data)
      refused.push_back(text);
    if (step > 0 && finished && d.key.starts_with("rows.files"))
      refused.push_back(text);
    else if (step > 0 && changes_the_rest(d.key))
      changed.push_back(text);
  }
  if (!same_text) {
    refused.push_back(
        fmt::format("the text was {}, is {} (sha256 of the prepared manifests)",
                    fmt::join(state["data_sha256"].get<std::vector<std::string>>(), " "),
                    fmt::join(run.data.sha256, " ")));
  }
  if (!refused.empty()) {
    throw UserError(fmt::format("{} holds another run at step {}: {}", run.config.run.folder, step,
                                fmt::join(refused, "; ")),
                    fmt::format("put these back to resume it, or begin a new run with another "
                                "run.name{}",
                                config.kind() != RunKind::kRecommender
                                    ? ""
                                    : fmt::format(" and run.start_from = \"{}\", which takes "
                                                  "tables and weights from this one by name",
                                                  config.folder().string())));
  }
  std::vector<std::string> warnings;
  if (!changed.empty())
    warnings.push_back(fmt::format("from step {} on: {}", step + 1, fmt::join(changed, "; ")));
  if (state.contains("ranks") && state["ranks"] != ranks) {
    warnings.push_back(fmt::format(
        "the run had {} ranks and now has {}: the same samples in the same order, other rounding",
        state["ranks"].get<int>(), ranks));
  }
  return warnings;
}

void load_on_all_ranks(Optimizer& optimizer, const std::map<std::string, at::Tensor>& tensors,
                       int64_t updates, comm::Group& group) {
  comm::on_rank_zero(group, "restoring the checkpoint", [&] { optimizer.load(tensors, updates); });
  if (group.size() == 1) return;
  std::map<std::string, at::Tensor> own = optimizer.tensors();
  for (auto& [name, tensor] : own) group.broadcast(tensor, 0);
  if (group.rank() != 0) optimizer.load(own, updates);
}

void restore(Optimizer& optimizer, const models::GPT& model, const ExpertParallel& parallel,
             const std::map<std::string, at::Tensor>& tensors, int64_t updates,
             comm::Group& group) {
  if (optimizer.sharded()) return optimizer.scatter(tensors, updates);
  std::map<std::string, at::Tensor> own = optimizer.tensors();
  // Imported weights have no moments, so the moments stay zero.
  const bool no_moments =
      comm::broadcast_json(
          group,
          std::ranges::none_of(
              tensors, [](const auto& item) { return item.first.starts_with("optimizer."); }))
          .get<bool>();
  if (no_moments)
    std::erase_if(own, [](const auto& item) { return item.first.starts_with("optimizer."); });
  const auto parts = parallel.scattered(model, own, tensors);
  comm::on_rank_zero(group, "restoring the checkpoint", [&] { optimizer.load(parts, updates); });
  if (group.size() == 1) return;
  for (auto& [name, tensor] : own) {
    if (group.rank() == 0 || !parts.contains(name)) continue;
    tensor.copy_(parts.at(name));
  }
  for (auto& [name, tensor] : own)
    if (!parallel.is_spread(name)) group.broadcast(tensor, 0);
  if (group.rank() != 0) optimizer.load(own, updates);
}

}  // namespace dovetail::train
