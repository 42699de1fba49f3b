#include "dovetail/train/config/run_config.h"

#include <fmt/ranges.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/resolve/load_config.h"
#include "tests/base/temporary_folder.h"
#include "tests/folder.h"

namespace dovetail::train::config_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class RunConfigFile : public ::testing::Test {
 protected:
  RunConfig load(const std::string& toml, const std::vector<std::string>& overrides = {}) {
    write_file_atomically(folder_ / "run.toml", toml);
    return load_run_config(folder_ / "run.toml", overrides);
  }
  std::string refusal(const std::string& toml, const std::vector<std::string>& overrides = {}) {
    try {
      load(toml, overrides);
    } catch (const UserError& error) {
      return std::string(error.what()) + " | " + error.help() + " | " + error.place();
    }
    return "accepted";
  }
  test::TemporaryFolder folder_;
};

TEST_F(RunConfigFile, AGivenKeyWinsOverThePresetAndThePresetOverDefaults) {
  const RunConfig config =
      load("[model]\npreset = \"gpt2-124m\"\nlayers = 3\n", {"model.context=64"});
  const models::ModelConfig preset = models::model_preset("gpt2-124m").config;
  EXPECT_EQ(config.model.layers, 3);
  EXPECT_EQ(config.model.context, 64);
  EXPECT_EQ(config.model.width, preset.width);
  EXPECT_EQ(config.model.norm, preset.norm);
  EXPECT_NE(preset.width, models::ModelConfig().width);
}

TEST_F(RunConfigFile, APresetMayComeFromTheCommandLine) {
  EXPECT_EQ(load("", {"model.preset=gpt2-124m"}).model.width, 768);
}

TEST_F(RunConfigFile, TheResolvedConfigLoadsToTheSameValues) {
  RunConfig config = load(
      "[run]\nname = \"a\"\n[model]\npreset = \"gpt2-124m\"\n[optimizer]\nlr = 0.1\nbetas = [0.8, "
      "0.9]\n",
      {"log.trace_steps=[3, 5]", "data.text=[\"a b.txt\"]", "schedule.min_lr_ratio=0.3"});
  const std::string toml = config_to_toml([&](Section& s) { config.describe(s); });
  RunConfig again = load(toml);
  EXPECT_EQ(config_to_toml([&](Section& s) { again.describe(s); }), toml);
  EXPECT_EQ(again.optimizer.lr, 0.1);
  EXPECT_EQ(again.log.trace_steps, (std::vector<int64_t>{3, 5}));
}

TEST_F(RunConfigFile, ASingleTextMayBeGivenWithoutBrackets) {
  EXPECT_EQ(load("", {"data.text=../some/text.txt"}).data.text,
            (std::vector<std::string>{"../some/text.txt"}));
}

TEST_F(RunConfigFile, RefusesWhatNoRunCanMean) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"[train]\nsteps = 10\n[schedule]\nwarmup_steps = 10", "schedule.warmup_steps = 10"},
      {"[train]\nbatch = 4\nmicro_batch = 5", "train.micro_batch = 5"},
      {"[train]\nmicro_batch = \"auto\"", "train.micro_batch = \"auto\" is for recommenders"},
      {"[optimizer]\nbetas = [0.9]", "optimizer.betas"},
      {"[optimizer]\nbetas = [0.9, 1.0]", "optimizer.betas"},
      {"[data]\ntext = [\"a\"]\nfile_list = \"b\"", "data.file_list"},
      {"[data]\npath = \"a\"\nmixture = [{ path = \"b\" }]", "data.mixture"},
      {"[train]\nsteps = 10\n[log]\ntrace_steps = [11]", "log.trace_steps"},
      {"[train]\nsteps = 10\n[schedule]\ndecay = \"wsd\"\nwarmup_steps = 5\ndecay_fraction = 0.9",
       "schedule.decay_fraction"},
      {"[run]\nname = \"a/b\"", "run.name"},
      {"[schedule]\ndecay_fraction = 0.3",
       "schedule.decay_fraction does nothing with schedule.decay = \"cosine\""},
      {"[schedule]\ndecay = \"linear\"\ndecay_fraction = 0.3",
       "schedule.decay_fraction does nothing"},
      {"[schedule]\ndecay = \"constant\"\nmin_lr_ratio = 0.3",
       "schedule.min_lr_ratio does nothing"},
      {"[log]\nsample_tokens = 3", "log.sample_tokens = 3 does nothing"},
  };
  for (const auto& [toml, key] : cases) EXPECT_THAT(refusal(toml), HasSubstr(key)) << toml;
}

TEST_F(RunConfigFile, MistakesAreNamedWithTheirPlace) {
  EXPECT_THAT(refusal("[train]\nstesp = 5\n"),
              AllOf(HasSubstr("stesp"), HasSubstr("steps"), HasSubstr("run.toml:2:")));
  EXPECT_THAT(refusal("[model]\npreset = \"gpt2-142m\"\n"), HasSubstr("gpt2-124m"));
  EXPECT_THAT(refusal("[schedule]\ndecay = \"cosin\"\n"),
              AllOf(HasSubstr("cosin"), HasSubstr("run.toml:2:")));
}

TEST_F(RunConfigFile, RefusesWhatTheTaskDoesNotRead) {
  const std::string clicks =
      "[recommender]\nmodel = \"deepfm\"\n[rows]\nfiles = [\"a.tsv\"]\nlabel = \"clicked\"\n"
      "sparse = [{ columns = \"user\", num_rows = 9 }]\n";
  EXPECT_EQ(refusal(clicks), "accepted");
  EXPECT_EQ(refusal(clicks + "[memory]\nbudget = \"0.5x\"\n"), "accepted");
  for (const std::string recipe : {"auto", "fp32", "bf16"})
    EXPECT_EQ(refusal(clicks + "[precision]\nrecipe = \"" + recipe + "\"\n"), "accepted");
  const std::pair<const char*, const char*> cases[] = {
      {"[model]\nlayers = 3\n", "model.layers = 3 does nothing: this run trains a recommender"},
      {"[data]\ntext = [\"a\"]\n", "data.text.0"},
      {"[precision]\nrecipe = \"mxfp8\"\n",
       "precision.recipe = \"mxfp8\": a recommender computes in FP32 or BF16"},
      {"[precision]\ngemm = \"native\"\n", "precision.gemm"},
      {"[[precision.override]]\nlayers = [\"deep.*\"]\nrecipe = \"bf16\"\n", "precision.override"},
      {"[[precision.recipes]]\nname = \"mine\"\n", "precision.recipes"},
      {"[parallel]\nexpert = 2\n", "parallel.expert"},
      {"day = \"date\"\n[memory]\nbudget = \"0.5x\"\n",
       "memory.budget does not work with rows.day = \"date\""},
      {"[log]\nsample_prompts = [\"a\"]\n", "log.sample_prompts.0"},
      {"[embedding]\nmomentum = 0.5\n", "embedding.momentum does nothing with embedding.optimizer"},
      {"[embedding]\noptimizer = \"sgd\"\neps = 0.5\n", "embedding.eps does nothing"},
      {"[embedding]\npolicy = \"lru\"\n",
       "embedding.policy does nothing with embedding.memory_bytes = 0"},
      {"[embedding]\nstep_rows = 9\n", "embedding.step_rows does nothing"},
      {"[embedding]\nmemory_bytes = 9\npolicy = \"lru\"\nwarmup_steps = 9\n",
       "warmup_steps and refresh_steps do nothing"}};
  for (const auto& [toml, key] : cases) EXPECT_THAT(refusal(clicks + toml), HasSubstr(key)) << toml;
  const std::pair<std::vector<const char*>, const char*> features[] = {
      {{"max_bytes = \"64MiB\""}, "max_bytes caps a table without a fixed vocabulary"},
      {{"max_rows = 9", "max_bytes = \"64 mib\""}, "max_bytes = \"64 mib\" is no size"},
      {{"num_rows = 9", "pooling = \"none\""},
       "rows.sparse.item: pooling = \"none\" gives the model the rows of max_length"},
      {{"num_rows = 9", "table = \"user\"", "pooling = \"none\""}, "Give max_length"},
      {{"num_rows = 9", "table = \"user\"", "pooling = \"mean\""},
       "pooling = \"mean\", but \"user\", whose table"}};
  for (const auto& [keys, text] : features) {
    const std::string beside = fmt::format(
        "[[rows.sparse]]\ncolumns = \"user\"\nnum_rows = 9\n"
        "[[rows.sparse]]\ncolumns = \"item\"\n{}\n",
        fmt::join(keys, "\n"));
    EXPECT_THAT(refusal(clicks.substr(0, clicks.find("sparse =")) + beside), HasSubstr(text))
        << beside;
  }
  EXPECT_THAT(refusal("[embedding]\nlr = 0.5\n"),
              HasSubstr("embedding.lr = 0.5 does nothing: this run trains a GPT"));
  EXPECT_THAT(refusal("[rows]\nlabel = \"a\"\n"), HasSubstr("rows.label"));
  EXPECT_THAT(refusal("[eval]\nmax_rows = 5\n"), HasSubstr("eval.max_rows"));
}

TEST_F(RunConfigFile, RefusesAMemoryBudgetForStepsThatDiffer) {
  const std::string budget = "[memory]\nbudget = \"0.5x\"\n[model.moe]\nexperts = 4\n",
                    padded = budget + "drop = \"position\"\npad_to_capacity = true\n";
  EXPECT_EQ(refusal(padded), "accepted");
  EXPECT_EQ(refusal(budget), "accepted");  // dropless
  const std::pair<std::string, const char*> cases[] = {
      {budget + "drop = \"position\"\n", "model.moe.pad_to_capacity = false, drop = \"position\""},
      {budget + "second_expert = \"random\"\n", "second_expert = \"random\""},
      {budget + "[parallel]\nexpert = 2\n", "parallel.expert = 2"},
      {budget + "router = \"expert_choice\"\n", "model.moe.router = \"expert_choice\""},
      {padded + "capacity_factor = 0\n", "model.moe.capacity_factor = 0"},
      {padded + "[precision]\nrecipe = \"fp64\"\n", "experts in fp64"},
      {padded + "[parallel]\noverlap = \"auto\"\n", "[parallel]"},
      {padded + "[parallel]\nshadow = 1\n", "[parallel]"}};
  for (const auto& [toml, key] : cases)
    EXPECT_THAT(refusal(toml), AllOf(HasSubstr("memory.budget does not work with"), HasSubstr(key)))
        << toml;
}

TEST_F(RunConfigFile, TellsWhatMemoryMayAllow) {
  const std::string budget = "[memory]\nbudget = \"0.5x\"\n";
  for (const std::string_view name : train::MemorySection::kTechniques)
    EXPECT_EQ(refusal(budget + "folder = \"/tmp\"\nallow = [\"" + std::string(name) + "\"]\n"),
              "accepted");
  const auto refused_on = [&](c10::Device device, const std::string& toml) -> std::string {
    const RunConfig config = load(budget + toml);
    try {
      check_memory_on(config, device);
    } catch (const UserError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(refused_on(c10::kCPU, "allow = [\"offload\", \"recompute\"]\n"),
              HasSubstr("memory.allow has \"offload\", but memory.folder names no folder"));
  EXPECT_THAT(refused_on(c10::kCPU, "host_bytes = \"1GiB\"\n"),
              HasSubstr("limits memory.folder, which is not given"));
  EXPECT_EQ(refused_on(c10::kCUDA, "allow = [\"offload\"]\nhost_bytes = \"1GiB\"\n"), "accepted");
  EXPECT_THAT(refused_on(c10::kCUDA, "folder = \"/tmp\"\n"),
              HasSubstr("memory.folder does nothing on a GPU"));
  EXPECT_THAT(refused_on(c10::kCUDA, "allow = [\"compress\"]\n"),
              HasSubstr("memory.allow has \"compress\", which does not work on a GPU"));
  const std::string padded =
      "[model.moe]\nexperts = 4\ncapacity_factor = 1.0\n"
      "drop = \"position\"\npad_to_capacity = true\n";
  EXPECT_EQ(refused_on(c10::kCUDA, padded), "accepted");
  EXPECT_THAT(refused_on(c10::kCUDA, padded + "[parallel]\nexpert = 2\n"),
              HasSubstr("parallel.expert = 2 on GPUs"));
  EXPECT_THAT(refusal(budget + "folder = \"/tmp\"\nhost_bytes = \"much\"\n"),
              HasSubstr("is not a number of bytes"));
  EXPECT_EQ(refusal(budget + "allow = []\n"), "accepted");
  EXPECT_THAT(refusal(budget + "allow = [\"paging\"]\n"),
              AllOf(HasSubstr("memory.allow"), HasSubstr("\"paging\" is none of its values"),
                    HasSubstr("\"auto\", \"offload\", \"recompute\", \"compress\", "
                              "\"compress_mxfp8\", \"algorithms\"")));
  EXPECT_THAT(refusal("[memory]\nallow = [\"offload\"]\n"),
              HasSubstr("do nothing without memory.budget"));
  const plan::PlannedStep::Options usual = planned_step_options({}, c10::kCPU),
                                   lossy = planned_step_options({.allow = {"compress_mxfp8"}},
                                                                c10::kCPU);
  EXPECT_TRUE(!usual.offload && usual.recompute && usual.compress && !usual.algorithms &&
              !usual.compress_mxfp8);
  const plan::PlannedStep::Options on_disk =
      planned_step_options({.folder = "/tmp", .host_bytes = "2KiB"}, c10::kCPU);
  EXPECT_TRUE(on_disk.offload && on_disk.recompute && on_disk.host_bytes == 2048);
  EXPECT_TRUE(planned_step_options({}, c10::kCUDA).offload);
  EXPECT_TRUE(!lossy.offload && !lossy.recompute && !lossy.compress && !lossy.algorithms &&
              lossy.compress_mxfp8);
}

TEST(RunConfigs, EveryShippedConfigLoads) {
  const auto folder = test::tests_folder() / "../configs";
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".toml") continue;
    EXPECT_NO_THROW(load_run_config(entry.path(), {})) << entry.path();
    ++count;
  }
  EXPECT_GE(count, 4);
}

}  // namespace
}  // namespace dovetail::train::config_test
