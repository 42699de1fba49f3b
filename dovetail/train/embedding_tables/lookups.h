#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dovetail/data/rows/row_loader.h"
#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/table.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {

/// Returns the sizes of the model's input, from [rows] and [recommender]: columns, dimensions,
/// sequences, tasks. Throws UserError if an entry of recommender.co_action is not the product of a
/// feature and a sequence. Example: "item * clicked_items".
models::RecommenderInputs recommender_inputs(const RunConfig& config);

/// Embedding lookups that a model needs for each sample. A lookup reads the table rows of a list of
/// ids (bag) and pools them to one row. A sequence is a feature that lists a user's events, such as
/// clicks: one id per event. The ids at position i of all sequences describe the same event.
///
/// In the simplest case each sparse feature of [rows] has one lookup, for its bag. Other cases:
///
/// - A feature with pooling = "none" has one lookup for each position of its bag, with one id.
/// - If the model has a wide part, all lookups named so far are repeated in tables of dimension 1.
/// - A sequence that the model reads event by event has one lookup for each position, with one id.
/// - If the model has negatives (see `ids`), each event from the second on has one more lookup, of
///   its negative.
/// - A co-action (item times sequence) adds one lookup of the item and one for each event.
///
/// A sample with fewer ids than positions has no id in the remaining lookups: their rows are zero.
/// Lookups are in the order of models::EmbeddedColumns. In embedding::PackSpec and
/// embedding::Jagged, each lookup is called a feature.
class RecommenderLookups {
 public:
  explicit RecommenderLookups(const RunConfig& config);

  /// Returns the tables, and for each lookup the index of its table. A feature has a table of its
  /// own, unless it shares the table of another feature. Further tables are "<feature>.wide" (wide
  /// part) and, for co-actions, "<item>*<sequence>.micro" and "<item>*<sequence>.input". A ".micro"
  /// row holds the weights of a small MLP, an ".input" row an input of this MLP.
  const embedding::PackSpec& pack() const { return pack_; }
  /// Returns the feature of rows.sparse that decides the rows of a table: their number, and how an
  /// id becomes a row.
  const data::SparseConfig& feature_of(int64_t table) const {
    const int64_t feature = table_feature_[static_cast<size_t>(table)];
    return config_.rows.sparse[static_cast<size_t>(feature)];
  }
  /// Returns the number of lookups per sample.
  int64_t size() const { return static_cast<int64_t>(lookups_.size()); }

  /// Returns the ids of a batch for all lookups. If there is exactly one lookup per feature, for
  /// its whole bag, the result shares the tensors of `batch`.
  ///
  /// If the model has negatives and `negatives_key` is given, each event from the second on gets a
  /// negative. The negative is another event; training learns to distinguish the two. Rules:
  ///
  /// - The negative is drawn from all events of `batch`.
  /// - If the drawn event has the same ids in all sequences, the event gets no negative.
  /// - The draw depends only on the key and on the rows of this rank. So `batch` must have all of
  ///   these rows: it is not yet cut into micro-batches.
  embedding::Jagged ids(const data::RowBatch& batch,
                        std::optional<uint64_t> negatives_key = std::nullopt) const;

  /// Returns (samples, length) bool: true at [b, i] if sample b of `ids` has an event at position
  /// i. Undefined tensor if the model has no sequences.
  at::Tensor mask(const embedding::Jagged& ids) const;
  /// Returns (samples, length - 1) bool: true at [b, i] if the event of sample b at position i + 1
  /// has a negative. Undefined tensor if the model has no negatives.
  at::Tensor negative_mask(const embedding::Jagged& ids) const;

  /// Returns the input of the model for samples: their dense features, the pooled rows `embedded`
  /// of their `ids`, and the masks.
  models::RecommenderBatch model_input(const at::Tensor& dense, const embedding::Jagged& ids,
                                       at::Tensor embedded) const;

 private:
  /// Ids that a lookup reads. kBag: all ids of a bag. kEvent: the id at one position of a sequence,
  /// or of a bag that is not pooled. kNegative: the id of an event's negative.
  enum class What { kBag, kEvent, kNegative };
  struct Lookup {
    int64_t feature = 0;  ///< index into rows.sparse
    What what = What::kBag;
    /// For kEvent and kNegative: position of the event in the sequence, or of the id in the bag.
    int64_t event = 0;
  };
  /// Event of a batch: index of its sample, and its position `place` in the sample's sequences.
  struct Event {
    int64_t sample = 0, place = 0;
  };

  int64_t add_table(const std::string& name, int64_t feature, int64_t dim);
  void add(const Lookup& lookup, int64_t table);
  void add_sequences(const std::vector<int64_t>& table_of);
  void add_co_actions();
  /// Returns the negatives of a batch. Element sample * length + place belongs to the event at
  /// `place` of `sample`. If this event has no negative, the element's `sample` is -1.
  std::vector<Event> draw_negatives(const data::RowBatch& batch, uint64_t key) const;
  /// Returns true if two events have the same ids in all sequences.
  bool same_event(const data::RowBatch& batch, const Event& a, const Event& b) const;
  /// Returns true if there is exactly one lookup per feature, in order, which reads its whole bag.
  bool are_features() const;
  /// Returns (samples, count) bool: true where lookups [first, first + count) of a sample have an
  /// id.
  at::Tensor filled(const embedding::Jagged& ids, int64_t first, int64_t count) const;

  RunConfig config_;
  models::RecommenderInputs inputs_;
  embedding::PackSpec pack_;
  std::vector<int64_t> table_feature_;  ///< feature of each table: feature_of
  std::vector<Lookup> lookups_;
  /// Indices into rows.sparse. `sequences_`: features that the model reads as sequences.
  /// `singles_`: all other features. A feature with pooling = "none" is in `singles_` once for each
  /// position of its bag.
  std::vector<int64_t> singles_, sequences_;
  /// Indices into `lookups_`: first lookup of an event in a sequence, and first lookup of a
  /// negative.
  int64_t first_event_ = 0, first_negative_ = 0;
  bool are_features_ = false;  ///< result of are_features()
};

}  // namespace dovetail::train
