#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/train/optimizer/lr_schedule.h"
#include "dovetail/train/recommender/training.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"
#include "tests/train/clicks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::recommender_cuts_test {
namespace {

using test::Clicks;
using test::expect_same_tensors;
using test::last_checkpoint;
using test::train_alone;
using ::testing::HasSubstr;

/// Returns the distance of two runs' ends: the maximum difference in a tensor divided by its
/// largest element.
double furthest(const io::Snapshot& a, const io::Snapshot& b) {
  double furthest = 0;
  for (const auto& [name, tensor] : a.tensors) {
    if (!b.tensors.contains(name)) continue;  // the reference has only weights
    const double scale = tensor.abs().max().item<double>() + 1e-30;
    furthest = std::max(furthest, (tensor - b.tensors.at(name)).abs().max().item<double>() / scale);
  }
  return furthest;
}

/// Trains 100 steps in float64, sample by sample, with the same initial weights, batches and
/// schedule.
io::Snapshot train_serially_in_float64(const RunConfig& config) {
  const auto seed = static_cast<uint64_t>(config.run.seed);
  const std::shared_ptr<models::Recommender> model =
      models::make_recommender(config.recommender, recommender_inputs(config));
  initialize(*model, seed);
  model->to(at::kDouble);
  const embedding::PackSpec spec = RecommenderLookups(config).pack();
  embedding::PackedTables shapes(spec);
  embedding::testing::Reference tables(shapes);
  torch::optim::AdamW optimizer(model->parameters(),
                                torch::optim::AdamWOptions()
                                    .betas({config.optimizer.betas[0], config.optimizer.betas[1]})
                                    .eps(config.optimizer.eps)
                                    .weight_decay(0));
  data::RowLoader loader(config.rows, {.seed = seed, .batch = config.train.batch});
  for (int64_t step = 0; step < config.train.steps; ++step) {
    const data::RowBatch batch = loader.step(step);
    const embedding::Jagged ids{batch.values, batch.offsets, batch.weights,
                                std::ssize(config.rows.sparse), config.train.batch};
    const at::Tensor pooled = tables.pool(ids).requires_grad_();
    optimizer.zero_grad();
    const at::Tensor logits =
        model->forward({.dense = batch.dense.to(at::kDouble), .embedded = pooled}).logits;
    at::binary_cross_entropy_with_logits(logits, batch.labels.to(at::kDouble)).backward();
    const double lr = learning_rate(config.schedule, config.optimizer.lr, step, config.train.steps);
    shapes.set_lr(config.embedding.lr * lr / config.optimizer.lr);
    tables.update(ids, pooled.grad());
    for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
    optimizer.step();
  }
  io::Snapshot end;
  for (const auto& item : model->named_parameters())
    end.tensors["model." + item.key()] = item.value().detach();
  for (size_t t = 0; t < spec.tables.size(); ++t)
    end.tensors["embedding." + spec.tables[t].name + ".weight"] = tables.weight[t];
  return end;
}

constexpr int64_t kAuto = EmbeddingSection::kAuto;

/// Way to distribute and interrupt a run of 100 steps, which is compared with a run on one rank.
struct Cut {
  int ranks;
  const char* sharding;
  bool packing = true;
  int64_t groups = 1, micro_batch = 0;
  int64_t memory_bytes = 0;
  const char* policy = "hot";
  const char* transfer = "auto";
};

io::Snapshot train_cut(RunConfig config, const Cut& cut) {
  config.embedding.sharding = cut.sharding;
  config.embedding.packing = cut.packing;
  config.embedding.groups = cut.groups;
  config.train.micro_batch = cut.micro_batch;
  config.embedding.memory_bytes = cut.memory_bytes;
  config.embedding.policy = cut.policy;
  config.embedding.transfer = cut.transfer;
  if (cut.memory_bytes > 0) config.embedding.step_rows = 60;
  if (cut.memory_bytes > 0 && std::string(cut.policy) == "hot") config.embedding.warmup_steps = 10;
  expect_all_succeed(cut.ranks, [&](const std::shared_ptr<comm::Group>& group) {
    train(config, group, {.quiet = true});
  });
  return last_checkpoint(config);
}

TEST(RecommenderCuts, OfAnyCutIsTheSerialReference) {
  const Clicks data;
  const auto config = [&](const std::string& name) {
    RunConfig config = data.config("dlrm", name);
    config.train.steps = 100;
    config.recommender.grain = 16;
    config.embedding.optimizer = "adagrad";
    for (data::SparseConfig& feature : config.rows.sparse)
      feature.num_rows = 1000;  // memory_bytes holds some 30
    return config;
  };
  const io::Snapshot one = train_cut(config("one"), {.ranks = 1, .sharding = "auto"});
  const io::Snapshot reference = train_serially_in_float64(config("reference"));
  EXPECT_LT(furthest(reference, one), 1e-5);
  int number = 0;
  const auto run = [&](const Cut& cut) {
    return train_cut(config("cut" + std::to_string(++number)), cut);
  };
  for (const Cut& cut :
       {Cut{.ranks = 1, .sharding = "auto", .packing = false, .groups = 2, .micro_batch = 32},
        Cut{.ranks = 1, .sharding = "auto", .memory_bytes = 30000},
        Cut{.ranks = 1,
            .sharding = "auto",
            .packing = false,
            .micro_batch = 16,
            .memory_bytes = 30000,
            .policy = "lru"},
        Cut{.ranks = 1,
            .sharding = "auto",
            .groups = kAuto,
            .micro_batch = kAuto,
            .memory_bytes = kAuto}})
    expect_same_tensors(one, run(cut));
  for (const Cut& cut : {Cut{.ranks = 2, .sharding = "auto", .micro_batch = 32},
                         Cut{.ranks = 2, .sharding = "row", .groups = 2, .memory_bytes = 30000},
                         Cut{.ranks = 2,
                             .sharding = "row",
                             .groups = kAuto,
                             .micro_batch = kAuto,
                             .memory_bytes = kAuto},
                         Cut{.ranks = 2, .sharding = "column"},
                         Cut{.ranks = 4, .sharding = "table", .micro_batch = 16},
                         Cut{.ranks = 4, .sharding = "replicated", .packing = false},
                         Cut{.ranks = 4, .sharding = "row", .micro_batch = 16}}) {
    for (const char* transfer : {"bags", "rows"}) {
      Cut sent = cut;
      sent.transfer = transfer;
      const io::Snapshot found = run(sent);
      EXPECT_LT(furthest(one, found), 64 * 0x1p-23)
          << cut.ranks << " ranks, " << cut.sharding << ", " << transfer;
      EXPECT_LT(furthest(reference, found), 1e-5);
    }
  }
}

TEST(RecommenderCuts, RowsOfLowPrecisionLearnAndDoNotDependOnTheCut) {
  const Clicks data;
  for (const char* dtype : {"bf16", "mxfp8"}) {
    const auto config = [&](const std::string& name) {
      RunConfig config = data.config("dlrm", std::string(dtype) + name);
      config.recommender.grain = 16;
      config.embedding.row_dtype = dtype;
      return config;
    };
    const io::Snapshot one = train_cut(config("one"), {.ranks = 1, .sharding = "auto"});
    EXPECT_GT(data.metrics(std::string(dtype) + "one").back()["auc"], 0.8) << dtype;
    const at::Tensor rows = one.tensors.at("embedding.user.weight");
    EXPECT_EQ(rows.nbytes(), std::string(dtype) == "bf16" ? 50 * 8 * 2 : 50 * (8 + 1));
    expect_same_tensors(
        one, train_cut(config("parts"), {.ranks = 1, .sharding = "auto", .micro_batch = 32}));
    RunConfig two = config("two");
    two.checkpoint.every_steps = 60;
    RunConfig again = two;
    again.run.folder = data.file(std::string(dtype) + "again", "").parent_path().string();
    two.train.steps = again.train.steps = 100;
    two.schedule.decay = again.schedule.decay = "constant";
    const Cut cut = {.ranks = 2, .sharding = "row"};
    const io::Snapshot whole = train_cut(two, cut);
    RunConfig first = again;
    first.train.steps = 60;
    train_cut(first, cut);
    expect_same_tensors(whole, train_cut(again, cut));
    again.train.steps = 120;
    again.embedding.row_dtype = "fp32";
    EXPECT_THAT([&] { train_alone(again); },
                ::testing::ThrowsMessage<UserError>(HasSubstr("row_dtype")));
  }
}

TEST(RecommenderCuts, ExchangesOfLowPrecisionLearn) {
  const Clicks data;
  for (const char* transfer : {"bags", "rows"}) {
    const auto name = [&](const std::string& exchange) { return exchange + transfer; };
    for (const char* exchange : {"bf16", "mxfp8"}) {
      RunConfig config = data.config("dlrm", name(exchange));
      config.embedding.exchange = exchange;
      train_cut(config, {.ranks = 2, .sharding = "row", .transfer = transfer});
      EXPECT_GT(data.metrics(name(exchange)).back()["auc"], 0.8) << name(exchange);
    }
    EXPECT_NE(data.metrics(name("bf16")).back()["loss"],
              data.metrics(name("mxfp8")).back()["loss"]);
  }
}

/// Clicks with up to three earlier items, in `length` places.
class Histories : public Clicks {
 public:
  RunConfig config(const std::string& name, int64_t length = 20) const {
    const std::filesystem::path path = file("", "histories.tsv");
    std::istringstream rows(test::clicks(3000));
    std::string text, line;
    std::getline(rows, line);
    text = line + "\titems\n";
    for (int row = 0; std::getline(rows, line); ++row) {
      std::string items;
      for (int i = 0; i < row % 4; ++i)
        items += fmt::format("{}i{}", i == 0 ? "" : "|", row * (i + 7) % 30);
      text += fmt::format("{}\t{}\n", line, items);
    }
    write_file_atomically(path, text);
    RunConfig config = Clicks::config("din", name);
    config.rows.files = {path.string()};
    config.rows.sparse.push_back({.columns = {"items"},

                                  .num_rows = 60,
                                  .separator = "|",
                                  .max_length = length,
                                  .sequence = true,
                                  .table = "item"});
    config.recommender.grain = 16;
    config.train.steps = 20;
    config.schedule.decay = "constant";
    config.eval.every_steps = 0;
    return config;
  }
};

TEST(RecommenderCuts, SequencesAreExchangedAsTheRowsTheyHave) {
  const Histories data;
  const auto plan = [&](const std::string& name) {
    return nlohmann::json::parse(read_file(data.file(name, "embedding_plan.json").string()));
  };
  const auto bytes = [&](const std::string& name) {
    std::istringstream lines(read_file(data.file(name, "timings.jsonl").string()));
    std::string line;
    for (int step = 0; step < 10; ++step) std::getline(lines, line);
    return nlohmann::json::parse(line).at("table_bytes").get<double>();
  };
  const io::Snapshot whole = train_cut(data.config("whole"), {.ranks = 2, .sharding = "row"});
  /// Returns the bytes of a step that the plan expects with a transfer.
  const auto expected = [&](const std::string& name, const char* transfer) {
    const nlohmann::json found = plan(name);
    EXPECT_EQ(found["packs"].size(), 1);
    EXPECT_EQ(found["packs"][0]["transfer"], transfer);
    double sum = 0;
    for (const auto& table : found["packs"][0]["tables"])
      sum += table["step_bytes"][transfer].get<double>();
    return sum;
  };
  train_cut(data.config("bags"), {.ranks = 2, .sharding = "row", .transfer = "bags"});
  for (const char* transfer : {"bags", "rows"}) {
    const std::string name = transfer == std::string("rows") ? "whole" : "bags";
    EXPECT_NEAR(bytes(name), expected(name, transfer), 0.1 * bytes(name)) << transfer;
  }
  EXPECT_GT(bytes("bags"), 10 * bytes("whole"));

  // No bit depends on the cut, nor on a resumed run's first batch.
  expect_same_tensors(
      whole,
      train_cut(data.config("cut"),
                {.ranks = 2, .sharding = "row", .packing = false, .groups = 2, .micro_batch = 16}));
  RunConfig first = data.config("resumed");
  first.train.steps = 7;
  train_cut(first, {.ranks = 2, .sharding = "row"});
  expect_same_tensors(whole, train_cut(data.config("resumed"), {.ranks = 2, .sharding = "row"}));
  const io::Snapshot one = train_cut(data.config("one"), {.ranks = 1, .sharding = "auto"});
  EXPECT_LT(furthest(one, whole), 64 * 0x1p-23);
}

/// The first step has bags of one item over and over, which are sent as rows. The later bags have
/// no item twice.
TEST(RecommenderCuts, AResumedRunSendsWhatItSentBefore) {
  const Clicks data;
  std::string text = "items\tsize\tclicked\n";
  for (int row = 0; row < 3000; ++row) {
    for (int i = 0; i < 5; ++i)
      text += fmt::format("{}{}", i == 0 ? "" : "|", row < 128 ? i : 5 * row + i);
    text += fmt::format("\t{}\t{}\n", row % 7, row % 3 == 0 ? 1 : 0);
  }
  write_file_atomically(data.file("", "items.tsv"), text);
  const auto config = [&](const std::string& name, int64_t steps) {
    RunConfig config = data.config("wide_deep", name);
    config.rows.files = {data.file("", "items.tsv").string()};
    config.rows.sparse = {{.columns = {"items"}, .num_rows = 20000, .separator = "|"}};
    config.rows.shuffle_window = 1;
    config.train.steps = steps;
    config.schedule.decay = "constant";
    config.eval.every_steps = 0;
    return config;
  };
  const Cut cut = {.ranks = 2, .sharding = "table"};
  const io::Snapshot whole = train_cut(config("whole", 12), cut);
  train_cut(config("resumed", 5), cut);
  expect_same_tensors(whole, train_cut(config("resumed", 12), cut));
  const auto plan =
      nlohmann::json::parse(read_file(data.file("resumed", "embedding_plan.json").string()));
  for (const auto& pack : plan["packs"]) EXPECT_EQ(pack["transfer"], "rows");
}

TEST(RecommenderCuts, DeltaCheckpointsChangeNoBitAndAreResumed) {
  const Clicks data;
  const auto config = [&](const std::string& name, int64_t full_every) {
    RunConfig config = data.config("dlrm", name);
    config.rows.sparse[0].num_rows = 5000;
    config.schedule.decay = "constant";
    config.train.steps = 50;
    config.checkpoint = {.every_steps = 10, .keep = 5, .full_every = full_every};
    return config;
  };
  const Cut cut = {.ranks = 2, .sharding = "row", .memory_bytes = 60000};
  const auto path_of = [](const RunConfig& config, int64_t step) {
    return io::CheckpointFolder(config.folder() / "checkpoints", {}).path_of(step);
  };
  const RunConfig full = config("full", 1), deltas = config("deltas", 3);
  train_cut(full, cut);
  train_cut(deltas, cut);
  for (int64_t step = 10; step <= 50; step += 10)
    expect_same_tensors(io::read_checkpoint(path_of(full, step)),
                        io::read_checkpoint(path_of(deltas, step)));
  EXPECT_EQ(io::StoredCheckpoint(path_of(deltas, 30)).links().size(), 3);
  EXPECT_EQ(io::StoredCheckpoint(path_of(deltas, 40)).links().size(), 1);

  RunConfig cut_short = config("resumed", 3);
  cut_short.train.steps = 30;  // ends with a delta
  train_cut(cut_short, cut);
  const RunConfig resumed = config("resumed", 3);
  expect_same_tensors(train_cut(resumed, cut), last_checkpoint(full));
  EXPECT_EQ(io::StoredCheckpoint(path_of(resumed, 50)).links().size(), 2)
      << "the first of a process is full";
  // Without this link of the chain, the run resumes from the newest checkpoint with a complete
  // chain.
  std::filesystem::remove_all(path_of(resumed, 40));
  expect_same_tensors(train_cut(resumed, cut), last_checkpoint(full));
  EXPECT_EQ(data.metrics("resumed").size(), 50);
}

TEST(RecommenderCuts, GoesOnAtAnotherNumberOfRanks) {
  const Clicks data;
  RunConfig config = data.config("deepfm", "moved");
  config.train.steps = 20;
  config.schedule.decay = "constant";
  RunConfig first = config;
  first.train.steps = 10;
  train_cut(first, {.ranks = 3, .sharding = "row"});
  train_cut(config, {.ranks = 2, .sharding = "table"});
  RunConfig alone = data.config("deepfm", "alone");
  alone.train.steps = 20;
  alone.schedule.decay = "constant";
  train_cut(alone, {.ranks = 1, .sharding = "auto"});
  EXPECT_LT(furthest(last_checkpoint(alone), last_checkpoint(config)), 1e-5);
  EXPECT_EQ(data.metrics("moved").size(), 20);
  const double auc = data.metrics("moved").back()["auc"].get<double>();
  EXPECT_NEAR(auc, data.metrics("alone").back()["auc"].get<double>(), 2e-3);
}

TEST(RecommenderCuts, WhatIsLeftToAMeasurementIsChosenFromWhatWasMeasured) {
  const Clicks data;
  RunConfig config = data.config("dlrm");
  config.train.steps = 20;
  config.recommender.grain = 16;
  train_cut(config, {.ranks = 2,
                     .sharding = "row",
                     .groups = kAuto,
                     .micro_batch = kAuto,
                     .memory_bytes = kAuto});
  const auto plan =
      nlohmann::json::parse(read_file(data.file("run", "embedding_plan.json").string()));
  const nlohmann::json& chosen = plan["auto"];
  // A rank has 64 samples in grains of 16: micro-batches of 64, 32 and 16, each with one and two
  // groups of the two tables.
  ASSERT_EQ(chosen["measured"].size(), 6);
  EXPECT_EQ(chosen["measured"][0]["micro_batch"], 64);
  double best = 1e9, taken = 0;
  for (const auto& candidate : chosen["measured"]) {
    EXPECT_GT(candidate["step_ms"], 0);
    best = std::min(best, candidate["step_ms"].get<double>());
    if (candidate["groups"] == chosen["groups"] &&
        candidate["micro_batch"] == chosen["micro_batch"])
      taken = candidate["step_ms"];
  }
  EXPECT_GT(taken, 0);
  EXPECT_LE(taken, 1.03 * best);
  EXPECT_EQ(plan["groups"], chosen["groups"]);
  EXPECT_EQ(chosen["memory_bytes"], 0);  // a hundred rows fit
}

}  // namespace
}  // namespace dovetail::train::recommender_cuts_test
