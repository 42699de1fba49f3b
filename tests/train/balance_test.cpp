// ctest-labels: threads
// The law of uneven shares: what each rank gets of a step changes the rounding and nothing else.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <sstream>

#include "dovetail/train/gpt/step.h"
#include "dovetail/train/ranks/batch_shares.h"
#include "tests/train/balanced_runs.h"

namespace dovetail::test::balance_test {
namespace {

/// All ways to share eight micro-batches between two ranks, and some for four ranks.
const std::vector<Shares> kSplits = {{1, 7},       {2, 6},       {3, 5},      {4, 4},
                                     {5, 3},       {6, 2},       {7, 1},      {2, 2, 2, 2},
                                     {1, 1, 1, 5}, {4, 1, 2, 1}, {1, 4, 2, 1}};

using Make = std::function<train::RunConfig(const std::string& name, int64_t steps)>;

/// Compares every split with one rank: the gradient of a first step, and all trained values after
/// three steps.
void expect_the_gradient_of_one_rank(const Make& make) {
  const auto is_of_tables = [](const std::string& name) {
    return name.starts_with("embedding.") && !name.ends_with(".weight");
  };
  const auto train_split = [&](const Shares& shares, int64_t steps) {
    const std::string name = fmt::format("{}of{}", fmt::join(shares, ""), steps);
    return train_on(static_cast<int>(shares.size()), with_shares(make(name, steps), shares));
  };
  const io::Snapshot one = train_on(1, make("one", 1));
  for (const Shares& shares : kSplits) {
    const io::Snapshot got = train_split(shares, 1);
    EXPECT_LE(
        distance(one, got, [&](const std::string& n) { return is_gradient(n) || is_of_tables(n); }),
        1e-6)
        << fmt::format("{}", fmt::join(shares, ", "));
    EXPECT_LE(distance(one, got, is_anything), 2e-6) << fmt::format("{}", fmt::join(shares, ", "));
  }
  const io::Snapshot after = train_on(1, make("after", 3));
  for (const Shares& shares : {Shares{7, 1}, {1, 4, 2, 1}})
    EXPECT_LE(distance(after, train_split(shares, 3), is_anything), 1e-5)
        << fmt::format("{}", fmt::join(shares, ", "));
}

TEST(Balance, AnySplitOfAGptHasTheGradientOfOneRank) {
  const TinyRun run;
  expect_the_gradient_of_one_rank(
      [&](const std::string& name, int64_t steps) { return gpt(run, name, steps); });
}

TEST(Balance, AnySplitOfAMixtureHasTheGradientOfOneRank) {
  const TinyRun run;
  expect_the_gradient_of_one_rank(
      [&](const std::string& name, int64_t steps) { return mixture(run, name, steps); });
}

TEST(Balance, AnySplitOfADlrmHasTheGradientOfOneRank) {
  const Clicks data;
  expect_the_gradient_of_one_rank(
      [&](const std::string& name, int64_t steps) { return dlrm(data, name, steps); });
  for (const char* sharding : {"row", "replicated"}) {
    const auto make = [&](const std::string& name) {
      train::RunConfig config = dlrm(data, sharding + name, 1);
      config.embedding.sharding = sharding;
      return config;
    };
    const io::Snapshot one = train_on(1, make("one"));
    EXPECT_LE(distance(one, train_on(2, with_shares(make("two"), {1, 7})), is_anything), 2e-6)
        << sharding;
  }
}

// A rank with fewer micro-batches joins the exchange of tokens with empty ones.
TEST(Balance, SpreadExpertsHaveTheGradientOfOneRank) {
  const TinyRun run;
  const io::Snapshot one = train_on(1, mixture(run, "one", 1));
  for (const Shares& shares : {Shares{1, 7}, {5, 3}, {1, 1, 1, 5}, {4, 1, 2, 1}}) {
    train::RunConfig config =
        with_shares(mixture(run, fmt::format("{}", fmt::join(shares, "")), 1), shares);
    config.parallel.expert = 2;
    EXPECT_LE(distance(one, train_on(static_cast<int>(shares.size()), config), is_gradient), 1e-6)
        << config.run.name;
  }
}

// Samples have very different numbers of targets. The ranks' sums are divided by the number of all
// targets, not by shares or samples.
TEST(Balance, EveryTargetCountsAsMuchOnAnyRank) {
  at::manual_seed(5);
  at::Tensor tokens = at::randint(50, {16, 9}, at::kLong);
  for (int64_t i = 0; i < 16; ++i)
    tokens[i].slice(0, 2 + i / 2) = -100;  // the first sample has one target, the last has eight
  const auto moments = [&](const Shares& shares) {
    std::map<std::string, at::Tensor> found;
    train::RunConfig config;
    config.train.batch = 16;
    config.train.micro_batch = 2;
    const train::BatchShares parts(with_shares(config, shares), static_cast<int>(shares.size()));
    expect_all_succeed(
        static_cast<int>(shares.size()), [&](const std::shared_ptr<comm::Group>& group) {
          const auto model = std::make_shared<models::GPT>(models::resolve_model_config(
              {.layers = 1, .width = 32, .heads = 2, .context = 8}, 50));
          initialize(*model, 3);
          train::Optimizer optimizer(*model, train::OptimizerSection());
          optimizer.bind(*model);
          train::TrainStep step(model, optimizer, group, {.micro_batch = 2});
          const train::BatchShares::Range range = parts.range(group->rank());
          const train::StepOutcome outcome = step.run(tokens.slice(0, range.begin, range.end), 1e-3,
                                                      false, {.first_sample = range.begin});
          EXPECT_EQ(outcome.tokens, 2 * (1 + 2 + 3 + 4 + 5 + 6 + 7 + 8));
          if (group->rank() == 0) found = optimizer.tensors();
        });
    return found;
  };
  const io::Snapshot one{.tensors = moments({8})};
  for (const Shares& shares : {Shares{1, 7}, {7, 1}, {1, 4, 2, 1}})
    EXPECT_LE(distance(one, {.tensors = moments(shares)}, is_gradient), 1e-6)
        << fmt::format("{}", fmt::join(shares, ""));
}

TEST(Balance, AStepOfTheLastRowsOfADayIsShared) {
  const Clicks data;
  // Rows are sorted by their 40 users, each with some 150 rows: a step of 128 rows and a short one.
  std::istringstream in(read_file(data.config("dlrm").rows.files[0]));
  std::string head, text;
  std::getline(in, head);
  std::vector<std::string> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(line + "\n");
  std::ranges::sort(rows, {}, [](const std::string& row) { return row.substr(0, row.find('\t')); });
  for (const std::string& row : rows) text += row;
  const auto make = [&](const std::string& name) {
    train::RunConfig config = dlrm(data, name, train::TrainSection::kPass);
    config.rows.files = {data.file("sorted", "").parent_path().string() + ".tsv"};
    write_file_atomically(config.rows.files[0], head + "\n" + text);
    config.rows.day = "user";
    config.rows.sparse = {{.columns = {"item"}, .num_rows = 60}};
    config.eval.every_steps = train::EvalSection().every_steps;
    return config;
  };
  const io::Snapshot one = train_on(1, make("one"));
  EXPECT_LE(distance(one, train_on(2, with_shares(make("two"), {1, 7})), is_anything), 1e-4);
}

thread_local int t_calls = 0;

// Checks which rank computes which samples. Gradients cannot show it: they are the same with any
// shares, also with wrong ones.
TEST(Balance, ARankComputesItsShare) {
  const auto calls = [](train::RunConfig config, int64_t steps, const char* operation) {
    static thread_local const char* counted;
    config.run.folder += std::to_string(steps);
    config.train.steps = steps;
    std::vector<int> of_ranks(2);
    expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
      counted = operation;
      t_calls = 0;
      at::addThreadLocalCallback(
          at::RecordFunctionCallback([](const at::RecordFunction& function)
                                         -> std::unique_ptr<at::ObserverContext> {
            if (counted != nullptr) t_calls += std::strcmp(function.name(), counted) == 0;
            return nullptr;
          }).scopes({at::RecordScope::FUNCTION}));
      train::train(with_shares(config, {1, 7}), group, {.quiet = true});
      of_ranks[static_cast<size_t>(group->rank())] = t_calls;
    });
    return of_ranks;
  };
  const auto expect_shares = [&](const train::RunConfig& config, const char* operation) {
    const auto three = calls(config, 3, operation),
               one = calls(config, 1, operation);  // both validate once
    EXPECT_EQ(three[0] - one[0], 2 * 1);
    EXPECT_EQ(three[1] - one[1], 2 * 7);
  };
  const TinyRun run;
  expect_shares(gpt(run, "gpt", 3), "aten::masked_fill");
  const Clicks data;
  expect_shares(dlrm(data, "dlrm", 3), "aten::binary_cross_entropy_with_logits");
}

}  // namespace
}  // namespace dovetail::test::balance_test
