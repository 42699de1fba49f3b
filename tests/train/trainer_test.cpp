#include "dovetail/train/trainer.h"
#include "dovetail/train/resolve/load_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/file.h>

#include <cmath>
#include <fstream>
#include <thread>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/load_run.h"
#include "dovetail/train/run/folder.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::trainer_test {
namespace {

using test::train_alone;
using ::testing::AllOf;
using ::testing::HasSubstr;

io::Snapshot last_checkpoint(const RunConfig& config) {
  return io::read_latest_checkpoint(config.folder() / "checkpoints");
}

void expect_same_tensors(const io::Snapshot& a, const io::Snapshot& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (const auto& [name, tensor] : a.tensors)
    EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
}

std::string refusal(const RunConfig& config, const TrainOptions& options = {}) {
  try {
    train_alone(config, options);
  } catch (const UserError& error) {
    return std::string(error.what()) + " | " + error.help();
  }
  return "accepted";
}

TEST(Train, LearnsAndLeavesItsFiles) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.train.steps = 60;
  config.optimizer.lr = 1e-2;
  config.eval.every_steps = 25;
  config.log.tensorboard = true;
  config.log.trace_steps = {2};
  config.log.sample_prompts = {"two "};
  config.log.sample_tokens = 8;
  const TrainResult result = train_alone(config);
  EXPECT_EQ(result.steps, 60);
  EXPECT_FALSE(result.interrupted);
  // Knowing nothing costs ln 257 = 5.55 nats.
  EXPECT_LT(result.validation_loss.value(), 3.2);
  EXPECT_GT(result.validation_loss.value(), 0.3);
  // Bytes: one token is one byte, except for the ends of documents.
  const double loss = result.validation_loss.value();
  EXPECT_NEAR(result.validation_nats_per_byte.value(), loss, 0.01 * loss);

  const auto lines = run.metrics("run");
  ASSERT_EQ(lines.size(), 60);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_EQ(lines[i]["step"], i + 1);
    EXPECT_EQ(lines[i]["tokens"], (i + 1) * 4 * 16);
    EXPECT_EQ(lines[i].contains("validation_loss"), i + 1 == 25 || i + 1 == 50 || i + 1 == 60);
  }
  EXPECT_EQ(lines[59]["loss"], result.loss);
  EXPECT_EQ(lines[59]["validation_loss"], result.validation_loss.value());

  const auto machine = nlohmann::json::parse(run.read("run", "machine.json"));
  EXPECT_EQ(machine["finished"], true);
  EXPECT_EQ(machine["precision"]["compute"], "fp32");
  EXPECT_EQ(machine["data"]["sha256"].size(), 1);
  const auto samples = nlohmann::json::parse(run.read("run", "samples.json"));
  ASSERT_EQ(samples.size(), 1);
  EXPECT_EQ(samples[0]["prompt"], "two ");
  EXPECT_FALSE(samples[0]["continuation"].get<std::string>().empty());
  EXPECT_TRUE(nlohmann::json::parse(run.read("run", "trace-2.json")).contains("traceEvents"));
  EXPECT_TRUE(std::filesystem::exists(run.file("run", "report.html")));
  EXPECT_FALSE(std::filesystem::is_empty(run.file("run", "events")));
  EXPECT_EQ(load_run_config(run.file("run", "config.toml"), {}).optimizer.lr, 1e-2);
  EXPECT_EQ(load_model(config.folder()).step, 60);
}

class EveryPrecision : public ::testing::TestWithParam<const char*> {};

TEST_P(EveryPrecision, AnInterruptedRunResumesBitForBit) {
  const test::TinyRun run;
  const auto prepared = [&](const std::string& name) {
    RunConfig config = run.config(name);
    config.precision.recipe = GetParam();
    config.model.layers = 3;  // nvfp4 leaves the first and the last block in high precision
    config.train.micro_batch = 2;
    config.eval.every_steps = 4;
    config.schedule.warmup_steps = 3;
    return config;
  };
  const TrainResult whole = train_alone(prepared("whole"));

  RunConfig config = prepared("parts");
  config.train.time_limit_s = 1e-9;
  // Each process makes one step, since its time is up at once.
  for (int64_t step = 1; step <= 5; ++step) {
    const TrainResult part = train_alone(config);
    EXPECT_EQ(part.steps, step);
    EXPECT_TRUE(part.interrupted);
  }
  config.train.time_limit_s = 0;
  const TrainResult rest = train_alone(config);
  EXPECT_FALSE(rest.interrupted);
  EXPECT_EQ(rest.loss, whole.loss);
  EXPECT_EQ(rest.validation_loss, whole.validation_loss);
  EXPECT_EQ(run.read("parts", "metrics.jsonl"), run.read("whole", "metrics.jsonl"));
  expect_same_tensors(last_checkpoint(config), last_checkpoint(prepared("whole")));
  EXPECT_EQ(nlohmann::json::parse(run.read("parts", "machine.json"))["resumed_from"],
            nlohmann::json({1, 2, 3, 4, 5}));
}
INSTANTIATE_TEST_SUITE_P(Train, EveryPrecision,
                         ::testing::Values("fp32", "bf16", "fp64", "mxfp8", "mxfp4_stochastic",
                                           "fp8_tensor_delayed", "fp8_block", "nvfp4",
                                           "nvfp4_plain"));

TEST(Train, MicroBatchesAndRecomputationChangeOnlyTheRounding) {
  const test::TinyRun run;
  const auto final_loss = [&](const std::string& name, int64_t micro_batch, bool recompute) {
    RunConfig config = run.config(name);
    config.precision.recipe = "fp64";
    config.train.micro_batch = micro_batch;
    config.train.checkpoint_activations = recompute;
    return train_alone(config).loss;
  };
  const double whole = final_loss("whole", 0, false);
  EXPECT_NEAR(final_loss("ones", 1, false), whole, 1e-12);
  EXPECT_NEAR(final_loss("threes", 3, false), whole, 1e-12);
  EXPECT_NEAR(final_loss("recomputed", 0, true), whole, 1e-12);
}

TEST(Train, AFinishedRunIsNotTrainedAgain) {
  const test::TinyRun run;
  const RunConfig config = run.config();
  const TrainResult first = train_alone(config);
  const std::string metrics = run.read("run", "metrics.jsonl");
  const TrainResult again = train_alone(config);
  EXPECT_EQ(again.steps, 12);
  EXPECT_EQ(again.loss, first.loss);
  EXPECT_EQ(again.validation_loss, first.validation_loss);
  EXPECT_EQ(run.read("run", "metrics.jsonl"), metrics);
}

TEST(Train, AFreshStartForgetsTheEarlierRun) {
  const test::TinyRun run;
  RunConfig config = run.config();
  train_alone(config);
  config.run.seed = 2;
  config.train.steps = 5;
  EXPECT_EQ(train_alone(config, {.resume = false}).steps, 5);
  EXPECT_EQ(run.metrics("run").size(), 5);
  EXPECT_EQ(io::CheckpointFolder(config.folder() / "checkpoints", {}).steps(),
            std::vector<int64_t>{5});
}

TEST(Train, ResumingRefusesAnotherRunAndNamesTheKeys) {
  const test::TinyRun run;
  train_alone(run.config());
  const auto with = [&](auto change) {
    RunConfig config = run.config();
    config.train.steps = 14;
    change(config);
    return refusal(config);
  };
  EXPECT_THAT(with([](RunConfig& c) { c.model.width = 64; }),
              AllOf(HasSubstr("model.width was 32, is 64"), HasSubstr("run.name")));
  EXPECT_THAT(with([](RunConfig& c) { c.run.seed = 9; }), HasSubstr("run.seed"));
  EXPECT_THAT(with([](RunConfig& c) { c.train.batch = 6; }), HasSubstr("train.batch"));
  EXPECT_THAT(with([](RunConfig& c) { c.precision.recipe = "fp64"; }),
              HasSubstr("precision.recipe"));
  EXPECT_THAT(with([&](RunConfig& c) {
                write_file_atomically(run.file("", "other.txt"), test::some_text(3000));
                c.data.text = {run.file("", "other.txt").string()};
                c.data.path = run.file("", "other").string();
              }),
              HasSubstr("sha256"));
  EXPECT_EQ(with([](RunConfig& c) { c.optimizer.lr = 1e-4; }), "accepted");
}

TEST(Train, ARunCanBeExtended) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.schedule.decay = "constant";
  train_alone(config);
  config.train.steps = 20;
  EXPECT_EQ(train_alone(config).steps, 20);
  EXPECT_EQ(run.metrics("run").size(), 20);
}

TEST(Train, AutomaticPrecisionStaysWhatItWas) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.precision.recipe = "bf16";
  train_alone(config);
  config.precision.recipe = "auto";
  config.train.steps = 13;
  train_alone(config);
  EXPECT_EQ(nlohmann::json::parse(run.read("run", "machine.json"))["precision"]["compute"], "bf16");
}

TEST(Train, ACorruptCheckpointGivesWayToTheOneBefore) {
  const test::TinyRun run;
  RunConfig config = run.config("whole");
  config.checkpoint.every_steps = 4;
  train_alone(config);
  const std::string metrics = run.read("whole", "metrics.jsonl");
  const auto newest = config.folder() / "checkpoints" / "step-00000012";
  for (const auto& entry : std::filesystem::directory_iterator(newest)) {
    if (entry.path().extension() == ".safetensors") std::filesystem::resize_file(entry.path(), 100);
  }
  EXPECT_EQ(train_alone(config).steps, 12);
  EXPECT_EQ(run.read("whole", "metrics.jsonl"), metrics);
  EXPECT_EQ(nlohmann::json::parse(run.read("whole", "machine.json"))["resumed_from"],
            nlohmann::json({8}));
}

TEST(Train, StopsAfterStepsThatAreNotFiniteAndSavesNoneOfThem) {
  const test::TinyRun run;
  RunConfig config = run.config();
  // The first update makes the weights so large that every later step overflows.
  config.optimizer.lr = 1e30;
  config.train.clip = 0;
  config.checkpoint.every_steps = 1;
  try {
    train_alone(config);
    FAIL() << "trained on";
  } catch (const std::runtime_error& error) {
    EXPECT_EQ(dynamic_cast<const UserError*>(&error), nullptr);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("3 steps in a row"), HasSubstr("optimizer.lr")));
  }
  const auto lines = run.metrics("run");
  ASSERT_EQ(lines.size(), 4);
  EXPECT_FALSE(lines[0].contains("skipped"));
  for (size_t i = 1; i < 4; ++i) {
    EXPECT_TRUE(lines[i]["skipped"].get<bool>());
    EXPECT_TRUE(lines[i]["loss"].is_null() || lines[i]["grad_norm"].is_null());
  }
  for (const auto& [name, tensor] : last_checkpoint(config).tensors) {
    EXPECT_TRUE(at::isfinite(tensor).all().item<bool>()) << name;
  }
}

TEST(Train, ASignalFinishesTheStepAndSaves) {
  const test::TinyRun run;
  for (const int signal : {SIGTERM, SIGINT}) {
    RunConfig config = run.config(signal == SIGTERM ? "term" : "int");
    config.train.steps = 1000000;
    TrainResult result;
    std::thread training([&] { result = train_alone(config); });
    // The handlers are there once the first step is written.
    const auto metrics = config.folder() / "metrics.jsonl";
    while (!std::filesystem::exists(metrics) || std::filesystem::file_size(metrics) == 0)
      std::this_thread::yield();
    ::kill(::getpid(), signal);
    training.join();
    EXPECT_TRUE(result.interrupted);
    EXPECT_EQ(last_checkpoint(config).step, result.steps);
    EXPECT_EQ(run.metrics(config.run.name).size(), static_cast<size_t>(result.steps));
  }
}

TEST(Train, OneProcessAtATimeInARunsFolder) {
  const test::TinyRun run;
  const RunConfig config = run.config();
  {
    const RunFolder held(config.folder());
    EXPECT_THAT(refusal(config), AllOf(HasSubstr("another process"), HasSubstr("run.name")));
  }
  EXPECT_EQ(refusal(config), "accepted");
}

TEST(Train, ADryRunWritesNothingAndTakesNoMemory) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.model = models::model_preset("nemotron-8b").config;
  config.data.path = run.file("", "absent").string();
  EXPECT_EQ(train_alone(config, {.dry_run = true}).steps, 0);
  EXPECT_FALSE(std::filesystem::exists(config.folder()));
  EXPECT_FALSE(std::filesystem::exists(config.data.path));
}

TEST(Train, SaysWhatIsMissing) {
  const test::TinyRun run;
  RunConfig config = run.config();
  config.data.text.clear();
  EXPECT_THAT(refusal(config), AllOf(HasSubstr("data.text"), HasSubstr("dovetail prepare")));
  config = run.config();
  config.run.device = "cuda";
  if (!load_gpu().empty()) {
    EXPECT_THAT(refusal(config), HasSubstr("run.device"));
  }
  config = run.config();
  config.model.vocab_size = 64;
  EXPECT_THAT(refusal(config), HasSubstr("model.vocab_size"));
}

}  // namespace
}  // namespace dovetail::train::trainer_test
