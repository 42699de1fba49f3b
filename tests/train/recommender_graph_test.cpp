// The dense part of a recommender's step as a recording. On the CPU, a replay calls the recorded
// function again. So it shows whether the step hands over each input and takes each result.
#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/data/rows/row_loader.h"
#include "dovetail/train/embedding_tables/placement.h"
#include "dovetail/train/recommender/step.h"
#include "tests/train/histories.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::recommender_graph_test {
namespace {

using test::Histories;

/// Model, tables and rows of a run.
struct Trained {
  RunConfig config;
  RecommenderLookups lookups;
  std::shared_ptr<models::Recommender> model;
  std::optional<Optimizer> optimizer;
  std::shared_ptr<comm::Group> group = comm::local_groups(1)[0];
  std::optional<embedding::DistributedTables> tables;
  std::optional<RecommenderStep> step;
  std::optional<data::RowLoader> loader;

  Trained(const RunConfig& of, ops::WorkRecorder record)
      : config(of),
        lookups(config),
        model(models::make_recommender(config.recommender, recommender_inputs(config))) {
    initialize(*model, 3);
    optimizer.emplace(*model, config.optimizer);
    optimizer->bind(*model);
    const embedding::PlacementOptions options = placement_options(config.embedding, lookups.pack());
    tables.emplace(lookups.pack(), embedding::place_tables(lookups.pack(), options),
                   group->split({{0}}));
    step.emplace(model, lookups, *optimizer, group,
                 RecommenderStep::Options{.grain = 16, .clip = 1, .record = std::move(record)});
    loader.emplace(config.rows, data::RowLoaderOptions{.seed = 5, .batch = config.train.batch});
  }

  /// Trains on the first `samples` rows of a batch.
  StepOutcome run(int64_t number, int64_t samples, int64_t micro_batch) {
    loader->set_part(0, samples);
    StepRows rows{.step = number,
                  .rows = samples,
                  .micro_batch = micro_batch,
                  .batch = loader->step(number),
                  .ids = {},
                  .tables = {}};
    rows.ids = lookups.ids(rows.batch, static_cast<uint64_t>(number + 1));
    rows.tables = tables->start(rows.ids, micro_batch, (samples + micro_batch - 1) / micro_batch);
    const StepOutcome outcome =
        step->run(rows, *tables, [] { return nullptr; }, /*lr=*/1e-2, /*want_stop=*/false);
    tables->update(rows.tables);
    return outcome;
  }
};

void expect_same_bits(const Trained& a, const Trained& b) {
  const auto left = a.optimizer->tensors(), right = b.optimizer->tensors();
  for (const auto& [name, tensor] : left) EXPECT_TRUE(at::equal(tensor, right.at(name))) << name;
  for (int64_t t = 0; t < std::ssize(a.lookups.pack().tables); ++t)
    EXPECT_TRUE(at::equal(a.tables->read(t).weight, b.tables->read(t).weight)) << "table " << t;
}

RunConfig config_of(const Histories& data, const std::string& model) {
  const bool events = model == "din" || model == "dien" || model == "can";
  RunConfig config = events ? data.config(model) : data.Clicks::config(model);
  config.train.batch = 64;
  config.embedding.optimizer = "adam";
  return config;
}

/// Counts calls of the recorder and of its replays.
struct Recorder {
  int recorded = 0, replayed = 0;

  ops::WorkRecorder recorder() {
    return [this](const std::function<void()>& work) {
      ++recorded;
      work();  // a GPU queues nothing while it records
      return [this, work] {
        ++replayed;
        work();
      };
    };
  }
};

TEST(RecommenderGraph, ReplaysTheBitsOfItsOperations) {
  const Histories data;
  for (const std::string model :
       {"wide_deep", "deepfm", "dlrm", "dcnv2", "mmoe", "din", "dien", "can"}) {
    SCOPED_TRACE(model);
    const RunConfig config = config_of(data, model);
    Recorder recorder;
    Trained plain(config, nullptr), graphed(config, recorder.recorder());
    for (int64_t step = 0; step < 6; ++step) {
      const StepOutcome want = plain.run(step, 64, 64), got = graphed.run(step, 64, 64);
      EXPECT_EQ(got.loss, want.loss) << step;
      EXPECT_EQ(got.grad_norm, want.grad_norm) << step;
      EXPECT_EQ(got.auxiliary_loss, want.auxiliary_loss) << step;
      EXPECT_EQ(graphed.step->has_graph(), step >= 2);
    }
    EXPECT_EQ(recorder.recorded, 1);
    EXPECT_EQ(recorder.replayed, 4);
    expect_same_bits(plain, graphed);
  }
}

TEST(RecommenderGraph, StepsOfOtherShapesRunByThemselves) {
  const Histories data;
  const RunConfig config = config_of(data, "deepfm");
  Recorder recorder;
  Trained plain(config, nullptr), graphed(config, recorder.recorder());
  const std::vector<std::pair<int64_t, int64_t>> course = {
      {64, 64}, {64, 64}, {64, 64}, {64, 32}, {48, 64}, {64, 64}};  // samples, micro-batch
  for (size_t i = 0; i < course.size(); ++i) {
    const auto [samples, micro_batch] = course[i];
    const auto number = static_cast<int64_t>(i);
    EXPECT_EQ(graphed.run(number, samples, micro_batch).loss,
              plain.run(number, samples, micro_batch).loss)
        << i;
  }
  EXPECT_EQ(recorder.recorded, 1);
  EXPECT_EQ(recorder.replayed, 2);
  expect_same_bits(plain, graphed);
}

TEST(RecommenderGraph, AFailedRecordingIsToldAndTheStepRunsWithoutIt) {
  const Histories data;
  const RunConfig config = config_of(data, "dlrm");
  int tried = 0;
  Trained plain(config, nullptr),
      failing(config, [&](const std::function<void()>& work) -> std::function<void()> {
        ++tried;
        work();
        TORCH_CHECK(false, "operation not permitted when stream is capturing");
      });
  for (int64_t step = 0; step < 5; ++step)
    EXPECT_EQ(failing.run(step, 64, 64).loss, plain.run(step, 64, 64).loss) << step;
  EXPECT_EQ(tried, 1);
  EXPECT_FALSE(failing.step->has_graph());
  EXPECT_THAT(failing.step->graph_failure(), ::testing::HasSubstr("stream is capturing"));
  expect_same_bits(plain, failing);
}

TEST(RecommenderGraph, ARunThatCannotHaveOneIsRefused) {
  const Histories data;
  RunConfig config = data.Clicks::config("deepfm", "on");
  config.run.cuda_graph = "on";
  EXPECT_THAT([&] { test::train_alone(config); },
              ::testing::ThrowsMessage<UserError>(
                  ::testing::HasSubstr("run.cuda_graph = \"on\", but the run is on the CPU")));
}

}  // namespace
}  // namespace dovetail::train::recommender_graph_test
