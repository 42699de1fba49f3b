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

/// Embedding lookups that a model needs for each sample. A lookup reads the rows of one bag of ids
/// from one table and pools them. In the simplest case each sparse feature of [rows] is one lookup.
/// Other cases:
///
/// - A model with a wide part looks up each feature once more, in a table of dimension 1.
/// - Each event of a sequence is a lookup of its own, with one id. An event, such as a click, is
///   position i of all sequences of a sample.
/// - Each place in the bag of a feature with pooling = "none" is a lookup of its own, with one id.
/// - If a sample has no event at a place, the lookup has no id, and its pooled row is zero.
///
/// Lookups are in the order of models::EmbeddedColumns. The tables call each lookup a feature
/// (PackSpec, Jagged).
class RecommenderLookups {
 public:
  explicit RecommenderLookups(const RunConfig& config);

  /// Returns the tables, and the table of each lookup. A feature has a table of its dim unless it
  /// shares another feature's table. Further tables are "<feature>.wide", "<item>*<sequence>.micro"
  /// and "<item>*<sequence>.input" (model can). A ".micro" row holds the weights of a small MLP, an
  /// ".input" row an input of this MLP.
  const embedding::PackSpec& pack() const { return pack_; }
  /// Returns the number of lookups per sample.
  int64_t size() const { return static_cast<int64_t>(lookups_.size()); }

  /// Returns the ids of a batch for all lookups. If each feature is one lookup of its bag, the
  /// result shares the batch's own tensors.
  ///
  /// With `negatives_key`, each event from the second on gets a negative: another event that
  /// training learns to distinguish from it. It is drawn among all events of the batch. An event
  /// gets none if the drawn event has the same ids in all sequences. The draw depends only on the
  /// key and on the rows of this rank. It is made before the batch is cut into micro-batches.
  embedding::Jagged ids(const data::RowBatch& batch,
                        std::optional<uint64_t> negatives_key = std::nullopt) const;

  /// Returns (samples, length) bool: true where a sample of `ids` has an event. Undefined tensor if
  /// the model has no sequences.
  at::Tensor mask(const embedding::Jagged& ids) const;
  /// Returns (samples, length - 1) bool: true where an event, from the second on, has a negative.
  /// Undefined tensor if the model has no negatives.
  at::Tensor negative_mask(const embedding::Jagged& ids) const;

  /// Combines the input of the model: dense features of samples, the pooled rows `embedded` of
  /// their ids, and the masks.
  models::RecommenderBatch model_input(const at::Tensor& dense, const embedding::Jagged& ids,
                                       at::Tensor embedded) const;

 private:
  /// Ids of a lookup: all of a bag, one event (or place of a bag), or a negative of an event.
  enum class What { kBag, kEvent, kNegative };
  struct Lookup {
    int64_t feature = 0;  ///< index into rows.sparse
    What what = What::kBag;
    /// Position in the sequence, or in the bag of a feature with pooling = "none".
    int64_t event = 0;
  };
  /// Event of a batch. `place` is its position in the sequences of the sample.
  struct Event {
    int64_t sample = 0, place = 0;
  };

  int64_t add_table(const std::string& name, int64_t feature, int64_t dim);
  void add(const Lookup& lookup, int64_t table);
  void add_sequences(const std::vector<int64_t>& table_of);
  void add_co_actions();
  /// Returns the negative of the event at each (sample, place), sample by sample. Its `sample` is
  /// -1 if the event has no negative.
  std::vector<Event> draw_negatives(const data::RowBatch& batch, uint64_t key) const;
  /// Returns true if two events have the same ids in all sequences.
  bool same_event(const data::RowBatch& batch, const Event& a, const Event& b) const;
  /// Returns true if lookup i is the bag of feature i, for all features.
  bool are_features() const;
  /// Returns (samples, count) bool: true where lookups [first, first + count) of a sample have an
  /// id.
  at::Tensor filled(const embedding::Jagged& ids, int64_t first, int64_t count) const;

  RunConfig config_;
  models::RecommenderInputs inputs_;
  embedding::PackSpec pack_;
  std::vector<Lookup> lookups_;
  /// Indices into rows.sparse: features that are pooled, and features that the model reads as
  /// sequences. A feature with pooling = "none" is in `singles_` once for each place of its bag.
  std::vector<int64_t> singles_, sequences_;
  /// Indices into `lookups_` of the first event and of the first negative.
  int64_t first_event_ = 0, first_negative_ = 0;
  bool are_features_ = false;  ///< result of are_features()
};

}  // namespace dovetail::train
