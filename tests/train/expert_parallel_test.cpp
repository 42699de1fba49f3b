// ctest-labels: threads
// A run whose experts are spread over ranks against the same run on one.
#include "dovetail/train/ranks/expert_parallel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/io/checkpoint.h"
#include "dovetail/train/gpt/load_model.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/ranks/expert_layout.h"
#include "dovetail/train/resolve/resolve.h"
#include "tests/comm/ranks.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::expert_parallel_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

/// Layout of a run: number of ranks, and placement of the experts on them.
struct Layout {
  int ranks;
  ParallelSection parallel;
  int64_t micro_batch = 0;
  bool recompute = false;
};

RunConfig mixture(const test::TinyRun& run, const std::string& name) {
  RunConfig config = run.config(name);
  config.precision.recipe = "fp64";
  config.model.moe.experts = 6;
  config.model.moe.ffn_width = 24;
  config.model.moe.shared_experts = 1;
  config.model.moe.z_loss = 0.01;
  config.model.moe.score = "sigmoid";
  config.model.moe.bias_update_rate = 0.001;
  config.train.batch = 6;
  config.train.clip = 0.5;
  return config;
}

struct Trained {
  TrainResult result;
  std::map<std::string, at::Tensor> tensors;
};

Trained train_on(const Layout& layout, RunConfig config) {
  config.parallel = layout.parallel;
  config.train.micro_batch = layout.micro_batch;
  config.train.checkpoint_activations = layout.recompute;
  Trained trained;
  expect_all_succeed(layout.ranks, [&](std::shared_ptr<comm::Group> group) {
    const bool first = group->rank() == 0;
    const TrainResult result = train(config, std::move(group), {.quiet = true});
    if (first) trained.result = result;
  });
  trained.tensors = io::read_latest_checkpoint(config.folder() / "checkpoints").tensors;
  return trained;
}

void expect_near(const Trained& got, const Trained& want, double tolerance) {
  EXPECT_NEAR(got.result.loss, want.result.loss, tolerance * want.result.loss);
  const double loss = want.result.validation_loss.value();
  EXPECT_NEAR(got.result.validation_loss.value(), loss, tolerance * loss);
  ASSERT_EQ(got.tensors.size(), want.tensors.size());
  for (const auto& [name, tensor] : want.tensors) {
    ASSERT_TRUE(got.tensors.contains(name)) << name;
    ASSERT_EQ(got.tensors.at(name).sizes(), tensor.sizes()) << name;
    const double scale = std::max(1e-6, tensor.abs().max().item<double>());
    EXPECT_LE((got.tensors.at(name) - tensor).abs().max().item<double>(), tolerance * scale)
        << name;
  }
}

std::vector<Layout> layouts() {
  return {
      {2, {.expert = 2}},
      {4, {.expert = 2}},                   // two replicas of every expert
      {4, {.expert = 4, .overlap = 2}, 1},  // unequal experts, samples and micro-batches
      {4, {.expert = 4, .expert_tensor = 2, .r = 2}, 0, true},  // recomputed
      {4, {.expert = 4, .expert_tensor = 2, .r = 1, .overlap = 3}, 1, true},
      {3, {.expert = 3, .r = 0}},
      {2, {.expert = 2, .shadow = 2, .choose_every = 3}},
  };
}

TEST(ExpertParallel, EveryLayoutTrainsAsOneRank) {
  const test::TinyRun run;
  // With one micro-batch the load loss covers the whole batch; with several it covers each
  // sequence.
  const Trained whole = train_on({1, {}}, mixture(run, "whole")),
                cut = train_on({1, {}, 1}, mixture(run, "cut"));
  int i = 0;
  for (const Layout& layout : layouts()) {
    SCOPED_TRACE(++i);
    expect_near(train_on(layout, mixture(run, "spread" + std::to_string(i))),
                layout.micro_batch > 0 ? cut : whole, 1e-9);
  }
}

std::vector<double> losses(const test::TinyRun& run, const std::string& name) {
  std::vector<double> found;
  for (const auto& line : run.metrics(name))
    found.push_back(line["loss"].get<double>() + line["router_loss"].get<double>());
  return found;
}

TEST(ExpertParallel, TheDefaultMixtureLosesTheSameOnOneTwoAndFourRanks) {
  const test::TinyRun run;
  const auto losses_on = [&](const Layout& layout, const char* router, const std::string& name) {
    RunConfig config = run.config(name);
    config.precision.recipe = "fp64";
    config.model.moe = {.experts = 8, .router = router};
    config.train.steps = 20;
    config.train.batch = 8;
    train_on(layout, config);
    return losses(run, name);
  };
  int i = 0;
  for (const char* router : {"top_k", "noisy_top_k"}) {
    const auto whole = losses_on({1, {}}, router, fmt::format("{}_whole", router)),
               cut = losses_on({1, {}, 3}, router, fmt::format("{}_cut", router));
    ASSERT_EQ(whole.size(), 20U);
    EXPECT_NE(whole, cut);
    for (const Layout& layout :
         std::vector<Layout>{{2, {}},
                             {2, {.expert = 2}},
                             {4, {.expert = 4}},
                             {4, {.expert = 2}},
                             {3, {.expert = 3, .r = 0}},  // uneven: 3, 3 and 2 samples
                             {2, {.expert = 2}, 3},       // micro-batches of 3 and 1
                             {4, {}, 1}}) {
      SCOPED_TRACE(++i);
      const auto spread = losses_on(layout, router, fmt::format("{}_{}", router, i));
      const auto& alone = layout.micro_batch > 0 ? cut : whole;
      ASSERT_EQ(spread.size(), alone.size());
      for (size_t step = 0; step < alone.size(); ++step)
        EXPECT_NEAR(spread[step], alone[step], 1e-12 * alone[step]) << router << " step " << step;
    }
  }
}

TEST(ExpertParallel, PaddedToACapacityTrainsAsDropless) {
  const test::TinyRun run;
  int i = 0;
  for (const Layout& layout : layouts()) {
    if (layout.parallel.r == 0) continue;  // refused: no rows are sent that could be padded
    SCOPED_TRACE(++i);
    RunConfig dropless = mixture(run, "dropless" + std::to_string(i));
    dropless.model.moe.drop = "position";
    RunConfig padded = mixture(run, "padded" + std::to_string(i));
    padded.model.moe.drop = "position";
    padded.model.moe.pad_to_capacity = true;
    expect_near(train_on(layout, padded), train_on(layout, dropless), 1e-9);
  }
}

TEST(ExpertParallel, TheSameLayoutGivesTheSameBits) {
  const test::TinyRun run;
  RunConfig first = mixture(run, "first"), second = mixture(run, "second");
  first.precision.recipe = second.precision.recipe = "fp32";
  const Layout layout{4, {.expert = 2, .overlap = 2}};
  const Trained a = train_on(layout, first), b = train_on(layout, second);
  EXPECT_EQ(a.result.loss, b.result.loss);
  for (const auto& [name, tensor] : a.tensors)
    EXPECT_TRUE(at::equal(tensor, b.tensors.at(name))) << name;
}

TEST(ExpertParallel, ARunGoesOnInAnyOtherLayout) {
  const test::TinyRun run;
  RunConfig whole = mixture(run, "straight");
  whole.model.moe.load_scope = "sequence";  // whatever the micro-batches of a layout
  const Trained straight = train_on({1, {}}, whole);
  RunConfig cut = mixture(run, "cut");
  cut.model.moe.load_scope = "sequence";
  cut.train.time_limit_s = 1e-9;  // a process makes one step
  for (const Layout& layout : layouts()) train_on(layout, cut);
  train_on({1, {}}, cut);
  cut.train.time_limit_s = 0;
  expect_near(train_on({4, {.expert = 4}}, cut), straight, 1e-9);
}

/// Fills moments with values that differ in every element.
void fill(std::map<std::string, at::Tensor> tensors) {
  uint64_t seed = 0;
  for (auto& [name, tensor] : tensors)
    if (name.starts_with("optimizer."))
      tensor.copy_(at::arange(tensor.numel(), tensor.options())
                       .view(tensor.sizes())
                       .add_(1e5 * static_cast<double>(++seed)));
}

struct Bound {
  std::shared_ptr<models::GPT> model;
  std::optional<Optimizer> optimizer;
  Bound(const RunConfig& config, const std::shared_ptr<const moe::ExpertRanks>& ranks = nullptr)
      : model(std::make_shared<models::GPT>(config.model, c10::kCPU, ranks)) {
    initialize(*model, 5);
    optimizer.emplace(*model, config.optimizer);
    optimizer->bind(*model);
  }
};

/// Checks that each rank gets the whole tensors of `expected` that it owns, and no others.
void expect_whole_on_owners(const ExpertParallel& parallel, const Bound& part,
                            const comm::Group& group,
                            const std::map<std::string, at::Tensor>& expected) {
  const auto own = part.optimizer->tensors();
  for (const char* writers : {"first", "all"}) {
    const io::TensorOwners owners(parallel.stored(*part.model, own), group.size(), writers);
    const auto gathered = parallel.gathered(*part.model, own, owners);
    for (const auto& [name, tensor] : expected) {
      ASSERT_EQ(gathered.contains(name), owners.of(name) == group.rank()) << name;
      if (gathered.contains(name)) {
        EXPECT_TRUE(at::equal(gathered.at(name), tensor)) << name;
      }
    }
  }
}

TEST(ExpertParallel, CheckpointsHoldWholeExpertsBitForBit) {
  const test::TinyRun run;
  RunConfig config = mixture(run, "unused");
  config.model = models::resolve_model_config(config.model, 50);
  const Bound whole(config);
  fill(whole.optimizer->tensors());
  const auto expected = whole.optimizer->tensors();
  for (const Layout& layout : layouts()) {
    config.parallel = layout.parallel;
    expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
      const ExpertParallel parallel(config, group);
      Bound part(config, parallel.ranks());
      restore(*part.optimizer, *part.model, parallel,
              group->rank() == 0 ? expected : std::map<std::string, at::Tensor>(), 3, *group);
      EXPECT_EQ(part.optimizer->updates(), 3);
      expect_whole_on_owners(parallel, part, *group, expected);
      // Initial values depend on the names of the whole parameters.
      for (const auto& item : part.model->named_parameters())
        if (!parallel.is_spread(item.key())) {
          EXPECT_TRUE(at::equal(item.value(), whole.model->named_parameters()[item.key()]))
              << item.key();
        }
    });
    expect_all_succeed(layout.ranks, [&](const std::shared_ptr<comm::Group>& group) {
      const ExpertParallel parallel(config, group);
      const Bound fresh(config, parallel.ranks());
      auto initial = expected;
      std::erase_if(initial, [](const auto& item) { return !item.first.starts_with("model."); });
      expect_whole_on_owners(parallel, fresh, *group, initial);
    });
  }
}

TEST(ExpertParallel, RefusesCheckpointsOfOtherExperts) {
  const test::TinyRun run;
  RunConfig config = mixture(run, "unused");
  config.model = models::resolve_model_config(config.model, 50);
  config.parallel.expert = 2;
  const auto whole = Bound(config).optimizer->tensors();
  const std::string last = "model.blocks.1.moe.experts.5.down.weight";
  const auto error_of = [&](const std::map<std::string, at::Tensor>& tensors) {
    return run_ranks(2, [&](const std::shared_ptr<comm::Group>& group) {
      const ExpertParallel parallel(config, group);
      Bound part(config, parallel.ranks());
      restore(*part.optimizer, *part.model, parallel,
              group->rank() == 0 ? tensors : std::map<std::string, at::Tensor>(), 1, *group);
    });
  };
  auto tensors = whole;
  tensors.erase(last);
  for (const auto& error : error_of(tensors))
    EXPECT_THAT(error, HasSubstr("lacks the tensor \"" + last));
  tensors = whole;
  tensors[last] = at::zeros({32, 25});
  for (const auto& error : error_of(tensors)) EXPECT_THAT(error, HasSubstr("has shape [32, 25]"));
  tensors = whole;
  tensors["model.blocks.1.moe.experts.6.down.weight"] = at::zeros({32, 24});
  for (const auto& error : error_of(tensors)) EXPECT_THAT(error, HasSubstr("experts.6"));
}

/// Returns the plan of the first layer in the last record of a run that uses auto plans. Sending
/// one byte takes a second.
nlohmann::json chosen(const test::TinyRun& run, const std::string& name, int64_t ffn_width,
                      const char* recipe, int64_t shadow = ParallelSection::kAuto) {
  RunConfig config = mixture(run, name);
  config.precision.recipe = recipe;
  config.model.moe.ffn_width = ffn_width;
  config.model.moe.bias_update_rate = 0;
  config.log.experts_every = 6;
  const auto costs = run.file(name + "-costs", "costs.json");
  std::filesystem::create_directories(costs.parent_path());
  write_file_atomically(costs,
                        R"({"ranks_per_node": 2, "inside": {"latency_s": 1e-6, "bytes_per_s": 1},
                                   "copy_bytes_per_s": 1e9, "call_s": 1e-6, "flops": 1e12, "source": "a test"})");
  constexpr int64_t kAuto = ParallelSection::kAuto;
  train_on({2,
            {.expert = 2,
             .r = kAuto,
             .overlap = kAuto,
             .all_to_all = "auto",
             .shadow = shadow,
             .costs = costs.string(),
             .choose_every = 5}},
           config);
  nlohmann::json last;
  std::istringstream lines(run.read(name, "experts.jsonl"));
  for (std::string line; std::getline(lines, line);) last = nlohmann::json::parse(line);
  return last["layers"][0];
}

TEST(ExpertParallel, AutoGoesByTheCostsAndKeepsQuantizedExpertsWhereTheyAre) {
  const test::TinyRun run;
  // 48 tokens per rank give 96 rows of 32 elements each way. An expert has 3 x 32 x ffn_width
  // elements.
  EXPECT_EQ(chosen(run, "wide", 512, "fp32")["r"], 1);
  EXPECT_EQ(chosen(run, "narrow", 2, "fp32", /*shadow=*/0)["r"], 0);
  const nlohmann::json quantized = chosen(run, "quantized", 2, "mxfp8");
  EXPECT_EQ(quantized["r"], 1);
  EXPECT_TRUE(quantized["shadowed"].empty());
}

/// Returns the plan that "auto" chooses if experts are cheaper to send than rows, with the other
/// settings given.
moe::ExpertLayout plan_beside(const test::TinyRun& run, ParallelSection asked) {
  RunConfig config = mixture(run, "unused");
  config.model.moe.ffn_width = 2;
  config.model = models::resolve_model_config(config.model, 50);
  const auto costs = run.file("costs-of-plans", "costs.json");
  std::filesystem::create_directories(costs.parent_path());
  write_file_atomically(costs,
                        R"({"ranks_per_node": 2, "inside": {"latency_s": 1e-6, "bytes_per_s": 1},
                                   "between": {"latency_s": 1e-6, "bytes_per_s": 1},
                                   "copy_bytes_per_s": 1e9, "call_s": 1e-6, "flops": 1e12, "source": "a test"})");
  asked.expert = 4;
  asked.ranks_per_node = 2;
  asked.costs = costs.string();
  config.parallel = asked;
  moe::ExpertLayout plan;
  expect_all_succeed(4, [&](const std::shared_ptr<comm::Group>& group) {
    const ExpertParallel parallel(config, group);
    const models::GPT model(config.model, c10::kCPU, parallel.ranks());
    const LayoutChoice plans(model, config, 64, at::kFloat, parallel, *group);
    if (group->rank() == 0) plan = moe::layers_of(model)[0].second->layout();
  });
  return plan;
}

TEST(ExpertParallel, AutoObeysTheKeysBesideIt) {
  const test::TinyRun run;
  constexpr int64_t kAuto = ParallelSection::kAuto;
  EXPECT_EQ(plan_beside(run, {.r = kAuto}).shards, 0);
  EXPECT_EQ(plan_beside(run, {.r = kAuto, .overlap = kAuto, .all_to_all = "auto", .shadow = kAuto})
                .shards,
            0);
  for (const int overlap : {2, 3, 8}) {
    const moe::ExpertLayout plan = plan_beside(run, {.r = kAuto, .overlap = overlap});
    EXPECT_EQ(plan.overlap, overlap);
    EXPECT_EQ(plan.shards, 1);
  }
  const moe::ExpertLayout in_nodes = plan_beside(run, {.r = kAuto, .all_to_all = "2dh"});
  EXPECT_TRUE(in_nodes.hierarchical);
  EXPECT_EQ(in_nodes.shards, 1);
  EXPECT_FALSE(plan_beside(run, {.r = 1, .overlap = kAuto}).hierarchical);
  EXPECT_TRUE(plan_beside(run, {.overlap = kAuto, .all_to_all = "2dh"}).hierarchical);
  EXPECT_EQ(plan_beside(run, {.r = kAuto, .shadow = 2}).shards, 1);
  EXPECT_EQ(plan_beside(run, {.r = kAuto, .dispatch = "bf16"}).shards, 1);
  EXPECT_EQ(plan_beside(run, {.r = kAuto, .combine = "mxfp8"}).shards, 1);
}

TEST(ExpertParallel, RefusesKeysThatWouldDoNothing) {
  const test::TinyRun run;
  const auto expect_refused = [&](const char* what, const ParallelSection& parallel,
                                  const char* drop = "none") {
    RunConfig config = mixture(run, "unread");
    config.model.moe.drop = drop;
    config.model.moe.pad_to_capacity = drop != std::string("none");
    config.model = models::resolve_model_config(config.model, 50);
    config.parallel = parallel;
    EXPECT_THAT([&] { check_parallel(config); }, ThrowsMessage<UserError>(HasSubstr(what)));
  };
  constexpr int64_t kAuto = ParallelSection::kAuto;
  for (const int64_t overlap : {kAuto, int64_t{2}, int64_t{8}})
    expect_refused("parallel.overlap does nothing with parallel.r = 0",
                   {.expert = 2, .r = 0, .overlap = overlap});
  for (const char* route : {"2dh", "auto"})
    expect_refused("parallel.all_to_all does nothing",
                   {.expert = 4, .r = 0, .all_to_all = route, .ranks_per_node = 2});
  for (const int64_t shadow : {kAuto, int64_t{1}})
    expect_refused("parallel.shadow does nothing", {.expert = 2, .r = 0, .shadow = shadow});
  expect_refused("parallel.dispatch does nothing", {.expert = 2, .r = 0, .dispatch = "bf16"});
  expect_refused("parallel.combine does nothing", {.expert = 2, .r = 0, .combine = "mxfp8"});
  expect_refused("pad_to_capacity pads rows that move", {.expert = 2, .r = 0}, "position");
  expect_refused("2 ranks of parallel.expert are one node",
                 {.expert = 2, .all_to_all = "2dh", .ranks_per_node = 2});
  expect_refused("on nodes of one rank", {.expert = 2, .all_to_all = "2dh", .ranks_per_node = 1});
  expect_refused("parallel.ranks_per_node = 8 is more",
                 {.expert = 4, .all_to_all = "2dh", .ranks_per_node = 8});
}

TEST(ExpertParallel, KnowsHowManyTokensAProductHas) {
  RunConfig config;
  config.model.context = 64;
  EXPECT_EQ(tokens_of_an_expert(config, 3), 0);
  config.model.moe.experts = 16;
  EXPECT_EQ(tokens_of_an_expert(config, 4), 4 * 64 * 2 / 16);
  config.parallel = {.expert = 4, .overlap = 2};
  EXPECT_EQ(tokens_of_an_expert(config, 4), 4 * (4 * 64 * 2 / 16) / 2);
  // 40 FLOPs per byte are 80 FLOPs per BF16 weight, which is the work of 40 tokens.
  EXPECT_EQ(tokens_that_hide_weights(4e11, 1e10, 2), 40);
}

TEST(ExpertParallel, RefusesWhatDoesNotFitTheJob) {
  const test::TinyRun run;
  const auto error_of = [&](int ranks, const RunConfig& config) {
    return run_ranks(ranks, [&](std::shared_ptr<comm::Group> group) {
      train(config, std::move(group), {.quiet = true});
    })[0];
  };
  RunConfig config = mixture(run, "refused");
  config.parallel.overlap = 2;
  EXPECT_THAT(error_of(2, config), HasSubstr("parallel.expert = 1 spreads no experts"));
  config.parallel = {.expert = 2, .ranks_per_node = 2};
  EXPECT_THAT(error_of(2, config), HasSubstr("parallel.ranks_per_node = 2 does nothing"));
  config.parallel = {.expert = 2, .costs = "costs.json"};
  EXPECT_THAT(error_of(2, config), HasSubstr("nothing in [parallel] is auto"));
  config.parallel = {.expert = 2, .choose_every = 7};
  EXPECT_THAT(error_of(2, config), HasSubstr("parallel.choose_every does nothing"));
  config.model.moe.drop = "position";
  config.model.moe.pad_to_capacity = true;
  config.parallel = {.expert = 2, .overlap = ParallelSection::kAuto};
  EXPECT_THAT(error_of(2, config),
              HasSubstr("\"auto\" in [parallel] chooses by the rows of experts"));
  config.model.moe.drop = "none";
  config.model.moe.pad_to_capacity = false;
  config.parallel = {.expert = 2};
  EXPECT_THAT(error_of(3, config), HasSubstr("parallel.expert = 2 does not divide the 3 ranks"));
  config.parallel.r = 3;
  EXPECT_THAT(error_of(2, config), HasSubstr("parallel.r = 3"));
  config.parallel.r = 1;
  config.parallel.shadow = 7;
  EXPECT_THAT(error_of(2, config), HasSubstr("parallel.shadow = 7"));
  config.parallel.shadow = 1;
  config.precision.recipe = "mxfp8";
  EXPECT_THAT(error_of(2, config), HasSubstr("cannot move"));
  config.parallel.shadow = 0;
  config.precision.recipe = "fp8_tensor_delayed";
  EXPECT_THAT(error_of(2, config), HasSubstr("delayed scaling"));
  config.model.moe = {};
  EXPECT_THAT(error_of(2, config),
              HasSubstr("parallel.expert = 2 spreads experts over ranks, but the model has none"));
}

}  // namespace
}  // namespace dovetail::train::expert_parallel_test
