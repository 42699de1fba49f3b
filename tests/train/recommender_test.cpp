#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/optim/adamw.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/load_model.h"
#include "dovetail/train/recommender_training.h"
#include "dovetail/train/schedule.h"
#include "tests/comm/ranks.h"
#include "tests/embedding/testing.h"
#include "tests/train/tiny_run.h"

namespace dovetail {
namespace {

using test::train_alone;
using ::testing::HasSubstr;

constexpr int64_t kUsers = 40, kItems = 30, kEvents = 6;

/// A row is clicked more often where a hidden number of its user and one of its item have the same sign: nothing that a
/// user or an item alone says, and nothing that the dense column says.
std::string clicks(int rows) {
  const auto draw = [](uint64_t key, uint64_t i, uint64_t below) {
    return random_below(key, RandomStream::kTest, i, below);
  };
  std::string text = "user\titem\tsize\tclicked\n";
  for (int i = 0; i < rows; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const uint64_t user = draw(1, at, kUsers), item = draw(2, at, kItems);
    const bool likes = draw(3, user, 2) == draw(4, item, 2);
    const bool clicked = draw(5, at, 10) < (likes ? 9 : 1);
    text += fmt::format("u{}\ti{}\t{}\t{:d}\n", user, item, draw(6, at, 100), clicked);
  }
  return text;
}

class Clicks {
 public:
  Clicks() { write_file_atomically(folder_ / "clicks.tsv", clicks(6000)); }

  RunConfig config(const std::string& model, const std::string& name = "run") const {
    RunConfig config;
    config.run.name = name;
    config.run.folder = (folder_ / name).string();
    config.run.device = "cpu";
    config.run.threads = 1;
    config.recommender.model = model;
    config.recommender.dim = 8;
    config.recommender.deep = {16};
    config.rows.files = {(folder_ / "clicks.tsv").string()};
    config.rows.label = {"clicked"};
    config.rows.dense = {{.columns = {"size"}, .transform = "standard"}};
    config.rows.sparse = {{.columns = {"user"}, .num_rows = 50}, {.columns = {"item"}, .num_rows = 60}};
    config.rows.shuffle_window = 1000;
    config.embedding.lr = 0.1;
    config.optimizer.lr = 1e-2;
    config.optimizer.weight_decay = 0;
    config.train.steps = 200;
    config.train.batch = 128;
    config.checkpoint.every_steps = 0;
    config.eval.every_steps = 100;
    config.log.tensorboard = false;
    return config;
  }

  std::vector<nlohmann::json> metrics(const std::string& run) const {
    std::vector<nlohmann::json> lines;
    std::istringstream in(read_file((folder_ / run / "metrics.jsonl").string()));
    for (std::string line; std::getline(in, line);) lines.push_back(nlohmann::json::parse(line));
    return lines;
  }
  std::filesystem::path file(const std::string& run, const char* name) const { return folder_ / run / name; }

 private:
  test::TemporaryFolder folder_;
};

Snapshot last_checkpoint(const RunConfig& config) { return read_latest_checkpoint(config.folder() / "checkpoints"); }

void expect_same_tensors(const Snapshot& a, const Snapshot& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors) EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
}

class EveryModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryModel, LearnsWhichPairsAreClicked) {
  const Clicks data;
  const RunConfig config = data.config(GetParam());
  train_alone(config);
  const auto lines = data.metrics("run");
  ASSERT_EQ(lines.size(), 200);
  EXPECT_EQ(lines[9]["samples"], 1280);
  EXPECT_FALSE(lines[9].contains("auc"));
  // Who knows all hidden numbers reaches 0.90, and who knows users and items alone 0.50.
  EXPECT_GT(lines[199]["auc"], 0.8);
  EXPECT_LT(lines[199]["normalized_entropy"], 0.75);
  EXPECT_NEAR(lines[199]["calibration"].get<double>(), 1, 0.1);
  EXPECT_EQ(lines[199]["validation_samples"], 600);
  EXPECT_LT(lines[0]["loss"], 1.2 * std::log(2));
  EXPECT_THAT(read_file(data.file("run", "report.html").string()), HasSubstr("AUC"));
}

TEST_P(EveryModel, ResumesBitForBit) {
  const Clicks data;
  const RunConfig whole = data.config(GetParam(), "whole");
  train_alone(whole);
  RunConfig cut = data.config(GetParam(), "cut");
  cut.checkpoint.every_steps = 60;
  cut.train.steps = 100;
  cut.schedule.decay = "constant";
  RunConfig uncut = cut;
  uncut.run.folder = data.file("uncut", "").parent_path().string();
  train_alone(uncut);
  RunConfig first = cut;
  first.train.steps = 60;
  train_alone(first);
  train_alone(cut);
  expect_same_tensors(last_checkpoint(cut), last_checkpoint(uncut));
}

INSTANTIATE_TEST_SUITE_P(Recommender, EveryModel, ::testing::Values("wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe"));

/// What was looked at before and for how long, and an item: it is clicked more often if it was looked at for long. How
/// long each was looked at says nothing without the item.
std::string histories(int rows) {
  const auto draw = [](uint64_t key, uint64_t i, uint64_t below) {
    return random_below(key, RandomStream::kTest, i, below);
  };
  std::string text = "item\tlooked\tlong\tclicked\n";
  for (int i = 0; i < rows; ++i) {
    const auto at = static_cast<uint64_t>(i);
    const uint64_t item = draw(1, at, 8), events = draw(2, at, kEvents + 1);
    std::string looked, how_long;
    bool likes = false;
    for (uint64_t e = 0; e < events; ++e) {
      const uint64_t other = draw(3, at * kEvents + e, 8), time = draw(4, at * kEvents + e, 2);
      looked += fmt::format("{}i{}", e == 0 ? "" : "|", other);
      how_long += fmt::format("{}{}", e == 0 ? "" : "|", time);
      likes = likes || (other == item && time == 1);
    }
    text += fmt::format("i{}\t{}\t{}\t{:d}\n", item, looked, how_long, draw(5, at, 10) < (likes ? 9 : 1));
  }
  return text;
}

class Histories : public Clicks {
 public:
  Histories() { write_file_atomically(file("", "histories.tsv"), histories(8000)); }

  RunConfig config(const std::string& model, const std::string& name = "run") const {
    RunConfig config = Clicks::config(model, name);
    config.rows.files = {file("", "histories.tsv").string()};
    config.rows.dense = {};
    config.rows.sparse = {
        {.columns = {"item"}, .num_rows = 20},
        {.columns = {"looked"},
         .num_rows = 20,
         .separator = "|",
         .max_length = kEvents,
         .sequence = true,
         .table = "item"},
        {.columns = {"long"}, .num_rows = 9, .separator = "|", .max_length = kEvents, .sequence = true}};
    config.recommender.deep = {32};
    config.train.steps = 300;
    config.eval.every_steps = 0;
    if (model == "dien") config.recommender.auxiliary = {16};
    if (model == "can") {
      config.recommender.micro = {8, 4};
      config.recommender.co_action = {"item * looked", "item * long"};
    }
    return config;
  }
};

class EverySequenceModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EverySequenceModel, LearnsFromTheEventsThatTheCandidateIsLike) {
  const Histories data;
  train_alone(data.config(GetParam()));
  const auto lines = data.metrics("run");
  EXPECT_GT(lines.back()["auc"], 0.75);
  const bool auxiliary = std::string(GetParam()) == "dien";
  ASSERT_EQ(lines.back().contains("auxiliary_loss"), auxiliary);
  if (auxiliary) {
    EXPECT_LT(lines.back()["auxiliary_loss"], lines[0]["auxiliary_loss"]);
  }
}

TEST_P(EverySequenceModel, MicroBatchesAreTheBatch) {
  const Histories data;
  RunConfig whole = data.config(GetParam(), "whole"), parts = data.config(GetParam(), "parts");
  for (RunConfig* config : {&whole, &parts}) config->train.steps = 10;
  whole.recommender.grain = parts.recommender.grain = 25;
  parts.train.micro_batch = 50;
  train_alone(whole);
  train_alone(parts);
  expect_same_tensors(last_checkpoint(whole), last_checkpoint(parts));
  EXPECT_EQ(data.metrics("whole").back()["loss"], data.metrics("parts").back()["loss"]);
}

TEST_P(EverySequenceModel, ResumesBitForBit) {
  const Histories data;
  RunConfig uncut = data.config(GetParam(), "uncut"), cut = data.config(GetParam(), "cut");
  for (RunConfig* config : {&uncut, &cut}) {
    config->train.steps = 20;
    config->schedule.decay = "constant";
  }
  train_alone(uncut);
  RunConfig first = cut;
  first.train.steps = 8;
  train_alone(first);
  train_alone(cut);
  expect_same_tensors(last_checkpoint(cut), last_checkpoint(uncut));
}

INSTANTIATE_TEST_SUITE_P(Recommender, EverySequenceModel, ::testing::Values("din", "dien", "can"));

TEST(Recommender, SequencesArePooledByOtherModels) {
  const Histories data;
  RunConfig config = data.config("dcnv2");
  config.train.steps = 20;
  train_alone(config);
  EXPECT_FALSE(data.metrics("run").back().contains("auxiliary_loss"));
}

/// Two tasks with opposite labels and few rows that have the second one.
TEST(Recommender, TasksAreLearntTogetherAndMeasuredByName) {
  const Clicks data;
  std::string text = read_file(data.file("", "clicks.tsv").string());
  std::string tasks;
  int row = -1;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line); ++row) {
    const bool clicked = line.back() == '1';
    tasks += line + (row < 0 ? "\tnot clicked\n" : row % 3 == 0 ? fmt::format("\t{:d}\n", !clicked) : "\t\n");
  }
  write_file_atomically(data.file("", "tasks.tsv"), tasks);
  RunConfig whole = data.config("mmoe", "whole");
  whole.rows.files = {data.file("", "tasks.tsv").string()};
  whole.rows.label = {"clicked", "not clicked"};
  whole.rows.missing_label = "mask";
  whole.rows.group = "user";
  whole.recommender.task_weights = {1, 0.5};
  whole.log.tensorboard = true;
  whole.recommender.grain = 37;
  RunConfig parts = whole;
  parts.run.name = "parts";
  parts.run.folder = data.file("parts", "").parent_path().string();
  parts.train.micro_batch = 37;
  train_alone(whole);
  train_alone(parts);
  const auto lines = data.metrics("whole");
  const auto& last = lines.back();
  EXPECT_FALSE(last.contains("auc"));
  ASSERT_EQ(last["tasks"].size(), 2);
  EXPECT_EQ(last["tasks"]["clicked"]["samples"], 600);
  EXPECT_EQ(last["tasks"]["not clicked"]["samples"], 200);
  for (const char* task : {"clicked", "not clicked"}) {
    EXPECT_GT(last["tasks"][task]["auc"], 0.8) << task;
    EXPECT_GT(last["tasks"][task]["gauc"], 0.7) << task;  // of users with a few rows each
    EXPECT_NEAR(last["tasks"][task]["calibration"].get<double>(), 1, 0.15) << task;
    EXPECT_THAT(read_file(data.file("whole", "report.html").string()), HasSubstr("AUC, " + std::string(task)));
  }
  EXPECT_NEAR(
      last["validation_loss"].get<double>(),
      last["tasks"]["clicked"]["log_loss"].get<double>() + 0.5 * last["tasks"]["not clicked"]["log_loss"].get<double>(),
      1e-12);
  // The first losses: at its start a model says about 1/2.
  EXPECT_NEAR(lines[0]["loss"].get<double>(), 1.5 * std::log(2), 0.3);
  EXPECT_NEAR(lines[0]["loss"].get<double>(), data.metrics("parts")[0]["loss"].get<double>(), 1e-5);
  EXPECT_NEAR(lines[30]["loss"].get<double>(), data.metrics("parts")[30]["loss"].get<double>(), 1e-3);
}

TEST(Recommender, EveryOptimizerOfTablesLearns) {
  const Clicks data;
  for (const char* optimizer : {"sgd", "momentum", "adagrad", "rowwise_adagrad", "adam"}) {
    RunConfig config = data.config("deepfm", optimizer);
    config.embedding.optimizer = optimizer;
    config.embedding.lr = std::string(optimizer) == "sgd" ? 5 : std::string(optimizer) == "momentum" ? 0.5 : 0.05;
    train_alone(config);
    EXPECT_GT(data.metrics(optimizer).back()["auc"], 0.8) << optimizer;
  }
}

TEST(Recommender, MicroBatchesAreTheBatch) {
  const Clicks data;
  RunConfig whole = data.config("dlrm", "whole"), parts = data.config("dlrm", "parts");
  for (RunConfig* config : {&whole, &parts}) config->train.steps = 20;
  whole.recommender.grain = parts.recommender.grain = 25;
  parts.train.micro_batch = 50;
  parts.embedding.packing = false;
  parts.embedding.groups = 2;
  train_alone(whole);
  train_alone(parts);
  expect_same_tensors(last_checkpoint(whole), last_checkpoint(parts));
}

/// How far apart two runs end: the largest difference within a tensor, as a share of its largest element.
double furthest(const Snapshot& a, const Snapshot& b) {
  double furthest = 0;
  for (const auto& [name, tensor] : a.tensors) {
    if (!b.tensors.contains(name)) continue;  // the reference has weights alone
    const double scale = tensor.abs().max().item<double>() + 1e-30;
    furthest = std::max(furthest, (tensor - b.tensors.at(name)).abs().max().item<double>() / scale);
  }
  return furthest;
}

/// A run of 100 steps of float64, one sample's row after another: the same initial weights, batches and schedule.
Snapshot train_serially_in_float64(const RunConfig& config) {
  const auto seed = static_cast<uint64_t>(config.run.seed);
  const std::shared_ptr<Recommender> model = make_recommender(config.recommender, recommender_inputs(config));
  initialize(*model, seed);
  model->to(at::kDouble);
  const embedding::PackSpec spec = RecommenderLookups(config).pack();
  embedding::PackedTables shapes(spec);
  embedding::testing::Reference tables(shapes);
  torch::optim::AdamW optimizer(model->parameters(), torch::optim::AdamWOptions()
                                                         .betas({config.optimizer.betas[0], config.optimizer.betas[1]})
                                                         .eps(config.optimizer.eps)
                                                         .weight_decay(0));
  RowLoader loader(config.rows, {.seed = seed, .batch = config.train.batch});
  for (int64_t step = 0; step < config.train.steps; ++step) {
    const RowBatch batch = loader.step(step);
    const embedding::Jagged ids{batch.values, batch.offsets, batch.weights, std::ssize(config.rows.sparse),
                                config.train.batch};
    const at::Tensor pooled = tables.pool(ids).requires_grad_();
    optimizer.zero_grad();
    const at::Tensor logits = model->forward({.dense = batch.dense.to(at::kDouble), .embedded = pooled}).logits;
    at::binary_cross_entropy_with_logits(logits, batch.labels.to(at::kDouble)).backward();
    const double lr = learning_rate(config.schedule, config.optimizer.lr, step, config.train.steps);
    shapes.set_lr(config.embedding.lr * lr / config.optimizer.lr);
    tables.update(ids, pooled.grad());
    for (auto& group : optimizer.param_groups()) group.options().set_lr(lr);
    optimizer.step();
  }
  Snapshot end;
  for (const auto& item : model->named_parameters()) end.tensors["model." + item.key()] = item.value().detach();
  for (size_t t = 0; t < spec.tables.size(); ++t)
    end.tensors["embedding." + spec.tables[t].name + ".weight"] = tables.weight[t];
  return end;
}

/// What is compared with one rank: how a run of 100 steps is cut up.
struct Cut {
  int ranks;
  const char* sharding;
  bool packing = true;
  int64_t groups = 1, micro_batch = 0;
  int64_t memory_bytes = 0;
  const char* policy = "hot";
};

Snapshot train_cut(RunConfig config, const Cut& cut) {
  config.embedding.sharding = cut.sharding;
  config.embedding.packing = cut.packing;
  config.embedding.groups = cut.groups;
  config.train.micro_batch = cut.micro_batch;
  config.embedding.memory_bytes = cut.memory_bytes;
  config.embedding.policy = cut.policy;
  if (cut.memory_bytes > 0) config.embedding.step_rows = 60;
  if (cut.memory_bytes > 0 && std::string(cut.policy) == "hot") config.embedding.warmup_steps = 10;
  expect_all_succeed(cut.ranks, [&](const std::shared_ptr<Group>& group) { train(config, group, {.quiet = true}); });
  return last_checkpoint(config);
}

TEST(Recommender, OfAnyCutIsTheSerialReference) {
  const Clicks data;
  const auto config = [&](const std::string& name) {
    RunConfig config = data.config("dlrm", name);
    config.train.steps = 100;
    config.recommender.grain = 16;
    config.embedding.optimizer = "adagrad";
    for (SparseConfig& feature : config.rows.sparse) feature.num_rows = 1000;  // memory_bytes holds some 30
    return config;
  };
  const Snapshot one = train_cut(config("one"), {.ranks = 1, .sharding = "auto"});
  const Snapshot reference = train_serially_in_float64(config("reference"));
  EXPECT_LT(furthest(reference, one), 1e-5);
  int number = 0;
  const auto run = [&](const Cut& cut) { return train_cut(config("cut" + std::to_string(++number)), cut); };
  for (const Cut& cut : {Cut{.ranks = 1, .sharding = "auto", .packing = false, .groups = 2, .micro_batch = 32},
                         Cut{.ranks = 1, .sharding = "auto", .memory_bytes = 20000},
                         Cut{.ranks = 1,
                             .sharding = "auto",
                             .packing = false,
                             .micro_batch = 16,
                             .memory_bytes = 20000,
                             .policy = "lru"}})
    expect_same_tensors(one, run(cut));
  for (const Cut& cut : {Cut{.ranks = 2, .sharding = "auto", .micro_batch = 32},
                         Cut{.ranks = 2, .sharding = "row", .groups = 2, .memory_bytes = 20000},
                         Cut{.ranks = 2, .sharding = "column"}, Cut{.ranks = 4, .sharding = "table", .micro_batch = 16},
                         Cut{.ranks = 4, .sharding = "replicated", .packing = false},
                         Cut{.ranks = 4, .sharding = "row", .micro_batch = 16}}) {
    const Snapshot found = run(cut);
    EXPECT_LT(furthest(one, found), 64 * 0x1p-23) << cut.ranks << " ranks, " << cut.sharding;
    EXPECT_LT(furthest(reference, found), 1e-5);
  }
}

TEST(Recommender, RowsOfLowPrecisionLearnAndDoNotDependOnTheCut) {
  const Clicks data;
  for (const char* dtype : {"bf16", "mxfp8"}) {
    const auto config = [&](const std::string& name) {
      RunConfig config = data.config("dlrm", std::string(dtype) + name);
      config.recommender.grain = 16;
      config.embedding.row_dtype = dtype;
      return config;
    };
    const Snapshot one = train_cut(config("one"), {.ranks = 1, .sharding = "auto"});
    EXPECT_GT(data.metrics(std::string(dtype) + "one").back()["auc"], 0.8) << dtype;
    const at::Tensor rows = one.tensors.at("embedding.user.weight");
    EXPECT_EQ(rows.nbytes(), std::string(dtype) == "bf16" ? 50 * 8 * 2 : 50 * (8 + 1));
    expect_same_tensors(one, train_cut(config("parts"), {.ranks = 1, .sharding = "auto", .micro_batch = 32}));
    RunConfig two = config("two");
    two.checkpoint.every_steps = 60;
    RunConfig again = two;
    again.run.folder = data.file(std::string(dtype) + "again", "").parent_path().string();
    two.train.steps = again.train.steps = 100;
    two.schedule.decay = again.schedule.decay = "constant";
    const Cut cut = {.ranks = 2, .sharding = "row"};
    const Snapshot whole = train_cut(two, cut);
    RunConfig first = again;
    first.train.steps = 60;
    train_cut(first, cut);
    expect_same_tensors(whole, train_cut(again, cut));
    again.train.steps = 120;
    again.embedding.row_dtype = "fp32";
    EXPECT_THAT([&] { train_alone(again); }, ::testing::ThrowsMessage<UserError>(HasSubstr("row_dtype")));
  }
}

TEST(Recommender, GoesOnAtAnotherNumberOfRanks) {
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

TEST(Recommender, RefusesWhatItCannotTrain) {
  const Clicks data;
  const auto refusal = [&](auto change) {
    RunConfig config = data.config("deepfm");
    change(config);
    try {
      train_alone(config);
    } catch (const UserError& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  EXPECT_THAT(refusal([](RunConfig& c) { c.run.device = "cuda"; }), HasSubstr("tables are on the CPU only"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.rows.sparse[1].num_rows = 0; }), HasSubstr("\"item\" has no num_rows"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.train.micro_batch = 50; }),
              HasSubstr("must be a multiple of recommender.grain = 256"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.embedding.groups = 5; }), HasSubstr("cannot be in 5 groups"));
  EXPECT_THAT(refusal([](RunConfig& c) { c.embedding.memory_bytes = 100; }), HasSubstr("of memory_bytes, but need"));
  const RunConfig config = data.config("deepfm");
  RunConfig short_run = config;
  short_run.train.steps = 2;
  train_alone(short_run);
  EXPECT_THAT(refusal([](RunConfig& c) { c.recommender.dim = 4; }), HasSubstr("recommender.dim was 8, is 4"));
  try {
    load_model(config.folder());
    ADD_FAILURE() << "loaded";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("is of a recommender (deepfm)"));
  }
}

}  // namespace
}  // namespace dovetail
