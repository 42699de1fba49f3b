// ctest-labels: threads
// Runs whose optimizer state and gradients are sharded against runs that keep them whole.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/train/gpt/step.h"
#include "dovetail/train/loop/resume.h"
#include "dovetail/train/optimizer/optimizer.h"
#include "dovetail/train/ranks/expert_parallel.h"
#include "dovetail/train/resolve/load_config.h"
#include "tests/comm/ranks.h"
#include "tests/train/balanced_runs.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::shard_test {
namespace {

using test::TinyRun;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr const char* kModes[] = {"optimizer", "gradients"};

/// Config with six samples per step, so that four ranks have two or one. It has several buckets,
/// and gradients are clipped.
RunConfig config_of(const TinyRun& run, const std::string& name, const char* precision = "fp64") {
  RunConfig config = run.config(name);
  config.precision.recipe = precision;
  config.train.batch = 6;
  config.train.clip = 0.5;
  config.train.bucket_bytes = 16384;
  return config;
}

io::Snapshot train_on(int ranks, RunConfig config, const char* shard) {
  config.parallel.shard = shard;
  return test::train_on(ranks, config);
}

std::vector<double> numbers(const TinyRun& run, const std::string& name, const char* key) {
  std::vector<double> found;
  for (const auto& line : run.metrics(name)) found.push_back(line[key].get<double>());
  return found;
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want,
                 double tolerance) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i)
    EXPECT_NEAR(got[i], want[i], tolerance * want[i]) << "step " << i + 1;
}

class Sharded : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Sharded, ::testing::Values(2, 4));

TEST_P(Sharded, LossesAndNormsInFP64AreThoseOfWholeState) {
  const TinyRun run;
  for (const int64_t micro_batch : {0, 1}) {
    const auto trained = [&](const char* shard) {
      RunConfig config = config_of(run, fmt::format("{}{}", shard, micro_batch));
      config.train.micro_batch = micro_batch;
      train_on(GetParam(), config, shard);
      return config.run.name;
    };
    const std::string whole = trained("none");
    const std::vector<double> norms = numbers(run, whole, "grad_norm");
    EXPECT_GT(*std::ranges::max_element(norms), 0.5);
    for (const char* mode : kModes) {
      SCOPED_TRACE(fmt::format("{}, micro_batch {}", mode, micro_batch));
      const std::string name = trained(mode);
      expect_near(numbers(run, name, "loss"), numbers(run, whole, "loss"), 1e-12);
      expect_near(numbers(run, name, "grad_norm"), norms, 1e-11);
    }
  }
}

void expect_the_same_checkpoint(const TinyRun& run, const std::string& a, const std::string& b) {
  const auto tensors = [&](const std::string& name) {
    return io::read_checkpoint(run.file(name, "checkpoints/step-00000012")).tensors;
  };
  const auto left = tensors(a), right = tensors(b);
  EXPECT_EQ(left.size(), right.size());
  for (const auto& [name, tensor] : left)
    EXPECT_TRUE(at::equal(right.at(name), tensor)) << a << " and " << b << ": " << name;
}

TEST_P(Sharded, OptimizerStateHasTheBitsOfWholeState) {
  const TinyRun run;
  for (const char* precision : {"fp32", "bf16", "mxfp8"}) {
    for (const char* shard : {"none", "optimizer"})
      train_on(GetParam(), config_of(run, fmt::format("{}_{}", precision, shard), precision),
               shard);
    const std::string whole = fmt::format("{}_none", precision),
                      cut = fmt::format("{}_optimizer", precision);
    EXPECT_EQ(run.read(cut, "metrics.jsonl"), run.read(whole, "metrics.jsonl")) << precision;
    expect_the_same_checkpoint(run, cut, whole);
  }
}

// Two summands have only one order. Clipping is off: its norm sums squares in another order.
TEST(Shard, GradientsOfTwoRanksHaveTheBitsOfWholeOnes) {
  const TinyRun run;
  for (const char* precision : {"fp32", "bf16"}) {
    for (const char* shard : {"none", "gradients"}) {
      RunConfig config = config_of(run, fmt::format("{}_{}", precision, shard), precision);
      config.train.clip = 0;
      train_on(2, config, shard);
    }
    expect_the_same_checkpoint(run, fmt::format("{}_gradients", precision),
                               fmt::format("{}_none", precision));
  }
}

TEST_P(Sharded, SharesOfMicroBatchesGiveTheGradientOfOneRank) {
  const TinyRun run;
  const io::Snapshot one = train_on(1, test::gpt(run, "one", 1), "none");
  const std::vector<int64_t> shares =
      GetParam() == 2 ? std::vector<int64_t>{1, 7} : std::vector<int64_t>{1, 4, 2, 1};
  for (const char* mode : kModes) {
    const io::Snapshot cut =
        train_on(GetParam(), test::with_shares(test::gpt(run, mode, 1), shares), mode);
    EXPECT_LE(test::distance(one, cut, test::is_gradient), 1e-6) << mode;
  }
}

/// A model that consists mostly of an embedding, with its optimizer on one of the ranks.
struct Bound {
  std::shared_ptr<models::GPT> model = std::make_shared<models::GPT>(models::resolve_model_config(
      {.layers = 2, .width = 32, .heads = 2, .context = 16, .norm = "layernorm", .bias = true},
      4001));
  std::optional<Optimizer> optimizer;

  Bound(const std::shared_ptr<comm::Group>& group, at::ScalarType dtype, bool sharded) {
    initialize(*model, 5);
    optimizer.emplace(
        *model, OptimizerSection(),
        sharded ? OptimizerSharding{.group = group, .bucket_bytes = 16384} : OptimizerSharding());
    model->set_compute_dtype(dtype);
    optimizer->bind(*model);
  }
};

int64_t bytes(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  int64_t sum = 0;
  for (const auto& [name, tensor] : tensors) sum += static_cast<int64_t>(tensor.storage().nbytes());
  return sum;
}

TEST_P(Sharded, ARankKeepsItsShareOfTheBytes) {
  const int n = GetParam();
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    expect_all_succeed(n, [&](const std::shared_ptr<comm::Group>& group) {
      at::set_num_threads(1);
      const Bound whole(group, dtype, false);
      Bound cut(group, dtype, true);
      const int64_t all = bytes(whole.optimizer->state());
      EXPECT_NEAR(static_cast<double>(bytes(cut.optimizer->state())), static_cast<double>(all) / n,
                  0.001 * static_cast<double>(all));

      TrainStep step(cut.model, *cut.optimizer, group,
                     {.bucket_bytes = 16384, .scatter_gradients = true});
      const at::Tensor tokens = at::arange(3 * 17)
                                    .remainder(97)
                                    .add(group->rank())
                                    .view({3, 17});  // other samples on each rank
      step.run(tokens, 1e-3, false);
      int64_t sums = 0, elements = 0;
      for (size_t b = 0; b < step.gradients().buckets().size(); ++b)
        sums += static_cast<int64_t>(step.gradients().share(b).storage().nbytes());
      for (const at::Tensor& parameter : cut.optimizer->parameters()) elements += parameter.numel();
      EXPECT_NEAR(static_cast<double>(sums), 4.0 * static_cast<double>(elements) / n,
                  0.001 * 4.0 * static_cast<double>(elements));
      EXPECT_THROW(step.gradients().gradient(0), InternalError);

      // Weights are whole and the same on every rank.
      for (const at::Tensor& parameter : cut.optimizer->parameters())
        for (const at::Tensor& other : group->all_gather(parameter.detach()))
          EXPECT_TRUE(at::equal(other, parameter));
    });
  }
}

TEST(Shard, CheckpointsHoldWholeTensorsBitForBit) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const Bound whole(comm::local_groups(1)[0], dtype, false);
    auto expected = whole.optimizer->tensors();
    double first = 0;
    for (auto& [name, tensor] : expected)
      tensor.copy_(at::arange(tensor.numel(), at::kDouble)
                       .view(tensor.sizes())
                       .add_(first += 1e5)
                       .mul(1e-3));
    for (const int n : {1, 2, 3, 4})
      expect_all_succeed(n, [&](const std::shared_ptr<comm::Group>& group) {
        Bound cut(group, dtype, true);
        const ExpertParallel none(RunConfig(), group);
        restore(*cut.optimizer, *cut.model, none,
                group->rank() == 0 ? expected : std::map<std::string, at::Tensor>(), 3, *group);
        EXPECT_EQ(cut.optimizer->updates(), 3);
        for (const auto& item : cut.model->named_parameters())
          EXPECT_TRUE(at::equal(item.value(),
                                expected.at("model." + item.key()).to(item.value().scalar_type())))
              << item.key();
        if (!cut.optimizer->sharded()) return;  // a group of one rank
        for (const char* writers : {"first", "all"}) {
          const io::TensorOwners owners(cut.optimizer->sharded_tensors(), n, writers);
          const auto gathered = cut.optimizer->gathered(owners);
          for (const auto& [name, tensor] : expected) {
            ASSERT_EQ(gathered.contains(name), owners.of(name) == group->rank()) << name;
            if (gathered.contains(name)) {
              EXPECT_TRUE(at::equal(gathered.at(name), tensor)) << name;
            }
          }
        }
      });
  }
}

TEST(Shard, ImportedWeightsHaveNoMomentsAndFaultsEndAllRanks) {
  const auto weights = [] {
    auto tensors = Bound(comm::local_groups(1)[0], at::kFloat, false).optimizer->tensors();
    std::erase_if(tensors, [](const auto& item) { return item.first.starts_with("optimizer."); });
    return tensors;
  }();
  const auto errors_of = [](const std::map<std::string, at::Tensor>& tensors) {
    return run_ranks(3, [&](const std::shared_ptr<comm::Group>& group) {
      Bound cut(group, at::kFloat, true);
      cut.optimizer->scatter(group->rank() == 0 ? tensors : std::map<std::string, at::Tensor>(), 0);
      for (const auto& [name, tensor] : cut.optimizer->state())
        EXPECT_TRUE(tensor.eq(0).all().item<bool>()) << name;
    });
  };
  for (const std::string& error : errors_of(weights)) EXPECT_EQ(error, "");
  auto without = weights;
  without.erase("model.norm.weight");
  for (const std::string& error : errors_of(without))
    EXPECT_THAT(error, HasSubstr("lacks the tensor \"model.norm"));
}

struct Layout {
  int ranks;
  const char* shard;
};

TEST(Shard, AnyLayoutResumesAnyOther) {
  const TinyRun run;
  const auto make = [&](const std::string& name) {
    RunConfig config = config_of(run, name);
    config.checkpoint.every_steps = 4;
    return config;
  };
  train_on(1, make("whole"), "none");
  const std::vector<double> losses = numbers(run, "whole", "loss");
  const std::pair<Layout, Layout> pairs[] = {
      {{2, "optimizer"}, {4, "gradients"}}, {{4, "gradients"}, {1, "none"}},
      {{1, "none"}, {3, "optimizer"}},      {{3, "gradients"}, {2, "none"}},
      {{2, "none"}, {2, "gradients"}},      {{4, "optimizer"}, {2, "optimizer"}}};
  for (const auto& [first, second] : pairs) {
    const std::string name =
        fmt::format("{}_{}_then_{}_{}", first.shard, first.ranks, second.shard, second.ranks);
    SCOPED_TRACE(name);
    train_on(first.ranks, make(name), first.shard);
    for (const char* later : {"step-00000008", "step-00000012"})
      std::filesystem::remove_all(run.file(name, "checkpoints") / later);
    train_on(second.ranks, make(name), second.shard);
    expect_near(numbers(run, name, "loss"), losses, 1e-10);
  }
}

TEST(Shard, OneRankTrainsAsWithoutIt) {
  const TinyRun run;
  for (const char* shard : {"none", "optimizer", "gradients"}) {
    RunConfig config = config_of(run, shard, "bf16");
    config.train.micro_batch = 2;
    train_on(1, config, shard);
    expect_the_same_checkpoint(run, shard, "none");
  }
}

TEST(Shard, IsRefusedByNameWhereItDoesNotWork) {
  const test::TemporaryFolder folder;
  const auto refusal = [&](const std::string& toml) {
    write_file_atomically(folder / "run.toml", toml);
    try {
      load_run_config(folder / "run.toml", {});
    } catch (const UserError& error) {
      return std::string(error.what()) + " | " + error.help();
    }
    return std::string("accepted");
  };
  const std::string shard = "[parallel]\nshard = \"gradients\"\n",
                    balance = "[train]\nbatch = 8\nmicro_batch = 2\n";
  EXPECT_EQ(refusal(shard), "accepted");
  EXPECT_EQ(refusal(shard + balance + "[balance]\nmode = \"fixed\"\nshares = [1, 3]\n"),
            "accepted");
  EXPECT_EQ(
      refusal("[parallel]\nshard = \"optimizer\"\n" + balance + "[balance]\nmode = \"auto\"\n"),
      "accepted");
  EXPECT_THAT(
      refusal(shard + "[model.moe]\nexperts = 4\n"),
      AllOf(HasSubstr("parallel.shard = \"gradients\" does not work with model.moe.experts = 4"),
            HasSubstr("leave parallel.shard out")));
  EXPECT_THAT(refusal(shard + "[memory]\nbudget = \"0.5x\"\n"),
              AllOf(HasSubstr("memory.budget = \"0.5x\""), HasSubstr("leave one of the two out")));
  EXPECT_THAT(refusal(shard + balance + "[balance]\nmode = \"auto\"\n"),
              AllOf(HasSubstr("balance.mode = \"auto\""), HasSubstr("balance.mode = \"fixed\"")));
  EXPECT_THAT(
      refusal(
          shard +
          "[recommender]\nmodel = \"deepfm\"\n[rows]\nfiles = [\"a.tsv\"]\nlabel = \"clicked\"\n"
          "sparse = [{ columns = \"user\", num_rows = 9 }]\n"),
      AllOf(HasSubstr("parallel.shard"), HasSubstr("recommender"), HasSubstr("leave it out")));
}

}  // namespace
}  // namespace dovetail::train::shard_test
