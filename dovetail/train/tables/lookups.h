#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dovetail/data/rows/row_loader.h"
#include "dovetail/embedding/pack/jagged.h"
#include "dovetail/embedding/pack/table.h"
#include "dovetail/models/recommender.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail {

/// What [rows] and [recommender] give a model. Throws UserError for a recommender.co_action that
/// names no such pair.
RecommenderInputs recommender_inputs(const RunConfig& config);

/// What a model looks up for a row: a list of features for the tables, which need not be those of
/// [rows]. With a wide part each feature is looked up once more, in a table of dimension 1. An
/// event of a sequence, or a place in the bag of a feature with pooling none, is a feature of its
/// own, with one id or, where a row has no such event, none, whose pooled row is zero. The order is
/// that of EmbeddedColumns.
class RecommenderLookups {
 public:
  explicit RecommenderLookups(const RunConfig& config);

  /// Tables and, for each lookup, its table. A feature has a table of its dim unless it shares one;
  /// behind them "<feature>.wide", "<item>*<sequence>.micro" (the item's micro-MLPs) and
  /// "<item>*<sequence>.input".
  const embedding::PackSpec& pack() const { return pack_; }
  int64_t size() const { return static_cast<int64_t>(lookups_.size()); }

  /// The ids of a batch for the tables. With `negatives_key`, each event from the second on gets
  /// the ids of an event that is drawn among all events of the batch, none where the drawn one is
  /// the same in all sequences: a function of the key and the rows of the batch (of this rank),
  /// which are not yet cut into micro-batches. Where each feature is looked up once, as a bag, they
  /// are the batch's own tensors.
  embedding::Jagged ids(const RowBatch& batch,
                        std::optional<uint64_t> negatives_key = std::nullopt) const;

  /// Which events the samples of `ids` have, (samples, length) bool, and which of them, from the
  /// second on, have a negative, (samples, length - 1). Undefined without.
  at::Tensor mask(const embedding::Jagged& ids) const;
  at::Tensor negative_mask(const embedding::Jagged& ids) const;

  /// What a model reads of samples: their dense features, and what the tables gave for their ids.
  RecommenderBatch model_input(const at::Tensor& dense, const embedding::Jagged& ids,
                               at::Tensor embedded) const;

 private:
  enum class What { kBag, kEvent, kNegative };
  struct Lookup {
    int64_t feature = 0;  ///< of [rows]
    What what = What::kBag;
    int64_t event =
        0;  ///< its place in the sequence, or in the bag of a feature that pools nothing
  };
  struct Event {
    int64_t sample = 0, place = 0;
  };

  int64_t add_table(const std::string& name, int64_t feature, int64_t dim);
  void add(const Lookup& lookup, int64_t table);
  void add_sequences(const std::vector<int64_t>& table_of);
  void add_co_actions();
  /// The event that is drawn for each (sample, place) in turn; sample -1: none.
  std::vector<Event> draw_negatives(const RowBatch& batch, uint64_t key) const;
  bool same_event(const RowBatch& batch, const Event& a, const Event& b) const;
  bool are_features() const;
  at::Tensor filled(const embedding::Jagged& ids, int64_t first, int64_t count) const;

  RunConfig config_;
  RecommenderInputs inputs_;
  embedding::PackSpec pack_;
  std::vector<Lookup> lookups_;
  std::vector<int64_t> singles_,
      sequences_;  ///< features of [rows], without pooling one for each place
  int64_t first_event_ = 0, first_negative_ = 0;  ///< lookups
  bool are_features_ = false;  ///< lookup i is the bag of feature i, for all features
};

}  // namespace dovetail
