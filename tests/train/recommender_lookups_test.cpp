#include "dovetail/train/embedding_tables/lookups.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "dovetail/base/rng.h"
#include "tests/ops/testing.h"

namespace dovetail::train::recommender_lookups_test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

using Bag = std::vector<int64_t>;
using Row = std::vector<Bag>;  ///< the ids of each feature

/// Config with a user and an item that share no table, a bag of tags, and two sequences. The
/// sequences are previously clicked items and their viewing times.
RunConfig config_of(const std::string& model) {
  RunConfig config;
  config.recommender.model = model;
  config.recommender.dim = 4;
  config.rows.label = {"clicked"};
  config.rows.sparse = {
      {.columns = {"clicked_items"},
       .num_rows = 30,
       .max_length = 3,
       .sequence = true,
       .table = "item"},
      {.columns = {"user"}, .num_rows = 20},
      {.columns = {"item"}, .num_rows = 30},
      {.columns = {"looked_at"}, .num_rows = 8, .max_length = 3, .sequence = true},
      {.columns = {"tags"}, .num_rows = 9}};
  return config;
}

std::vector<Row> rows() {
  return {{{7, 8, 9}, {1}, {11}, {0, 1, 2}, {5, 6}},
          {{}, {2}, {12}, {}, {}},
          {{7}, {3}, {13}, {0}, {4}},
          {{5, 6}, {}, {14}, {3, 4}, {1, 2, 3}}};
}

data::RowBatch batch_of(const std::vector<Row>& rows) {
  data::RowBatch batch;
  std::vector<int64_t> values, offsets = {0};
  for (size_t f = 0; f < rows[0].size(); ++f) {
    for (const Row& row : rows) {
      values.insert(values.end(), row[f].begin(), row[f].end());
      offsets.push_back(std::ssize(values));
    }
  }
  batch.dense = at::zeros({std::ssize(rows), 0});
  batch.values = at::tensor(values, at::kLong);
  batch.offsets = at::tensor(offsets, at::kLong);
  return batch;
}

/// The bags of every lookup.
std::vector<std::vector<Bag>> bags_of(const embedding::Jagged& ids) {
  std::vector<std::vector<Bag>> bags(static_cast<size_t>(ids.features));
  const auto* const values = ids.values.const_data_ptr<int64_t>();
  const auto* const offsets = ids.offsets.const_data_ptr<int64_t>();
  for (int64_t f = 0; f < ids.features; ++f)
    for (int64_t b = 0; b < ids.samples; ++b)
      bags[static_cast<size_t>(f)].emplace_back(values + offsets[f * ids.samples + b],
                                                values + offsets[f * ids.samples + b + 1]);
  return bags;
}

std::vector<Bag> column(size_t feature) {
  std::vector<Bag> bags;
  for (const Row& row : rows()) bags.push_back(row[feature]);
  return bags;
}

/// Event l of a sequence.
std::vector<Bag> column(size_t feature, size_t l) {
  std::vector<Bag> bags;
  for (const Row& row : rows())
    bags.push_back(l < row[feature].size() ? Bag{row[feature][l]} : Bag{});
  return bags;
}

std::vector<std::string> tables_of(const RecommenderLookups& lookups) {
  std::vector<std::string> names;
  for (const int64_t table : lookups.pack().feature_table) {
    const auto& spec = lookups.pack().tables[static_cast<size_t>(table)];
    names.push_back(fmt::format("{} {}x{}", spec.name, spec.rows, spec.dim));
  }
  return names;
}

TEST(RecommenderLookups, OtherModelsPoolSequencesAndShareTables) {
  const RecommenderLookups deepfm(config_of("deepfm"));
  EXPECT_THAT(tables_of(deepfm),
              ElementsAre("item 30x4", "user 20x4", "item 30x4", "looked_at 8x4", "tags 9x4",
                          "item.wide 30x1", "user.wide 20x1", "item.wide 30x1",
                          "looked_at.wide 8x1", "tags.wide 9x1"));
  EXPECT_EQ(deepfm.pack().tables.size(), 8);
  const embedding::Jagged ids = deepfm.ids(batch_of(rows()));
  EXPECT_THAT(bags_of(ids), ElementsAre(column(0), column(1), column(2), column(3), column(4),
                                        column(0), column(1), column(2), column(3), column(4)));
  EXPECT_FALSE(deepfm.mask(ids).defined());
  const models::RecommenderInputs inputs = recommender_inputs(config_of("deepfm"));
  EXPECT_EQ(inputs.sparse, 5);
  EXPECT_TRUE(inputs.sequences.empty());
}

TEST(RecommenderLookups, FeaturesThatAreLookedUpOnceAreTheBatchAsItIs) {
  const data::RowBatch batch = batch_of(rows());
  const embedding::Jagged ids = RecommenderLookups(config_of("dcnv2")).ids(batch);
  EXPECT_EQ(ids.values.data_ptr(), batch.values.data_ptr());
  EXPECT_EQ(ids.offsets.data_ptr(), batch.offsets.data_ptr());
  EXPECT_THAT(bags_of(ids), ElementsAre(column(0), column(1), column(2), column(3), column(4)));
}

TEST(RecommenderLookups, AnEventOfASequenceIsALookup) {
  const models::RecommenderInputs inputs = recommender_inputs(config_of("din"));
  EXPECT_EQ(inputs.sparse, 3);
  EXPECT_EQ(inputs.length, 3);
  ASSERT_EQ(inputs.sequences.size(), 2);
  EXPECT_EQ(inputs.sequences[0].target,
            1);  // the item is the second of the features that are no sequence
  EXPECT_EQ(inputs.sequences[1].target, -1);
  const RecommenderLookups din(config_of("din"));
  EXPECT_THAT(tables_of(din),
              ElementsAre("user 20x4", "item 30x4", "tags 9x4", "item 30x4", "item 30x4",
                          "item 30x4", "looked_at 8x4", "looked_at 8x4", "looked_at 8x4"));
  const embedding::Jagged ids = din.ids(batch_of(rows()), /*negatives_key=*/1);
  EXPECT_THAT(bags_of(ids), ElementsAre(column(1), column(2), column(4), column(0, 0), column(0, 1),
                                        column(0, 2), column(3, 0), column(3, 1), column(3, 2)));
  const at::Tensor mask =
      at::tensor({1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 1, 0}).view({4, 3}).to(at::kBool);
  EXPECT_TRUE(at::equal(din.mask(ids), mask));
  EXPECT_TRUE(at::equal(din.mask(embedding::samples_of(ids, 1, 2)), mask.narrow(0, 1, 2)));
  EXPECT_FALSE(din.negative_mask(ids).defined());
}

TEST(RecommenderLookups, WeightsFollowTheirIds) {
  data::RowBatch batch = batch_of(rows());
  batch.weights = batch.values.to(at::kFloat) * 0.5;
  const embedding::Jagged ids = RecommenderLookups(config_of("din")).ids(batch);
  EXPECT_TRUE(at::equal(ids.weights, ids.values.to(at::kFloat) * 0.5));
}

TEST(RecommenderLookups, NegativesAreOtherEventsOfTheBatch) {
  const RecommenderLookups dien(config_of("dien"));
  const auto bags = bags_of(dien.ids(batch_of(rows()), 5));
  ASSERT_EQ(bags.size(), 3 + 6 + 4);
  std::set<std::pair<int64_t, int64_t>> events;
  for (const Row& row : rows())
    for (size_t l = 0; l < row[0].size(); ++l) events.insert({row[0][l], row[3][l]});
  // After many draws each event other than the sample's own occurs in proportion to its frequency.
  // An event that occurs twice is drawn twice as often.
  std::map<std::pair<int64_t, int64_t>, int> drawn;
  constexpr int kDraws = 6000;
  int none = 0;
  for (uint64_t key = 0; key < kDraws; ++key) {
    const embedding::Jagged ids = dien.ids(batch_of(rows()), key);
    const auto found = bags_of(ids);
    const at::Tensor mask = dien.negative_mask(ids);
    for (size_t b = 0; b < 4; ++b) {
      for (size_t l = 1; l < 3; ++l) {
        const Bag &item = found[9 + l - 1][b], &looked = found[11 + l - 1][b];
        ASSERT_EQ(item.size(), looked.size());
        ASSERT_EQ(mask[static_cast<int64_t>(b)][static_cast<int64_t>(l) - 1].item<bool>(),
                  !item.empty());
        if (l >= rows()[b][0].size()) {
          ASSERT_TRUE(item.empty());
        } else if (!item.empty()) {
          ASSERT_TRUE(events.contains({item[0], looked[0]}));
          ASSERT_NE(std::pair(item[0], looked[0]), std::pair(rows()[b][0][l], rows()[b][3][l]));
        }
        if (b != 0 || l != 1) continue;
        item.empty() ? ++none : ++drawn[{item[0], looked[0]}];
      }
    }
  }
  EXPECT_NEAR(none, kDraws / 6, 150);  // six events, one of them the event (8, 1) itself
  EXPECT_NEAR((drawn[{7, 0}]), 2 * kDraws / 6, 200);
  for (const auto& other : {std::pair<int64_t, int64_t>{9, 2}, {5, 3}, {6, 4}})
    EXPECT_NEAR(drawn[other], kDraws / 6, 150);
}

TEST(RecommenderLookups, NegativesAreAFunctionOfKeyAndBatch) {
  const RecommenderLookups dien(config_of("dien"));
  const data::RowBatch batch = batch_of(rows());
  EXPECT_EQ(bags_of(dien.ids(batch, 5)), bags_of(dien.ids(batch, 5)));
  std::set<std::vector<std::vector<Bag>>> found;
  for (uint64_t key = 0; key < 20; ++key) found.insert(bags_of(dien.ids(batch, key)));
  EXPECT_GT(found.size(), 10);
  const embedding::Jagged evaluated = dien.ids(batch);
  EXPECT_EQ(evaluated.features, dien.size());
  EXPECT_FALSE(dien.negative_mask(evaluated).any().item<bool>());
  EXPECT_TRUE(dien.mask(evaluated).any().item<bool>());
  RunConfig without = config_of("dien");
  without.recommender.auxiliary_weight = 0;
  EXPECT_EQ(RecommenderLookups(without).size(), 9);
}

TEST(RecommenderLookups, ACoActionHasTablesOfItsOwn) {
  RunConfig config = config_of("can");
  config.recommender.micro = {5, 2};
  const RecommenderLookups can(config);
  EXPECT_EQ(can.size(), 9 + 1 + 3);
  const auto tables = tables_of(can);
  EXPECT_EQ(tables[9], "item*clicked_items.micro 30x12");
  EXPECT_EQ(tables[10], "item*clicked_items.input 30x5");
  EXPECT_EQ(tables[12], "item*clicked_items.input 30x5");
  const auto bags = bags_of(can.ids(batch_of(rows())));
  EXPECT_EQ(bags[9], column(2));
  for (size_t l = 0; l < 3; ++l) EXPECT_EQ(bags[10 + l], column(0, l));
  config.recommender.co_action = {"user * looked_at", "item*clicked_items"};
  const RecommenderLookups chosen(config);
  EXPECT_EQ(tables_of(chosen)[9], "user*looked_at.micro 20x12");
  EXPECT_EQ(tables_of(chosen)[10], "item*clicked_items.micro 30x12");
  EXPECT_EQ(tables_of(chosen)[11], "user*looked_at.input 8x5");
  const auto found = bags_of(chosen.ids(batch_of(rows())));
  EXPECT_EQ(found[9], column(1));
  EXPECT_EQ(found[12], column(3, 1));
  EXPECT_EQ(found[14], column(0, 0));
  for (const char* wrong :
       {"item", "item * user", "items * clicked_items", "clicked_items * item", " * "}) {
    config.recommender.co_action = {wrong};
    EXPECT_THAT(testing::user_error([&] { recommender_inputs(config); }),
                HasSubstr("recommender.co_action"))
        << wrong;
  }
}

TEST(RecommenderLookups, AFeatureHasADimensionAndAPoolingOfItsOwn) {
  RunConfig config = config_of("wide_deep");
  config.embedding.pooling = "mean";
  config.rows.sparse[1].dim = 7;
  config.rows.sparse[1].pooling = "sum";
  const RecommenderLookups lookups(config);
  EXPECT_THAT(tables_of(lookups),
              ElementsAre("item 30x4", "user 20x7", "item 30x4", "looked_at 8x4", "tags 9x4",
                          "item.wide 30x1", "user.wide 20x1", "item.wide 30x1",
                          "looked_at.wide 8x1", "tags.wide 9x1"));
  for (const auto& table : lookups.pack().tables)
    EXPECT_EQ(table.pooling, table.name.starts_with("user") ? embedding::Pooling::kSum
                                                            : embedding::Pooling::kMean);
  EXPECT_THAT(recommender_inputs(config).dims, ElementsAre(4, 7, 4, 4, 4));
  const auto refusal = [&] { return testing::user_error([&] { recommender_inputs(config); }); };
  for (const char* model : {"dlrm", "deepfm"}) {
    config.recommender.model = model;
    EXPECT_THAT(refusal(), HasSubstr("rows.sparse.user: dim = 7")) << model;
  }
  config.recommender.model = "din";
  EXPECT_THAT(recommender_inputs(config).dims, ElementsAre(7, 4, 4));
  config.rows.sparse[3].dim = 5;  // dim of a sequence feature
  EXPECT_THAT(refusal(), HasSubstr("rows.sparse.looked_at: dim = 5"));
  config.rows.sparse[3].dim = 4;
  EXPECT_THAT(recommender_inputs(config).dims, ElementsAre(7, 4, 4));
  config.rows.sparse[2].dim = config.rows.sparse[0].dim =
      5;  // a sequence and the candidate; they share a table
  EXPECT_THAT(refusal(), HasSubstr("rows.sparse.clicked_items: dim = 5"));
}

TEST(RecommenderLookups, WithoutPoolingEachPlaceOfABagIsALookup) {
  RunConfig config = config_of("deepfm");
  config.rows.sparse[4].max_length = 2;
  config.rows.sparse[4].pooling = "none";
  const RecommenderLookups lookups(config);
  EXPECT_THAT(tables_of(lookups),
              ElementsAre("item 30x4", "user 20x4", "item 30x4", "looked_at 8x4", "tags 9x4",
                          "tags 9x4", "item.wide 30x1", "user.wide 20x1", "item.wide 30x1",
                          "looked_at.wide 8x1", "tags.wide 9x1", "tags.wide 9x1"));
  EXPECT_EQ(lookups.pack().tables.size(), 8);
  for (const auto& table : lookups.pack().tables)
    EXPECT_EQ(table.pooling, embedding::Pooling::kSum);
  const auto bags = bags_of(lookups.ids(batch_of(rows())));
  for (const size_t first : {4, 10}) {
    EXPECT_EQ(bags[first], column(4, 0));
    EXPECT_EQ(bags[first + 1], column(4, 1));
  }
  EXPECT_EQ(recommender_inputs(config).sparse, 6);
  EXPECT_THAT(recommender_inputs(config).dims, ElementsAre(4, 4, 4, 4, 4, 4));
  // A candidate after it is still found among the embeddings.
  config.recommender.model = "din";
  std::swap(config.rows.sparse[1], config.rows.sparse[4]);
  EXPECT_EQ(recommender_inputs(config).sparse, 4);
  EXPECT_EQ(recommender_inputs(config).sequences[0].target, 2);
}

TEST(RecommenderLookups, PoolingNoneIsRefusedWhereOneEmbeddingIsMeant) {
  const auto refusal = [](const RunConfig& config) {
    return testing::user_error([&] { recommender_inputs(config); });
  };
  RunConfig config = config_of("din");
  config.rows.sparse[0].pooling = "none";
  EXPECT_THAT(refusal(config),
              HasSubstr("rows.sparse.clicked_items: pooling = \"none\" does nothing"));
  config.recommender.model = "deepfm";
  EXPECT_EQ(recommender_inputs(config).sparse, 4 + 3);
  config = config_of("din");
  config.rows.sparse[2].max_length = 2;
  config.rows.sparse[2].pooling = "none";
  EXPECT_THAT(refusal(config),
              HasSubstr("rows.sparse.item: pooling = \"none\" gives several embeddings"));
  config = config_of("can");
  config.rows.sparse[4].max_length = 2;
  config.rows.sparse[4].pooling = "none";
  EXPECT_EQ(recommender_inputs(config).sparse, 4);
  config.recommender.co_action = {"tags * clicked_items"};
  EXPECT_THAT(refusal(config),
              HasSubstr("\"tags\" has pooling = \"none\", but a micro-MLP belongs to one id"));
}

TEST(RecommenderLookups, TheirColumnsAreTheModels) {
  for (const char* model : {"wide_deep", "dcnv2", "din", "dien", "can", "mmoe"}) {
    RunConfig config = config_of(model);
    config.rows.sparse[1].dim = 3;
    config.rows.sparse[4].max_length = 2;
    config.rows.sparse[4].pooling = "none";
    const RecommenderLookups lookups(config);
    int64_t columns = 0;
    for (const int64_t table : lookups.pack().feature_table)
      columns += lookups.pack().tables[static_cast<size_t>(table)].dim;
    EXPECT_EQ(columns,
              models::EmbeddedColumns(config.recommender, recommender_inputs(config)).all())
        << model;
  }
}

}  // namespace
}  // namespace dovetail::train::recommender_lookups_test
