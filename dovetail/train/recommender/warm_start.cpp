#include "dovetail/train/recommender/warm_start.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/models/recommender.h"

namespace dovetail::train {
namespace {

using Names = std::vector<std::string>;

/// Returns the names of the dense columns, with the transform that decides what a model reads.
Names dense_inputs(const RunConfig& config) {
  Names names;
  for (const data::DenseConfig& entry : config.rows.dense)
    for (const std::string& column : entry.columns)
      names.push_back(fmt::format("{} ({})", column, entry.transform));
  return names;
}

/// Returns true if the model reads a feature event by event.
bool is_sequence(const RunConfig& config, const data::SparseConfig& feature) {
  return feature.sequence && models::reads_sequences(config.recommender);
}

/// Returns the names of the sparse features that the model reads as bags. If embeddings of a bag
/// are side by side, the name has their number.
Names bag_inputs(const RunConfig& config) {
  Names names;
  for (const data::SparseConfig& feature : config.rows.sparse)
    if (!is_sequence(config, feature))
      names.push_back(feature.pools()
                          ? feature.feature_name()
                          : fmt::format("{} [{}]", feature.feature_name(), feature.max_length));
  return names;
}

/// Returns the names of the sequences, each with the feature that it is compared with.
Names sequence_inputs(const RunConfig& config) {
  Names names;
  for (const data::SparseConfig& feature : config.rows.sparse)
    if (is_sequence(config, feature))
      names.push_back(fmt::format("{} of {}", feature.feature_name(), feature.table));
  return names;
}

using Shapes = std::map<std::string, std::vector<int64_t>>;

Shapes shapes_of(const RunConfig& config, const models::RecommenderInputs& inputs) {
  Shapes shapes;
  for (const auto& item :
       models::make_recommender(config.recommender, inputs, c10::kMeta)->named_parameters())
    shapes[item.key()] = item.value().sizes().vec();
  return shapes;
}

/// Returns the parameters that would read other inputs than in the other run, whatever their shape.
/// A parameter reads the inputs of a kind if one more input of that kind would change its shape.
std::set<std::string> with_other_inputs(const RunConfig& now, const RunConfig& before) {
  const models::RecommenderInputs inputs = recommender_inputs(now);
  const Shapes shapes = shapes_of(now, inputs);
  std::set<std::string> names;
  const auto add_readers = [&](const models::RecommenderInputs& more) {
    const Shapes larger = shapes_of(now, more);
    for (const auto& [name, shape] : shapes)
      if (larger.at(name) != shape) names.insert(name);
  };
  if (dense_inputs(now) != dense_inputs(before)) {
    models::RecommenderInputs more = inputs;
    ++more.dense;
    add_readers(more);
  }
  if (bag_inputs(now) != bag_inputs(before)) {
    models::RecommenderInputs more = inputs;
    ++more.sparse;
    more.dims.push_back(now.recommender.dim);
    add_readers(more);
  }
  if (sequence_inputs(now) != sequence_inputs(before)) {
    models::RecommenderInputs more = inputs;
    more.sequences.emplace_back();
    if (!more.co_actions.empty()) more.co_actions.push_back(more.co_actions.front());
    add_readers(more);
  }
  // Model mmoe: task k of the other run has another label.
  for (size_t k = 0; k < std::min(now.rows.label.size(), before.rows.label.size()); ++k)
    for (const char* part : {"gate", "task", "head"})
      for (const auto& [name, shape] : shapes)
        if (now.rows.label[k] != before.rows.label[k] &&
            name.starts_with(fmt::format("{}{}.", part, k)))
          names.insert(name);
  return names;
}

/// Returns why a table cannot keep the rows of the other run's table; empty if it can.
std::string reason_against(const embedding::TableSpec& before, const data::SparseConfig& ids_before,
                           const embedding::TableSpec& now, const data::SparseConfig& ids) {
  if (before.dim != now.dim) return fmt::format("its dim was {}, is {}", before.dim, now.dim);
  if (ids_before.ids != ids.ids)
    return fmt::format("its ids were \"{}\", are \"{}\"", ids_before.ids, ids.ids);
  if (before.hashed)
    return now.hashed
               ? ""
               : fmt::format("it had max_rows, has num_rows = {}: its ids have no fixed rows",
                             now.rows);
  if (now.hashed && ids.ids == "hash")
    return fmt::format(
        "it had num_rows = {}, has max_rows: the keys of its hashed ids are not known",
        before.rows);
  if (now.rows < before.rows)
    return fmt::format("it had num_rows = {}, has {} = {}: rows would be lost", before.rows,
                       now.hashed ? "max_rows" : "num_rows", now.rows);
  if (ids.ids == "hash" && now.rows % before.rows != 0)
    return fmt::format(
        "it had num_rows = {}, has {}: hashed ids would read rows of others. Use a multiple of {}",
        before.rows, now.rows, before.rows);
  return "";
}

std::string text_of(const std::vector<int64_t>& shape) {
  return fmt::format("{}", fmt::join(shape, "x"));
}

}  // namespace

WarmStart::WarmStart(const RunConfig& config, const RecommenderLookups& lookups,
                     const io::StoredCheckpoint* from, comm::Group& group)
    : config_(config) {
  const std::string& name = config.run.start_from;
  const nlohmann::json found = comm::broadcast_json(
      group, from == nullptr ? nlohmann::json()
                             : nlohmann::json{{"step", from->step()}, {"state", from->state()}});
  const nlohmann::json& state = found.at("state");
  user_check(state.is_object() && state.contains("config"),
             "run.start_from = \"{}\" is not a checkpoint of a training run", name);
  other_ = stored_config(state, name);
  if (other_.kind() != RunKind::kRecommender)
    throw UserError(fmt::format("run.start_from = \"{}\" holds a {}, but this run trains a {}",
                                name, other_.kind_in_words(), config.kind_in_words()),
                    "give the folder of a recommender's run");
  state_ = run_state(state, found.at("step").get<int64_t>());
  match_tables(RecommenderLookups(other_), lookups);
}

void WarmStart::match_tables(const RecommenderLookups& before, const RecommenderLookups& now) {
  stored_.spec = before.pack();
  stored_.steps = state_.started.table_steps + state_.step;
  std::vector<std::string> refused;
  std::set<int64_t> used;
  for (int64_t t = 0; t < std::ssize(now.pack().tables); ++t) {
    const embedding::TableSpec& table = now.pack().tables[static_cast<size_t>(t)];
    const auto found =
        std::ranges::find(before.pack().tables, table.name, &embedding::TableSpec::name);
    TableSource& source = stored_.sources.emplace_back();
    if (found == before.pack().tables.end()) {
      new_tables_.push_back(table.name);
      continue;
    }
    source.table = found - before.pack().tables.begin();
    used.insert(source.table);
    const std::string reason =
        before.pack().row_dtype != now.pack().row_dtype
            ? fmt::format("embedding.row_dtype was \"{}\", is \"{}\"",
                          embedding::name(before.pack().row_dtype),
                          embedding::name(now.pack().row_dtype))
            : reason_against(*found, before.feature_of(source.table), table, now.feature_of(t));
    if (!reason.empty()) {
      refused.push_back(fmt::format("table \"{}\": {}", table.name, reason));
      continue;
    }
    loaded_tables_.push_back(table.name);
    if (now.feature_of(t).ids == "hash" && !table.hashed) source.copies = table.rows / found->rows;
    const embedding::OptimizerKind kind = optimizer_of(now.pack(), t).kind,
                                   other = optimizer_of(before.pack(), source.table).kind;
    source.state = config_.run.start_optimizer == "keep" && kind == other;
    if (table.hashed != found->hashed)
      changed_tables_.push_back({table.name, fmt::format("its {} rows became keys, at most {}",
                                                         found->rows, table.rows)});
    else if (!table.hashed && table.rows != found->rows)
      changed_tables_.push_back(
          {table.name, source.copies > 1
                           ? fmt::format("its {} rows became {}, each id with the row that it had",
                                         found->rows, table.rows)
                           : fmt::format("its {} rows became {}", found->rows, table.rows)});
    if (kind != other)
      changed_tables_.push_back(
          {table.name, fmt::format("its optimizer was {}, is {}: new state", embedding::name(other),
                                   embedding::name(kind))});
  }
  for (int64_t t = 0; t < std::ssize(before.pack().tables); ++t)
    if (!used.contains(t))
      unread_tables_.push_back(before.pack().tables[static_cast<size_t>(t)].name);
  if (!refused.empty())
    throw UserError(fmt::format("run.start_from = \"{}\": {}", config_.run.start_from,
                                fmt::join(refused, "; ")),
                    "put these back, or give the feature another name (rows.sparse.name) to begin "
                    "its table anew");
  if (loaded_tables_.empty() && !new_tables_.empty())
    throw UserError(
        fmt::format("run.start_from = \"{}\": its tables are called {}, and the tables of this "
                    "run {}",
                    config_.run.start_from, fmt::join(unread_tables_, ", "),
                    fmt::join(new_tables_, ", ")),
        "name another run, or give features the names that they had");
}

std::vector<std::optional<data::DenseScale>> WarmStart::scales() const {
  // The statistics of a column depend on whether its logarithm is taken.
  const auto columns = [](const RunConfig& config) {
    std::vector<std::pair<std::string, bool>> all;
    for (const data::DenseConfig& entry : config.rows.dense)
      for (const std::string& column : entry.columns)
        all.emplace_back(column, entry.transform == "log1p");
    return all;
  };
  data::check_scales(other_.rows, state_.dense_scales, config_.run.start_from);
  const auto before = columns(other_);
  std::vector<std::optional<data::DenseScale>> scales;
  for (const auto& column : columns(config_)) {
    const auto found = std::ranges::find(before, column);
    scales.push_back(
        found == before.end()
            ? std::nullopt
            : std::optional(state_.dense_scales[static_cast<size_t>(found - before.begin())]));
  }
  return scales;
}

std::map<std::string, at::Tensor> WarmStart::dense_tensors(const Optimizer& optimizer,
                                                           const io::StoredCheckpoint& from) {
  const std::string model = "model.";
  std::map<std::string, at::Tensor> tensors = optimizer.tensors();
  const std::vector<std::string> stored = from.names();
  const std::set<std::string> other_inputs = with_other_inputs(config_, other_);
  for (const auto& [key, own] : optimizer.tensors()) {
    if (!key.starts_with(model)) continue;
    const std::string name = key.substr(model.size());
    if (!std::ranges::binary_search(stored, key)) {
      new_parameters_.push_back({name, "the other run has none"});
      continue;
    }
    const std::vector<int64_t> shape = from.links().back().files.at(key)->shape(key);
    if (own.sizes() != shape) {
      new_parameters_.push_back({name, fmt::format("its shape was {}, is {}", text_of(shape),
                                                   text_of(own.sizes().vec()))});
      continue;
    }
    if (other_inputs.contains(name)) {
      new_parameters_.push_back({name, "it reads other inputs, or the same in another order"});
      continue;
    }
    loaded_parameters_.push_back(name);
    tensors[key] = from.read(key);
    if (config_.run.start_optimizer != "keep") continue;
    for (const char* moment : {"optimizer.m.", "optimizer.v."})
      tensors[moment + name] = from.read(moment + name);
  }
  for (const std::string& key : stored)
    if (key.starts_with(model) && !tensors.contains(key))
      unread_parameters_.push_back(key.substr(model.size()));
  return tensors;
}

void WarmStart::load(Optimizer& optimizer, embedding::DistributedTables& tables,
                     const io::StoredCheckpoint* from, comm::Group& group) {
  const bool keep = config_.run.start_optimizer == "keep";
  const int64_t updates = keep ? state_.updates : 0;
  std::map<std::string, at::Tensor> dense;
  comm::on_rank_zero(group, "starting from another run", [&] {
    dense = dense_tensors(optimizer, *from);
    if (!keep) return;
    for (const Note& note : new_parameters_) started_.updates_before[note.name] = updates;
    for (const std::string& name : loaded_parameters_)
      if (const auto known = state_.started.updates_before.find(name);
          known != state_.started.updates_before.end())
        started_.updates_before.insert(*known);
  });
  started_.updates_before =
      comm::broadcast_json(group, started_.updates_before).get<std::map<std::string, int64_t>>();
  started_.table_steps = stored_.steps;
  load_on_all_ranks(optimizer, dense, updates, group);
  optimizer.set_beginnings(started_.updates_before);
  load_tables(tables, stored_, from, group);
  tables.set_steps(updates, started_.table_steps);
}

nlohmann::ordered_json WarmStart::record() const {
  const auto notes = [](const std::vector<Note>& all) {
    auto list = nlohmann::ordered_json::array();
    for (const Note& note : all) list.push_back({{"name", note.name}, {"why", note.why}});
    return list;
  };
  return {{"from", config_.run.start_from},
          {"step", state_.step},
          {"optimizer", config_.run.start_optimizer},
          {"tables",
           {{"loaded", loaded_tables_},
            {"changed", notes(changed_tables_)},
            {"new", new_tables_},
            {"left_out", unread_tables_}}},
          {"parameters",
           {{"loaded", loaded_parameters_},
            {"new", notes(new_parameters_)},
            {"left_out", unread_parameters_}}}};
}

std::vector<std::string> WarmStart::lines() const {
  std::vector<std::string> lines = {fmt::format(
      "start from {} at step {}: {} of {} tables and {} of {} dense parameters, {} optimizer state",
      config_.run.start_from, state_.step, loaded_tables_.size(), stored_.sources.size(),
      loaded_parameters_.size(), loaded_parameters_.size() + new_parameters_.size(),
      config_.run.start_optimizer == "keep" ? "with" : "without")};
  const auto add = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) lines.push_back(fmt::format("  {}: {}", what, fmt::join(names, ", ")));
  };
  add("new tables", new_tables_);
  for (const Note& note : changed_tables_)
    lines.push_back(fmt::format("  table {}: {}", note.name, note.why));
  add("tables left out", unread_tables_);
  for (const Note& note : new_parameters_)
    lines.push_back(fmt::format("  new parameter {}: {}", note.name, note.why));
  add("parameters left out", unread_parameters_);
  return lines;
}

}  // namespace dovetail::train
