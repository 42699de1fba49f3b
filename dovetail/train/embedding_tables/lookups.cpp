#include "dovetail/train/embedding_tables/lookups.h"

#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "dovetail/base/byte_size.h"
#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/train/embedding_tables/optimizers.h"

namespace dovetail::train {
namespace {

/// Returns the features of [rows] that a model reads as bags, and the features that it reads as
/// sequences. A feature without pooling appears once for each place of its bag.
std::pair<std::vector<int64_t>, std::vector<int64_t>> split_features(const RunConfig& config) {
  std::vector<int64_t> singles, sequences;
  for (int64_t f = 0; f < std::ssize(config.rows.sparse); ++f) {
    const data::SparseConfig& feature = config.rows.sparse[static_cast<size_t>(f)];
    if (models::reads_sequences(config.recommender) && feature.sequence) {
      sequences.push_back(f);
    } else {
      singles.insert(singles.end(), static_cast<size_t>(feature.pools() ? 1 : feature.max_length),
                     f);
    }
  }
  return {std::move(singles), std::move(sequences)};
}

/// Returns the feature whose table `feature` shares, or -1.
int64_t owner_of(const data::RowsConfig& rows, const data::SparseConfig& feature) {
  return feature.table.empty() ? -1 : rows.feature_index(feature.table);
}

int64_t place_of(const std::vector<int64_t>& features, int64_t feature) {
  const auto found = std::ranges::find(features, feature);
  return found == features.end() ? -1 : found - features.begin();
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(' ');
  return first == std::string_view::npos
             ? ""
             : text.substr(first, text.find_last_not_of(' ') - first + 1);
}

models::RecommenderInputs::CoAction parse_co_action(const std::string& text,
                                                    const data::RowsConfig& rows,
                                                    const std::vector<int64_t>& singles,
                                                    const std::vector<int64_t>& sequences) {
  const size_t star = std::min(text.find('*'), text.size());
  const std::string_view item = trimmed(std::string_view(text).substr(0, star)),
                         sequence = trimmed(
                             std::string_view(text).substr(std::min(star + 1, text.size())));
  const models::RecommenderInputs::CoAction pair = {
      .item = place_of(singles, rows.feature_index(item)),
      .sequence = place_of(sequences, rows.feature_index(sequence))};
  if (pair.item < 0 || pair.sequence < 0)
    throw UserError(
        fmt::format(
            "recommender.co_action: \"{}\" is no feature times a sequence of [[rows.sparse]]",
            text),
        "for example co_action = [\"item * clicked_items\"]");
  const data::SparseConfig& of_item =
      rows.sparse[static_cast<size_t>(singles[static_cast<size_t>(pair.item)])];
  user_check(of_item.pools(),
             "recommender.co_action: \"{}\" has pooling = \"none\", but a micro-MLP belongs to one "
             "id; give it another pooling",
             of_item.feature_name());
  return pair;
}

int64_t dim_of(const RunConfig& config, int64_t feature) {
  const int64_t own = config.rows.sparse[static_cast<size_t>(feature)].dim;
  return own == 0 ? config.recommender.dim : own;
}

/// Returns the pooling of a feature's table. A feature without pooling looks up bags of one id, for
/// which each pooling gives the same.
const std::string& pooling_of(const RunConfig& config, int64_t feature) {
  const data::SparseConfig& from = config.rows.sparse[static_cast<size_t>(feature)];
  return from.pooling.empty() || !from.pools() ? config.embedding.pooling : from.pooling;
}

/// Throws UserError unless features that are compared, or that form an event, have the same
/// dimension.
void check_dims(const RunConfig& config, const std::vector<int64_t>& sequences) {
  const bool compares = config.recommender.model == "dlrm" || config.recommender.model == "deepfm";
  for (int64_t f = 0; f < std::ssize(config.rows.sparse); ++f) {
    const data::SparseConfig& feature = config.rows.sparse[static_cast<size_t>(f)];
    user_check(
        dim_of(config, f) == config.recommender.dim || (!compares && place_of(sequences, f) < 0),
        "rows.sparse.{}: dim = {}, but recommender.model = \"{}\" compares it with what has "
        "recommender.dim = {}; leave it out",
        feature.feature_name(), feature.dim, config.recommender.model, config.recommender.dim);
  }
}

/// Throws UserError unless an event, and the candidate that it is compared with, are one embedding
/// each.
void check_unpooled(const RunConfig& config, const std::vector<int64_t>& sequences) {
  for (const int64_t f : sequences) {
    const data::SparseConfig& feature = config.rows.sparse[static_cast<size_t>(f)];
    user_check(feature.pools(),
               "rows.sparse.{}: pooling = \"none\" does nothing, for recommender.model = \"{}\" "
               "reads each event of a sequence; leave it out",
               feature.feature_name(), config.recommender.model);
    const int64_t owner = owner_of(config.rows, feature);
    user_check(owner < 0 || config.rows.sparse[static_cast<size_t>(owner)].pools(),
               "rows.sparse.{}: pooling = \"none\" gives several embeddings, but recommender.model "
               "= \"{}\" compares the events of \"{}\" with one; leave it out",
               feature.table, config.recommender.model, feature.feature_name());
  }
}

/// Returns, for each sample of a batch, the beginning of its ids of a feature.
const int64_t* offsets_of(const data::RowBatch& batch, int64_t feature) {
  return batch.offsets.const_data_ptr<int64_t>() + feature * batch.dense.size(0);
}

}  // namespace

models::RecommenderInputs recommender_inputs(const RunConfig& config) {
  const auto [singles, sequences] = split_features(config);
  check_dims(config, sequences);
  check_unpooled(config, sequences);
  models::RecommenderInputs inputs = {.dense = config.rows.num_dense(),
                                      .sparse = std::ssize(singles),
                                      .tasks = std::ssize(config.rows.label)};
  for (const int64_t f : singles) inputs.dims.push_back(dim_of(config, f));
  for (const int64_t f : sequences) {
    const data::SparseConfig& feature = config.rows.sparse[static_cast<size_t>(f)];
    inputs.sequences.push_back({place_of(singles, owner_of(config.rows, feature))});
    inputs.length = feature.max_length;
  }
  if (config.recommender.model != "can") return inputs;
  for (const std::string& text : config.recommender.co_action)
    inputs.co_actions.push_back(parse_co_action(text, config.rows, singles, sequences));
  if (!inputs.co_actions.empty()) return inputs;
  for (int64_t s = 0; s < std::ssize(inputs.sequences); ++s)
    if (const int64_t item = inputs.sequences[static_cast<size_t>(s)].target; item >= 0)
      inputs.co_actions.push_back({.item = item, .sequence = s});
  return inputs;
}

RecommenderLookups::RecommenderLookups(const RunConfig& config)
    : config_(config), inputs_(recommender_inputs(config)) {
  pack_.seed = static_cast<uint64_t>(config.run.seed);
  pack_.row_dtype = embedding::parse_row_dtype(config.embedding.row_dtype);
  std::tie(singles_, sequences_) = split_features(config);
  const auto tables = [&](const char* suffix, bool wide) {
    std::vector<int64_t> table_of(config.rows.sparse.size(), -1);
    for (size_t f = 0; f < table_of.size(); ++f)
      if (const data::SparseConfig& feature = config.rows.sparse[f]; feature.table.empty())
        table_of[f] = add_table(feature.feature_name() + suffix, static_cast<int64_t>(f),
                                wide ? 1 : dim_of(config, static_cast<int64_t>(f)));
    for (size_t f = 0; f < table_of.size(); ++f)
      if (const int64_t owner = owner_of(config.rows, config.rows.sparse[f]); owner >= 0)
        table_of[f] = table_of[static_cast<size_t>(owner)];
    for (int64_t i = 0; i < std::ssize(singles_); ++i) {
      const int64_t f = singles_[static_cast<size_t>(i)];
      const bool pools = config.rows.sparse[static_cast<size_t>(f)].pools();
      add({.feature = f,
           .what = pools ? What::kBag : What::kEvent,
           .event = i - place_of(singles_, f)},
          table_of[static_cast<size_t>(f)]);
    }
    return table_of;
  };
  const std::vector<int64_t> table_of = tables("", false);
  if (models::has_wide_part(config.recommender)) tables(".wide", true);
  add_sequences(table_of);
  add_co_actions();
  are_features_ = are_features();
  set_optimizers(config.embedding, pack_);
}

bool RecommenderLookups::are_features() const {
  for (int64_t i = 0; i < size(); ++i) {
    const Lookup& lookup = lookups_[static_cast<size_t>(i)];
    if (lookup.what != What::kBag || lookup.feature != i) return false;
  }
  return size() == std::ssize(config_.rows.sparse);
}

int64_t RecommenderLookups::add_table(const std::string& name, int64_t feature, int64_t dim) {
  const data::SparseConfig& from = config_.rows.sparse[static_cast<size_t>(feature)];
  pack_.tables.push_back(
      {.name = name,
       .rows = from.hashed() ? from.max_rows : from.num_rows,
       .dim = dim,
       .pooling = embedding::parse_pooling(pooling_of(config_, feature)),
       .hashed = from.hashed(),
       .max_bytes = from.max_bytes.empty() ? 0 : parse_byte_size(from.max_bytes).value()});
  table_feature_.push_back(feature);
  return std::ssize(pack_.tables) - 1;
}

void RecommenderLookups::add(const Lookup& lookup, int64_t table) {
  lookups_.push_back(lookup);
  pack_.feature_table.push_back(table);
}

void RecommenderLookups::add_sequences(const std::vector<int64_t>& table_of) {
  first_event_ = size();
  for (const int64_t f : sequences_)
    for (int64_t l = 0; l < inputs_.length; ++l)
      add({.feature = f, .what = What::kEvent, .event = l}, table_of[static_cast<size_t>(f)]);
  first_negative_ = size();
  if (!models::has_negatives(config_.recommender)) return;
  for (const int64_t f : sequences_)
    for (int64_t l = 1; l < inputs_.length; ++l)
      add({.feature = f, .what = What::kNegative, .event = l}, table_of[static_cast<size_t>(f)]);
}

void RecommenderLookups::add_co_actions() {
  const models::RecommenderConfig& config = config_.recommender;
  const auto names = [&](const models::RecommenderInputs::CoAction& pair) {
    const int64_t item = singles_[static_cast<size_t>(pair.item)],
                  sequence = sequences_[static_cast<size_t>(pair.sequence)];
    return fmt::format("{}*{}", config_.rows.sparse[static_cast<size_t>(item)].feature_name(),
                       config_.rows.sparse[static_cast<size_t>(sequence)].feature_name());
  };
  for (const auto& pair : inputs_.co_actions) {
    const int64_t item = singles_[static_cast<size_t>(pair.item)];
    add({.feature = item},
        add_table(names(pair) + ".micro", item, models::micro_parameters(config)));
  }
  for (const auto& pair : inputs_.co_actions) {
    const int64_t sequence = sequences_[static_cast<size_t>(pair.sequence)];
    const int64_t table = add_table(names(pair) + ".input", sequence, config.micro.front());
    for (int64_t l = 0; l < inputs_.length; ++l)
      add({.feature = sequence, .what = What::kEvent, .event = l}, table);
  }
}

bool RecommenderLookups::same_event(const data::RowBatch& batch, const Event& a,
                                    const Event& b) const {
  const auto* const values = batch.values.const_data_ptr<int64_t>();
  return std::ranges::all_of(sequences_, [&](int64_t f) {
    const int64_t* begin = offsets_of(batch, f);
    return values[begin[a.sample] + a.place] == values[begin[b.sample] + b.place];
  });
}

std::vector<RecommenderLookups::Event> RecommenderLookups::draw_negatives(
    const data::RowBatch& batch, uint64_t key) const {
  const int64_t samples = batch.dense.size(0), length = inputs_.length;
  const int64_t* begin = offsets_of(batch, sequences_.front());
  std::vector<Event> events;
  for (int64_t b = 0; b < samples; ++b)
    for (int64_t l = 0; l < begin[b + 1] - begin[b]; ++l) events.push_back({b, l});
  std::vector<Event> drawn(static_cast<size_t>(samples * length), Event{.sample = -1});
  for (const Event& event : events) {
    const auto index = static_cast<uint64_t>(event.sample * length + event.place);
    const Event& other = events[random_below(key, RandomStream::kNegatives, index, events.size())];
    if (!same_event(batch, event, other)) drawn[index] = other;
  }
  return drawn;
}

embedding::Jagged RecommenderLookups::ids(const data::RowBatch& batch,
                                          std::optional<uint64_t> negatives_key) const {
  const int64_t samples = batch.dense.size(0);
  if (are_features_)
    return {.values = batch.values,
            .offsets = batch.offsets,
            .weights = batch.weights,
            .features = size(),
            .samples = samples};
  std::vector<Event> negatives;
  if (negatives_key && models::has_negatives(config_.recommender))
    negatives = draw_negatives(batch, *negatives_key);
  std::vector<int64_t> taken;  // indices into batch.values
  embedding::Jagged ids = {.values = {},
                           .offsets = at::empty({size() * samples + 1}, at::kLong),
                           .weights = {},
                           .features = size(),
                           .samples = samples};
  auto* end = ids.offsets.mutable_data_ptr<int64_t>();
  *end = 0;
  for (const Lookup& lookup : lookups_) {
    const int64_t* begin = offsets_of(batch, lookup.feature);
    for (int64_t b = 0; b < samples; ++b) {
      if (lookup.what == What::kBag) {
        for (int64_t i = begin[b]; i < begin[b + 1]; ++i) taken.push_back(i);
      } else if (lookup.what == What::kEvent) {
        if (begin[b] + lookup.event < begin[b + 1]) taken.push_back(begin[b] + lookup.event);
      } else if (!negatives.empty()) {
        const Event& drawn = negatives[static_cast<size_t>(b * inputs_.length + lookup.event)];
        if (drawn.sample >= 0) taken.push_back(begin[drawn.sample] + drawn.place);
      }
      *++end = std::ssize(taken);
    }
  }
  const at::Tensor places = at::from_blob(taken.data(), {std::ssize(taken)}, at::kLong);
  ids.values = batch.values.index_select(0, places);
  if (batch.weights.defined()) ids.weights = batch.weights.index_select(0, places);
  return ids;
}

/// Returns (samples, count) bool: true where a sample's bag of lookups [first, first + count) has
/// an id.
at::Tensor RecommenderLookups::filled(const embedding::Jagged& ids, int64_t first,
                                      int64_t count) const {
  const at::Tensor begin = ids.offsets.narrow(0, first * ids.samples, count * ids.samples),
                   end = ids.offsets.narrow(0, first * ids.samples + 1, count * ids.samples);
  return end.gt(begin).view({count, ids.samples}).t();
}

at::Tensor RecommenderLookups::mask(const embedding::Jagged& ids) const {
  return sequences_.empty() ? at::Tensor() : filled(ids, first_event_, inputs_.length);
}

at::Tensor RecommenderLookups::negative_mask(const embedding::Jagged& ids) const {
  return models::has_negatives(config_.recommender)
             ? filled(ids, first_negative_, inputs_.length - 1)
             : at::Tensor();
}

models::RecommenderBatch RecommenderLookups::model_input(const at::Tensor& dense,
                                                         const embedding::Jagged& ids,
                                                         at::Tensor embedded) const {
  return {.dense = dense,
          .embedded = std::move(embedded),
          .mask = mask(ids),
          .negative_mask = negative_mask(ids)};
}

}  // namespace dovetail::train
