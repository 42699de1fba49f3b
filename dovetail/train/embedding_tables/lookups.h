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

/// Returns the model's inputs that follow from [rows] and [recommender]: columns, dimensions,
/// sequences, tasks. Throws UserError if an entry of recommender.co_action is not a feature times a
/// sequence, "item * clicked_items".
models::RecommenderInputs recommender_inputs(const RunConfig& config);

/// Embedding lookups that a model needs for each row. To the tables, each lookup is a feature.
/// Lookups differ from the features of [rows]:
///
/// - With a wide part, each feature is looked up once more, in a table of dimension 1.
/// - Each event of a sequence is a lookup of its own, with one id.
/// - Each place in the bag of a feature with pooling = "none" is a lookup of its own, with one id.
/// - If a row has no event at a place, the lookup has no id and its pooled row is zero.
///
/// Lookups are in the order of EmbeddedColumns.
class RecommenderLookups {
 public:
  explicit RecommenderLookups(const RunConfig& config);

  /// Tables, and the table of each lookup. A feature has a table of its dim unless it shares
  /// another feature's table. After these come "<feature>.wide", "<item>*<sequence>.micro" (the
  /// item's micro-MLPs) and "<item>*<sequence>.input".
  const embedding::PackSpec& pack() const { return pack_; }
  int64_t size() const { return static_cast<int64_t>(lookups_.size()); }

  /// Returns the ids of a batch, for the tables. If each feature is looked up once, as a bag, the
  /// result shares the batch's own tensors.
  ///
  /// With `negatives_key`, each event from the second on gets a negative. A negative is the ids of
  /// an event drawn among all events of the batch. An event gets none if the drawn event is the
  /// same in all sequences. The draw depends only on the key and on the rows of this rank. It is
  /// made before the batch is cut into micro-batches.
  embedding::Jagged ids(const data::RowBatch& batch,
                        std::optional<uint64_t> negatives_key = std::nullopt) const;

  /// Masks of events, bool. mask: (samples, length), true where a sample of `ids` has an event.
  /// negative_mask: (samples, length - 1), true where an event from the second on has a negative.
  /// Undefined tensor if the model has no sequences or no negatives, respectively.
  at::Tensor mask(const embedding::Jagged& ids) const;
  at::Tensor negative_mask(const embedding::Jagged& ids) const;

  /// Returns the model's input: dense features of samples, the tables' output `embedded` for their
  /// ids, and the masks.
  models::RecommenderBatch model_input(const at::Tensor& dense, const embedding::Jagged& ids,
                                       at::Tensor embedded) const;

 private:
  enum class What { kBag, kEvent, kNegative };
  struct Lookup {
    int64_t feature = 0;  ///< index into rows.sparse
    What what = What::kBag;
    /// Position in the sequence, or in the bag of a feature with pooling = "none".
    int64_t event = 0;
  };
  struct Event {
    int64_t sample = 0, place = 0;
  };

  int64_t add_table(const std::string& name, int64_t feature, int64_t dim);
  void add(const Lookup& lookup, int64_t table);
  void add_sequences(const std::vector<int64_t>& table_of);
  void add_co_actions();
  /// Returns the event that is drawn for each (sample, place), sample by sample. sample = -1: no
  /// negative.
  std::vector<Event> draw_negatives(const data::RowBatch& batch, uint64_t key) const;
  bool same_event(const data::RowBatch& batch, const Event& a, const Event& b) const;
  bool are_features() const;
  at::Tensor filled(const embedding::Jagged& ids, int64_t first, int64_t count) const;

  RunConfig config_;
  models::RecommenderInputs inputs_;
  embedding::PackSpec pack_;
  std::vector<Lookup> lookups_;
  /// Indices into rows.sparse. A feature without pooling appears once for each place of its bag.
  std::vector<int64_t> singles_, sequences_;
  int64_t first_event_ = 0, first_negative_ = 0;  ///< indices into lookups_
  bool are_features_ = false;  ///< true if lookup i is the bag of feature i, for all features
};

}  // namespace dovetail::train
