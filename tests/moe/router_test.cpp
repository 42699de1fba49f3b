#include "dovetail/moe/router.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"
#include "dovetail/moe/draw.h"
#include "random.h"

namespace dovetail::moe::router_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kWidth = 10, kTokens = 48;

template <class Change>
Config config(Change change) {
  Config c;
  c.experts = 6;
  change(c);
  return resolve(c, 8);
}

std::shared_ptr<Router> router(const Config& config) {
  auto made = std::make_shared<Router>(config, kWidth, "blocks.0.moe", at::kCPU);
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (auto& parameter : made->parameters()) parameter.set_data(random(parameter.sizes(), seed++));
  return made;
}

at::Tensor tokens() { return random({kTokens, kWidth}, 50); }

const Pass kTraining = {.training = true, .seed = 7};

/// Routes the same tokens on ranks and in micro-batches of their own.
at::Tensor in_parts(Router& router, const at::Tensor& x, const Pass& pass,
                    const std::function<at::Tensor(const Routing&)>& what) {
  std::vector<at::Tensor> parts;
  for (const auto& [begin, size] : {std::pair{0, 20}, {20, 1}, {21, 27}}) {
    Pass of_part = pass;
    of_part.first_token = begin;
    parts.push_back(what(router.forward(x.narrow(0, begin, size), of_part).routing));
  }
  return at::cat(parts);
}

TEST(Router, TheBiasMovesTowardsAnEvenLoadAndChoosesOnly) {
  const auto made =
      router(config([](Config& c) { c.score = "sigmoid", c.bias_update_rate = 0.5; }));
  EXPECT_TRUE(at::equal(made->bias, at::zeros({6})));
  const at::Tensor x = tokens();
  std::vector<double> expected(6, 0.0);
  for (int step = 0; step < 3; ++step) {
    const at::Tensor count = made->forward(x, kTraining).routing.count;
    made->update_bias(count.to(at::kDouble));
    double mean = 0;
    for (int64_t e = 0; e < 6; ++e) mean += count[e].item<double>() / 6;
    for (int64_t e = 0; e < 6; ++e) {
      const double n = count[e].item<double>();
      expected[static_cast<size_t>(e)] += 0.5 * (n < mean ? 1 : n > mean ? -1 : 0);
    }
    EXPECT_TRUE(at::equal(made->bias, at::tensor(expected, at::kFloat)));
  }
  // (6, 6, 6, 6, 6, 6) choices are even, so the bias does not change.
  const at::Tensor before = made->bias.clone();
  made->update_bias(at::full({6}, 6.0, at::kDouble));
  EXPECT_TRUE(at::equal(made->bias, before));

  made->bias.copy_(at::tensor({9, 0, 0, 0, 0, 8}));
  const Routing routing = made->forward(x, kTraining).routing;
  EXPECT_TRUE(at::equal(routing.expert, at::tensor({0, 5}, at::kInt).expand({kTokens, 2})));
  const at::Tensor p = at::sigmoid(at::linear(x, made->weight)).index_select(1, at::tensor({0, 5}));
  EXPECT_TRUE(at::allclose(routing.weight, p / p.sum(1, true), 1e-12));
}

TEST(Router, TheRandomSecondExpertIsDrawnByTheTokensIndexInTraining) {
  const auto made = router(config([](Config& c) { c.second_expert = "random"; }));
  const at::Tensor x = tokens();
  const auto slots = [](const Routing& routing) { return routing.slot >= 0; };
  const at::Tensor kept = slots(made->forward(x, kTraining).routing);
  EXPECT_TRUE(kept.select(1, 0).all().item<bool>());
  const auto dropped = kTokens - kept.select(1, 1).sum().item<int64_t>();
  EXPECT_GT(dropped, 0);
  EXPECT_LT(dropped, kTokens);
  // In the long run a second expert of weight w stays with probability min(1, 2 w).
  const at::Tensor weight = made->forward(x, {}).routing.weight.select(1, 1);
  at::Tensor share = at::zeros({kTokens}, at::kDouble);
  constexpr int kRuns = 300;
  for (int run = 0; run < kRuns; ++run) {
    const Pass pass = {.training = true, .seed = static_cast<uint64_t>(run)};
    share += slots(made->forward(x, pass).routing).select(1, 1).to(at::kDouble) / kRuns;
  }
  EXPECT_LT((share - (2 * weight).clamp_max(1)).abs().max().item<double>(),
            5 * 0.5 / std::sqrt(kRuns));

  EXPECT_TRUE(at::equal(in_parts(*made, x, kTraining, slots), kept));
  EXPECT_FALSE(at::equal(slots(made->forward(x, {.training = true, .seed = 8}).routing), kept));
  EXPECT_TRUE(slots(made->forward(x, {}).routing).all().item<bool>());
}

TEST(Router, NoisyTopKChoosesByNoisyLogitsInTrainingAlone) {
  const auto made =
      router(config([](Config& c) { c.router = "noisy_top_k", c.importance_loss = 0.3; }));
  const at::Tensor x = tokens(), clean = at::linear(x, made->weight);
  const auto names = made->named_parameters().keys();
  EXPECT_EQ(names, (std::vector<std::string>{"weight", "noise_weight"}));
  const Router::Output out = made->forward(x, kTraining), calm = made->forward(x, {});
  const at::Tensor noise = normal_draws(mix_seed(7, name_key("blocks.0.moe")), 0, kTokens, 6);
  const at::Tensor noisy =
      clean + noise * (at::log1p(at::exp(at::linear(x, made->noise_weight))) + 0.01);
  const Routing expected = route(noisy, {.drop = Drop::kNone});
  EXPECT_TRUE(at::equal(out.routing.expert, expected.expert));
  EXPECT_TRUE(at::allclose(out.routing.weight, expected.weight, 1e-12));
  EXPECT_TRUE(at::equal(calm.routing.expert, route(clean, {.drop = Drop::kNone}).expert));
  EXPECT_FALSE(at::equal(out.routing.expert, calm.routing.expert));

  const auto logits_of = [](const Routing& routing) { return routing.weight; };
  EXPECT_TRUE(at::allclose(in_parts(*made, x, kTraining, logits_of), out.routing.weight, 1e-12));
  EXPECT_FALSE(at::equal(made->forward(x, {.training = true, .seed = 8}).routing.expert,
                         out.routing.expert));

  at::Tensor importance = at::zeros({6}, at::kDouble);
  for (int64_t t = 0; t < kTokens; ++t) {
    for (int64_t j = 0; j < 2; ++j)
      importance[expected.expert[t][j].item<int>()] += expected.weight[t][j];
  }
  const double mean = importance.mean().item<double>(),
               variance = importance.var(false).item<double>();
  const auto counted = route(noisy, {.drop = Drop::kNone, .load_count = LoadCount::kAllChoices});
  EXPECT_NEAR(out.loss.item<double>(),
              0.3 * variance / (mean * mean) + 0.01 * counted.load_loss.item<double>(), 1e-12);
}

TEST(Router, NoiseIsNormal) {
  const at::Tensor noise = normal_draws(3, 1000, 20000, 5);
  EXPECT_NEAR(noise.mean().item<double>(), 0, 5 / std::sqrt(1e5));
  EXPECT_NEAR(noise.var().item<double>(), 1, 5 * std::sqrt(2 / 1e5));
  EXPECT_TRUE(at::equal(normal_draws(3, 1007, 10, 5), noise.narrow(0, 7, 10)));
}

TEST(Router, BalancedChoicesAreForTraining) {
  for (const char* name : {"sinkhorn", "base"}) {
    const auto made = router(config([=](Config& c) { c.router = name, c.k = 1; }));
    at::Tensor x = tokens();
    x.select(1, 0).add_(3);  // so that most tokens prefer the same experts
    const RoutingSpec greedy = {.k = 1, .drop = Drop::kNone};
    const at::Tensor best = route(at::linear(x, made->weight), greedy).expert;
    EXPECT_TRUE(at::equal(made->forward(x, {}).routing.expert, best));
    const at::Tensor count = made->forward(x, kTraining).routing.count;
    EXPECT_GT(at::bincount(best.view(-1)).max().item<int64_t>(), 2 * kTokens / 6);
    EXPECT_LE(count.max().item<int64_t>(), kTokens / 6 + (std::string(name) == "base" ? 0 : 4));
  }
  const auto balanced = router(config([](Config& c) { c.router = "balanced"; }));
  for (const Pass& pass : {Pass(), kTraining})
    EXPECT_TRUE(at::equal(balanced->forward(tokens(), pass).routing.count, at::full({6}, 16)));
  // In evaluation the position in the sequence decides.
  const at::Tensor sequences = tokens().view({4, 12, kWidth});
  const at::Tensor expert = balanced->forward(sequences, {}).routing.expert.view({4, 12, 2});
  EXPECT_TRUE(at::equal(expert[3], expert[0]));
  EXPECT_TRUE(at::equal(
      balanced->forward(sequences.narrow(1, 5, 2), {.first_position = 5}).routing.expert[0],
      expert[0][5]));
}

TEST(Router, HashingSpreadsTheVocabularyAndReadsNothingElse) {
  const auto hash = config([](Config& c) { c.router = "hash", c.scale = 3; });
  Router made(hash, kWidth, "blocks.0.moe", at::kCPU),
      other(hash, kWidth, "blocks.1.moe", at::kCPU);
  EXPECT_TRUE(made.parameters().empty());
  constexpr int64_t kVocabulary = 6000;
  const at::Tensor x = random({kVocabulary, kWidth}, 1), ids = at::arange(kVocabulary);
  const auto expert_of = [&](Router& router, const at::Tensor& tokens) {
    return router.forward(x.narrow(0, 0, tokens.numel()), {.tokens = tokens}).routing.expert;
  };
  const at::Tensor expert = expert_of(made, ids);
  EXPECT_TRUE((expert.select(1, 0) != expert.select(1, 1)).all().item<bool>());
  const at::Tensor count = at::bincount(expert.select(1, 0)).to(at::kDouble);
  EXPECT_LT((count - 1000).abs().max().item<double>(), 5 * std::sqrt(1000.0));
  const at::Tensor some = at::tensor({17, 17, 5999, 0}, at::kLong);
  EXPECT_TRUE(at::equal(expert_of(made, some), expert.index_select(0, some)));
  EXPECT_FALSE(at::equal(expert_of(other, ids), expert));
  EXPECT_TRUE(at::equal(made.forward(x, {.tokens = ids}).routing.weight,
                        at::full({kVocabulary, 2}, 1.5, at::kDouble)));
}

TEST(Router, TheLoadLossOfSequencesIsTheMeanOfTheirs) {
  const auto with = [](const char* scope) {
    return config([=](Config& c) { c.load_scope = scope, c.load_loss = 2; });
  };
  const auto whole = router(with("micro_batch")), sequences = router(with("sequence"));
  const at::Tensor x = tokens().view({4, 12, kWidth});
  at::Tensor mean = at::zeros({}, at::kDouble);
  for (int64_t i = 0; i < 4; ++i) mean = mean + whole->forward(x[i], kTraining).loss / 4;
  const at::Tensor loss = sequences->forward(x, kTraining).loss;
  EXPECT_NEAR(loss.item<double>(), mean.item<double>(), 1e-12);
  EXPECT_GT(std::abs(loss.item<double>() - whole->forward(x, kTraining).loss.item<double>()), 1e-3);
}

thread_local int operators = 0;

std::unique_ptr<at::ObserverContext> count_operator(const at::RecordFunction& /*function*/) {
  ++operators;
  return nullptr;
}

TEST(Routing, LoadLossesOfSequencesEqualALoopAndShareTheirOperators) {
  const auto count_operators = [](const RoutingSpec& spec) {
    const at::Tensor logits = random({kTokens, 6}, 51).requires_grad_();
    operators = 0;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(count_operator).scopes({at::RecordScope::FUNCTION}));
    at::Tensor loss = route(logits, spec).load_loss;
    loss.backward();
    at::removeCallback(handle);
    return operators;
  };
  for (const Score score : {Score::kSoftmax, Score::kSigmoid})
    for (const LoadCount counted : {LoadCount::kFirstChoice, LoadCount::kAllChoices}) {
      RoutingSpec spec{.k = 3, .score = score, .drop = Drop::kNone, .load_count = counted};
      const at::Tensor x = random({kTokens, 6}, 52).requires_grad_();
      at::Tensor loop = at::zeros({}, at::kDouble);
      for (int64_t i = 0; i < 4; ++i)
        loop = loop + route(x.narrow(0, 12 * i, 12), spec).load_loss / 4;
      loop.backward();
      const at::Tensor expected = x.grad().clone();
      x.mutable_grad().reset();
      spec.sequence = 12;
      at::Tensor loss = route(x, spec).load_loss;
      loss.backward();
      EXPECT_NEAR(loss.item<double>(), loop.item<double>(), 1e-12);
      EXPECT_LT((x.grad() - expected).abs().max().item<double>(), 1e-12);
      RoutingSpec of_many = spec;
      of_many.sequence = 3;
      EXPECT_EQ(count_operators(of_many), count_operators(spec));
      RecordProperty("operators", count_operators(spec));
    }
}

TEST(Router, TheLoadLossOfTheGlobalBatchCountsMicroBatchesAndRanks) {
  const auto made =
      router(config([](Config& c) { c.load_scope = "global_batch", c.load_loss = 1; }));
  const at::Tensor x = tokens(), here = x.narrow(0, 0, 30), next = x.narrow(0, 30, 18);
  const auto counts = [&](const at::Tensor& rows) {
    return route(at::linear(rows, made->weight), {.drop = Drop::kNone}).count.to(at::kDouble);
  };
  const auto loss = [&](const at::Tensor& rows, const at::Tensor& count) {
    const at::Tensor p = at::softmax(at::linear(rows, made->weight), 1).mean(0);
    return (6 * (count / count.sum() * p).sum()).item<double>();
  };
  Pass pass = kTraining;
  pass.sum_over_ranks = [&](at::Tensor& sums) {
    sums += at::tensor({5, 0, 0, 0, 0, 1, 6}, at::kDouble);
  };
  const at::Tensor of_others = at::tensor({5, 0, 0, 0, 0, 1}, at::kDouble),
                   after_one = counts(here) + of_others;
  EXPECT_NEAR(made->forward(here, pass).loss.item<double>(), loss(here, after_one), 1e-12);
  Pass again = pass;
  again.again = true;
  again.sum_over_ranks = [](at::Tensor&) {
    ADD_FAILURE() << "ranks do not meet in a recomputation";
  };
  EXPECT_NEAR(made->forward(here, again).loss.item<double>(), loss(here, after_one), 1e-12);
  const at::Tensor after_two = after_one + counts(next) + of_others;
  EXPECT_NEAR(made->forward(next, pass).loss.item<double>(), loss(next, after_two), 1e-12);
  made->begin_step();
  EXPECT_NEAR(made->forward(here, pass).loss.item<double>(), loss(here, after_one), 1e-12);
  EXPECT_NEAR(made->forward(next, {}).loss.item<double>(), loss(next, counts(next)), 1e-12);
}

template <class Change>
void expect_refused(const char* key, Change change) {
  EXPECT_THAT([&] { config(change); }, ThrowsMessage<UserError>(HasSubstr(key)));
}

TEST(RouterConfig, RefusesWhatWouldDoNothing) {
  expect_refused("model.moe.second_expert", [](Config& c) { c.second_expert = "random", c.k = 3; });
  expect_refused("model.moe.draw_frees_slot", [](Config& c) { c.draw_frees_slot = true; });
  expect_refused("model.moe.importance_loss", [](Config& c) { c.importance_loss = 1; });
  expect_refused("model.moe.smooth_load_loss",
                 [](Config& c) { c.router = "sinkhorn", c.smooth_load_loss = 1; });
  expect_refused("k = 2", [](Config& c) { c.router = "base"; });
  expect_refused("model.moe.load_scope",
                 [](Config& c) { c.load_loss = 0, c.load_scope = "sequence"; });
  expect_refused("model.moe.smooth_load_loss", [](Config& c) {
    c.router = "noisy_top_k", c.smooth_load_loss = 1, c.num_groups = 2;
  });
  for (const char* name : {"sinkhorn", "base", "balanced", "expert_choice", "hash"}) {
    const auto with = [name](auto change) {
      return [name, change](Config& c) {
        c.router = name, c.k = 1;
        change(c);
      };
    };
    EXPECT_EQ(config(with([](Config&) {})).load_loss, 0);
    expect_refused("model.moe.load_loss", with([](Config& c) { c.load_loss = 0.01; }));
    expect_refused("model.moe.load_count", with([](Config& c) { c.load_count = "first_choice"; }));
    expect_refused("model.moe.load_scope", with([](Config& c) { c.load_scope = "sequence"; }));
    expect_refused("model.moe.bias_update_rate", with([](Config& c) { c.bias_update_rate = 0.1; }));
    expect_refused("model.moe.num_groups", with([](Config& c) { c.num_groups = 2; }));
  }
  for (const char* name : {"expert_choice", "hash"}) {
    expect_refused("model.moe.score", [=](Config& c) { c.router = name, c.score = "sigmoid"; });
    expect_refused("model.moe.normalize",
                   [=](Config& c) { c.router = name, c.normalize = "none"; });
    expect_refused("model.moe.second_expert",
                   [=](Config& c) { c.router = name, c.second_expert = "random"; });
  }
  expect_refused("model.moe.drop",
                 [](Config& c) { c.router = "expert_choice", c.drop = "position"; });
  expect_refused("model.moe.drop", [](Config& c) { c.router = "hash", c.drop = "probability"; });
  expect_refused("model.moe.z_loss", [](Config& c) { c.router = "hash", c.z_loss = 0.1; });
  expect_refused("eval_capacity_factor", [](Config& c) { c.eval_capacity_factor = 2; });
  expect_refused("model.moe.normalize", [](Config& c) { c.k = 1, c.normalize = "after"; });
  expect_refused("model.moe.num_groups", [](Config& c) { c.num_groups = c.top_groups = 3; });
}

}  // namespace
}  // namespace dovetail::moe::router_test
