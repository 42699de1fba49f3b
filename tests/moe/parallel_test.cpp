// ctest-labels: threads
#include "dovetail/moe/parallel_experts.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <tuple>

#include "dovetail/base/error.h"
#include "dovetail/moe/layer.h"
#include "dovetail/ops/gemm.h"
#include "random.h"
#include "tests/comm/ranks.h"
#include "tests/ops/testing.h"

namespace dovetail::moe::parallel_test {
namespace {

using ::testing::HasSubstr;
using ::testing::ThrowsMessage;

constexpr int64_t kWidth = 10, kFfnWidth = 12;

/// Distribution of a layer of experts, and number of tokens of each rank.
struct Layout {
  int64_t experts;
  int cut;
  ExpertLayout plan;
  std::vector<int64_t> tokens;
  std::string activation = "swiglu";
  bool bias = false;
  int ranks_per_node = 1;
  /// Choices beyond this multiple of an even share are dropped by position; 0: none of them.
  double capacity_factor = 0;
  bool pad = false;
  /// Pass::maximum_tokens of the forward pass.
  int64_t maximum_tokens = 0;

  int ranks() const { return static_cast<int>(tokens.size()); }
  int64_t all_tokens() const { return std::accumulate(tokens.begin(), tokens.end(), int64_t{0}); }
};

void PrintTo(const Layout& l, std::ostream* out) {
  *out << l.experts << " experts on " << l.ranks() << " ranks, cut " << l.cut << ", r "
       << l.plan.shards << ", overlap " << l.plan.overlap << ", " << l.plan.shadowed.size()
       << " shadowed" << (l.plan.hierarchical ? ", 2dh" : "");
}

Config config_of(const Layout& layout) {
  Config c;
  c.experts = layout.experts;
  c.k = 2;
  c.load_loss = 0;
  c.shared_experts = 1;
  if (layout.capacity_factor != 0) {
    c.drop = "position";
    c.capacity_factor = layout.capacity_factor;
    c.pad_to_capacity = layout.pad;
  }
  return resolve(c, kFfnWidth);
}

std::shared_ptr<Layer> make_layer(const Layout& layout,
                                  std::shared_ptr<const ExpertRanks> ranks = nullptr) {
  return std::make_shared<Layer>(config_of(layout), Layer::Options{.width = kWidth,
                                                                   .activation = layout.activation,
                                                                   .bias = layout.bias,
                                                                   .name = "blocks.0.moe",
                                                                   .ranks = std::move(ranks)});
}

std::shared_ptr<const ExpertRanks> ranks_of(const Layout& layout,
                                            const std::shared_ptr<comm::Group>& group) {
  auto ranks = std::make_shared<ExpertRanks>();
  ranks->placement =
      make_placement(layout.experts, layout.ranks(), layout.cut, kFfnWidth, layout.bias);
  ranks->group = group;
  if (layout.plan.hierarchical) ranks->nodes = comm::split_by_node(*group, layout.ranks_per_node);
  return ranks;
}

/// Result and gradients of one rank's tokens, or of all of them.
struct Made {
  at::Tensor y, dx;
  std::map<std::string, at::Tensor> gradients;
};

Made run(Layer& layer, const at::Tensor& all_x, int64_t first, int64_t count,
         const Pass& pass = {.training = true}) {
  const at::Tensor x = all_x.narrow(0, first, count).detach().clone().requires_grad_();
  const at::Tensor direction =
      random(all_x.sizes(), 99).to(x.scalar_type()).narrow(0, first, count);
  const at::Tensor y = layer.forward(x, pass).y;
  (y * direction).sum().backward();
  Made made{.y = y.detach(), .dx = x.grad()};
  for (const auto& item : layer.named_parameters())
    made.gradients[item.key()] =
        item.value().grad().defined() ? item.value().grad() : at::zeros_like(item.value());
  return made;
}

void expect_near(const at::Tensor& got, const at::Tensor& want, double tolerance,
                 const std::string& what) {
  const double scale = want.numel() == 0 ? 1 : std::max(1e-3, want.abs().max().item<double>());
  const double error = want.numel() == 0 ? 0 : (got - want).abs().max().item<double>() / scale;
  EXPECT_LE(error, tolerance) << what;
}

struct Reference {
  std::shared_ptr<Layer> layer;
  at::Tensor x;
  Made made;
};

Reference reference(const Layout& layout, at::ScalarType dtype) {
  Reference out{.layer = make_layer(layout)};
  const at::NoGradGuard no_grad;
  uint64_t seed = 1;
  for (auto& parameter : out.layer->parameters())
    parameter.copy_(0.5 * random(parameter.sizes(), seed++));
  out.layer->to(dtype);
  out.x = random({layout.all_tokens(), kWidth}, 98).to(dtype);
  const at::AutoGradMode grad(true);
  out.made = run(*out.layer, out.x, 0, layout.all_tokens());
  return out;
}

/// Returns the part of the reference's parameter `whole` that the rank holds under this name.
at::Tensor part_of(const at::Tensor& whole, const std::string& name, const at::Tensor& like,
                   const Layout& layout, const ExpertRanks& ranks) {
  if (!name.starts_with("experts.")) return whole;
  const std::string parameter = name.substr(name.find('.', std::string("experts.").size()) + 1);
  const ExpertSlice slice = expert_slice(parameter, like.sizes(), layout.activation,
                                         ranks.placement, ranks.group->rank());
  EXPECT_EQ(at::IntArrayRef(slice.whole), whole.sizes()) << name;
  return slice.of(whole.contiguous()).reshape(like.sizes());
}

Made run_rank(const Layout& layout, const Reference& whole,
              const std::shared_ptr<comm::Group>& group) {
  at::set_num_threads(1);
  const auto ranks = ranks_of(layout, group);
  const auto layer = make_layer(layout, ranks);
  layer->to(whole.x.scalar_type());
  layer->set_layout(layout.plan);
  const auto values = whole.layer->named_parameters();
  {
    const at::NoGradGuard no_grad;
    for (auto& item : layer->named_parameters())
      item.value().copy_(part_of(values[item.key()], item.key(), item.value(), layout, *ranks));
  }
  const auto before = layout.tokens.begin();
  return run(*layer, whole.x, std::accumulate(before, before + group->rank(), int64_t{0}),
             layout.tokens[static_cast<size_t>(group->rank())],
             {.training = true, .maximum_tokens = layout.maximum_tokens});
}

/// Compares every rank with the same tokens on one rank with all experts.
void expect_as_one_rank(const Layout& layout, at::ScalarType dtype, double tolerance) {
  const Reference whole = reference(layout, dtype);
  std::map<std::string, at::Tensor> replicated;  // sums over the ranks
  std::mutex mutex;
  const auto errors = run_ranks(layout.ranks(), [&](const std::shared_ptr<comm::Group>& group) {
    const Made made = run_rank(layout, whole, group), again = run_rank(layout, whole, group);
    const auto ranks = ranks_of(layout, group);
    int64_t first = 0;
    for (int r = 0; r < group->rank(); ++r) first += layout.tokens[static_cast<size_t>(r)];
    const std::lock_guard lock(mutex);
    const std::string rank = "rank " + std::to_string(group->rank()) + " ";
    expect_near(made.y, whole.made.y.narrow(0, first, made.y.size(0)), tolerance, rank + "y");
    expect_near(made.dx, whole.made.dx.narrow(0, first, made.y.size(0)), tolerance, rank + "dx");
    EXPECT_TRUE(at::equal(made.y, again.y) && at::equal(made.dx, again.dx)) << rank;
    for (const auto& [name, gradient] : made.gradients) {
      EXPECT_TRUE(at::equal(gradient, again.gradients.at(name))) << rank << name;
      if (name.starts_with("experts.")) {
        expect_near(gradient,
                    part_of(whole.made.gradients.at(name), name, gradient, layout, *ranks),
                    tolerance, rank + name);
      } else {
        at::Tensor& sum = replicated[name];
        sum = sum.defined() ? sum + gradient : gradient;
      }
    }
  });
  for (const auto& error : errors) EXPECT_EQ(error, "");
  EXPECT_EQ(replicated.size(), layout.bias ? 5 : 3);  // router and shared expert
  for (const auto& [name, gradient] : replicated)
    expect_near(gradient, whole.made.gradients.at(name), tolerance, name);
}

std::vector<Layout> layouts() {
  std::vector<Layout> all = {
      {8, 1, {}, {7, 7}},
      {8, 1, {}, {5, 0, 9, 3}},
      {5, 1, {}, {6, 4, 8}, "gelu", true},  // unequal numbers of experts
      {8, 1, {.overlap = 3}, {7, 2, 0, 6}},
      {8, 1, {.hierarchical = true}, {5, 6, 7, 2}, "swiglu", false, 2},
      {8, 1, {.shards = 1, .overlap = 2, .hierarchical = true}, {5, 6, 0, 2}, "relu2", true, 2},
      {8, 1, {.shards = 0}, {7, 3, 5, 0}, "gelu", true},
      {8, 1, {.shadowed = {0, 5}}, {7, 3, 5, 0}, "gelu", true},
      {8, 1, {.shadowed = {0, 1}}, {7, 3, 5, 2}},  // rank 0 receives no expert
      {8, 1, {.overlap = 2, .shadowed = {0, 1, 2, 3, 4, 5, 6, 7}}, {7, 3}},
      {2, 2, {.shards = 2}, {5, 6, 7, 2}},  // more ranks than experts
      {2, 2, {.shards = 1}, {5, 6, 7, 2}},
      {2, 2, {.shards = 0}, {5, 0, 7, 2}},
      {2, 2, {.shards = 1, .overlap = 2, .shadowed = {1}}, {5, 6, 7, 2}},
      {5, 2, {.shards = 2, .overlap = 2}, {5, 6, 7, 2}, "gelu"},  // experts x data x expert-tensor
      {3, 4, {.shards = 4}, {5, 6, 0, 2}},
      {3, 4, {.shards = 2}, {5, 6, 0, 2}},
      {3, 4, {.shards = 1}, {5, 6, 0, 2}},
      {3, 4, {.shards = 2, .hierarchical = true}, {5, 6, 0, 2}, "swiglu", false, 2},
  };
  for (Layout& layout : all)
    if (layout.cut == 1 && layout.plan.shards != 0) layout.plan.shards = 1;
  return all;
}

class Spread : public ::testing::TestWithParam<Layout> {};
INSTANTIATE_TEST_SUITE_P(Experts, Spread, ::testing::ValuesIn(layouts()));

TEST_P(Spread, IsAsOneRankInFloat64) { expect_as_one_rank(GetParam(), at::kDouble, 1e-12); }
TEST_P(Spread, IsAsOneRankInFloat32) { expect_as_one_rank(GetParam(), at::kFloat, 1e-5); }

/// Compares rows padded to a capacity with dropless rows of the same choices, on the same ranks.
/// The largest capacity is either known or agreed on by the ranks.
void expect_padded_as_dropless(Layout layout, at::ScalarType dtype, double tolerance) {
  const Reference whole = reference(layout, dtype);
  Layout padded = layout, agreed = layout;
  padded.pad = agreed.pad = true;
  padded.maximum_tokens = std::ranges::max(layout.tokens);
  expect_all_succeed(layout.ranks(), [&](const std::shared_ptr<comm::Group>& group) {
    const Made want = run_rank(layout, whole, group), made = run_rank(padded, whole, group),
               again = run_rank(padded, whole, group),
               by_agreement = run_rank(agreed, whole, group);
    const std::string rank = "rank " + std::to_string(group->rank()) + " ";
    expect_near(made.y, want.y, tolerance, rank + "y");
    expect_near(made.dx, want.dx, tolerance, rank + "dx");
    EXPECT_TRUE(at::equal(made.y, again.y) && at::equal(made.dx, again.dx)) << rank;
    EXPECT_TRUE(at::equal(made.y, by_agreement.y) && at::equal(made.dx, by_agreement.dx)) << rank;
    for (const auto& [name, gradient] : made.gradients) {
      expect_near(gradient, want.gradients.at(name), tolerance, rank + name);
      EXPECT_TRUE(at::equal(gradient, again.gradients.at(name))) << rank << name;
    }
  });
}

TEST_P(Spread, PaddedToACapacityIsAsDropless) {
  for (const double factor : {0.5, 1.5}) {
    Layout layout = GetParam();
    layout.capacity_factor = factor;
    if (layout.plan.hierarchical && layout.experts % (layout.ranks() / layout.cut) != 0) continue;
    expect_padded_as_dropless(layout, at::kDouble, 1e-12);
    expect_padded_as_dropless(layout, at::kFloat, 1e-5);
  }
}

TEST(Padded, OfOneRankIsAsDropless) {
  for (const auto& [dtype, tolerance] :
       {std::pair{at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 3e-2}}) {
    for (const double factor : {0.5, 1.0, -2.0}) {  // Tutel's factor below 0: capacity as needed
      Layout layout{5, 1, {}, {40}, "gelu", true};
      layout.capacity_factor = factor;
      const Reference want = reference(layout, dtype);
      layout.pad = true;
      const auto layer = make_layer(layout);
      layer->to(dtype);
      {
        const at::NoGradGuard no_grad;
        const auto values = want.layer->named_parameters();
        for (auto& item : layer->named_parameters()) item.value().copy_(values[item.key()]);
      }
      const Made made = run(*layer, want.x, 0, layout.all_tokens());
      expect_near(made.y, want.made.y, tolerance, "y");
      expect_near(made.dx, want.made.dx, tolerance, "dx");
      for (const auto& [name, gradient] : made.gradients)
        expect_near(gradient, want.made.gradients.at(name), tolerance, name);
    }
  }
}

/// Padded rows are exchanged four times: dispatch and combine, and both in backward. Without
/// padding there are four more. They carry the sizes, and for each choice an index, a weight and
/// the weight's gradient.
TEST(Padded, ExchangesNoSizes) {
  Layout dropless{8, 1, {}, {7, 7}};
  dropless.capacity_factor = 1;
  Layout known = dropless, unknown = dropless, needed = dropless;
  known.pad = unknown.pad = needed.pad = true;
  known.maximum_tokens = needed.maximum_tokens = 7;
  needed.capacity_factor = -1;
  const Reference whole = reference(dropless, at::kFloat);
  expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
    const auto calls = [&](const Layout& layout) {
      const int64_t before = group->all_to_all_traffic().calls;
      run_rank(layout, whole, group);
      return group->all_to_all_traffic().calls - before;
    };
    EXPECT_EQ(calls(known), 4);
    EXPECT_EQ(calls(dropless), 8);
    EXPECT_EQ(calls(unknown), 5);
    EXPECT_EQ(calls(needed), 5);
  });
}

TEST(Padded, NeedsACapacity) {
  Config config;
  config.experts = 4;
  config.pad_to_capacity = true;
  EXPECT_THAT([&] { resolve(config, 8); },
              ThrowsMessage<UserError>(HasSubstr("pad_to_capacity needs a capacity")));
}

TEST(Spread, AllTokensToOneExpert) {
  Config config;
  const Layout layout{4, 1, {}, {6, 5}};
  const Reference whole = reference(layout, at::kDouble);
  {
    const at::NoGradGuard no_grad;
    whole.layer->named_parameters()["router.weight"]
        .zero_();  // ties go to experts 0 and 1, both of rank 0
    for (auto& parameter : whole.layer->parameters()) parameter.mutable_grad().reset();
  }
  const Made alone = run(*whole.layer, whole.x, 0, layout.all_tokens());
  expect_all_succeed(2, [&](const std::shared_ptr<comm::Group>& group) {
    const Made made = run_rank(layout, whole, group);
    expect_near(made.y, alone.y.narrow(0, group->rank() == 0 ? 0 : 6, made.y.size(0)), 1e-12, "y");
    for (const auto& [name, gradient] : made.gradients) {
      if (name.starts_with("experts.2") || name.starts_with("experts.3")) {
        EXPECT_EQ(gradient.abs().max().item<double>(), 0) << name;
      }
    }
  });
}

TEST(Spread, RoundedPayloadsStayNearAndAreCounted) {
  // Wide enough for the codes of a row to outweigh the sizes.
  constexpr int64_t kTokens = 64, kRow = 128;
  Config config;
  config.experts = 8;
  config.load_loss = 0;
  config = resolve(config, 64);
  for (const auto& [payload, bytes] : {std::pair{comm::Payload::kUnchanged, 4 * kRow},
                                       {comm::Payload::kBFloat16, 2 * kRow},
                                       {comm::Payload::kMXFP8, kRow + kRow / 32}}) {
    expect_all_succeed(2, [&, payload = payload,
                           bytes = bytes](const std::shared_ptr<comm::Group>& group) {
      auto ranks = std::make_shared<ExpertRanks>();
      ranks->placement = make_placement(8, 2, 0, 64, false);
      ranks->group = group;
      ranks->dispatch.forward = payload;
      Layer layer(config,
                  {.width = kRow, .activation = "gelu", .name = "blocks.0.moe", .ranks = ranks});
      const at::NoGradGuard no_grad;
      uint64_t seed = 1;
      for (auto& item : layer.named_parameters())
        item.value().copy_(0.1 * random(item.value().sizes(), seed++));
      const at::Tensor x = random({kTokens, kRow}, 98).to(at::kFloat);
      const int64_t before = group->all_to_all_traffic().bytes_sent;
      layer.forward(x);
      const int64_t sent = group->all_to_all_traffic().bytes_sent - before;
      // The other rank gets 5 sizes (of its four experts and its rows), and the rows. It gets a
      // weight and an index for each choice, and a result for each row that came from it.
      const auto chosen =
          std::get<1>(x.matmul(layer.named_parameters()["router.weight"].t()).topk(config.k, 1));
      const at::Tensor elsewhere = chosen.div(4, "floor").ne(group->rank());
      const int64_t to_other = elsewhere.any(1).sum().item<int64_t>(),
                    choices = elsewhere.sum().item<int64_t>();
      at::Tensor from_other = at::full({1}, to_other, at::kLong);
      group->all_reduce(from_other);
      const int64_t back = from_other.item<int64_t>() - to_other;
      EXPECT_EQ(sent, 5 * 8 + to_other * bytes + choices * 8 + back * 4 * kRow);
    });
  }
}

TEST(Spread, ResultsInBfloat16AreThoseOfOneRankWhereTheyAreSentInFloat32) {
  constexpr int64_t kTokens = 23;
  ExpertWeights all{.activation = "gelu"};
  for (uint64_t e = 0; e < 6; ++e) {
    all.up.push_back(random({kFfnWidth, kWidth}, e).to(at::kBFloat16));
    all.down.push_back(random({kWidth, kFfnWidth}, 10 + e).to(at::kBFloat16));
  }
  const at::Tensor x = random({kTokens, kWidth}, 98).to(at::kBFloat16);
  const Routing routing =
      route(random({kTokens, 6}, 97).to(at::kFloat), {.k = 2, .drop = Drop::kNone});
  const at::Tensor alone =
      feed_forward(x, routing.weight, dispatch(routing.expert, routing.slot, 6), all);
  // Without the project's bfloat16 kernel one rank rounds each expert's result as well.
  const double rounding = ops::multiplies_bfloat16_rows() ? 1e-3 : 0;
  for (const auto& [payload, least, most] : {std::tuple{comm::Payload::kFloat32, 0.0, 1e-5},
                                             {comm::Payload::kUnchanged, rounding, 0.1}}) {
    expect_all_succeed(2, [&, payload = payload, least = least,
                           most = most](const std::shared_ptr<comm::Group>& group) {
      ExpertRanks ranks{.placement = make_placement(6, 2, 1, kFfnWidth, false), .group = group};
      ranks.combine.forward = payload;
      LocalExperts local{.weights = {.activation = "gelu"}, .modules = {}};
      for (size_t e = 0; e < 3; ++e) {
        local.weights.up.push_back(all.up[3 * static_cast<size_t>(group->rank()) + e]);
        local.weights.down.push_back(all.down[3 * static_cast<size_t>(group->rank()) + e]);
      }
      const at::Tensor y =
          parallel_feed_forward(x, routing.weight, routing.expert, routing.slot, local, ranks, {});
      const double error =
          (y - alone).abs().max().item<double>() / alone.abs().max().item<double>();
      EXPECT_GE(error, least);
      EXPECT_LE(error, most);
    });
  }
}

/// Calls and bytes of a rank's all-to-alls in forward, of the world and of its node groups.
struct Sent {
  comm::Group::Traffic world, inside, between;
};

/// Runs forward of experts in a layout on each of 4 ranks, with given choices. Returns the traffic
/// of rank 0. choices: (T, k) of each rank. Tokens are (T, 16) float32.
Sent sent_in(const ExpertLayout& layout, const std::vector<at::Tensor>& choices, int64_t experts,
             int cut = 1) {
  Sent sent;
  constexpr int64_t kRow = 16;
  expect_all_succeed(4, [&](const std::shared_ptr<comm::Group>& group) {
    const at::NoGradGuard no_grad;
    ExpertRanks ranks{.placement = make_placement(experts, 4, cut, kFfnWidth, false),
                      .group = group};
    ranks.nodes = comm::split_by_node(*group, 2);
    LocalExperts local{.weights = {.activation = "gelu"}};
    const int holder = ranks.placement.holder(group->rank());
    for (int64_t e = 0; e < ranks.placement.count(holder); ++e) {
      local.weights.up.push_back(at::ones({kFfnWidth / ranks.placement.cut, kRow}));
      local.weights.down.push_back(at::ones({kRow, kFfnWidth / ranks.placement.cut}));
    }
    const at::Tensor expert = choices[static_cast<size_t>(group->rank())];
    const int64_t tokens = expert.size(0);
    std::vector<int32_t> next(static_cast<size_t>(experts), 0);
    const at::Tensor slot = at::empty_like(expert);
    for (int64_t i = 0; i < expert.numel(); ++i)
      slot.mutable_data_ptr<int32_t>()[i] =
          next[static_cast<size_t>(expert.const_data_ptr<int32_t>()[i])]++;
    parallel_feed_forward(at::ones({tokens, kRow}), at::ones(expert.sizes()), expert, slot, local,
                          ranks, layout);
    if (group->rank() != 0) return;
    sent = {.world = group->all_to_all_traffic(),
            .inside = ranks.nodes->inside->all_to_all_traffic(),
            .between = ranks.nodes->between->all_to_all_traffic()};
  });
  return sent;
}

/// Three tokens of each rank choose from 8 experts, two on each rank: {0, 1}, {2, 3}, {4, 5},
/// {6, 7}.
std::vector<at::Tensor> three_tokens() {
  return std::vector<at::Tensor>(4, at::tensor({2, 3, 4, 2, 5, 4, 0, 1, 7}, at::kInt).view({3, 3}));
}
constexpr int64_t kRowBytes = 16 * 4, kChoiceBytes = 8, kCountBytes = 3 * 3 * 8;

/// Rank 0's tokens: the first needs ranks 1 and 2 (with two choices on 1), the second 1 and 2 (with
/// two on 2), the third 0 and 3. So 5 rows leave, for 7 choices. Rank 0 returns a row to each other
/// rank.
TEST(Traffic, ATokenTravelsOnceToEachRank) {
  const Sent sent = sent_in({}, three_tokens(), 8);
  EXPECT_EQ(sent.world.calls, 5);  // counts, indices, weights, rows, results
  EXPECT_EQ(sent.world.bytes_sent, kCountBytes + 5 * kRowBytes + 7 * kChoiceBytes + 3 * kRowBytes);
  EXPECT_EQ(sent.inside.calls + sent.between.calls, 0);
}

TEST(Traffic, EachChunkIsExchangedAlone) {
  const Sent sent = sent_in({.overlap = 3}, three_tokens(), 8);
  EXPECT_EQ(sent.world.calls, 1 + 3 * 4);
  EXPECT_EQ(sent.world.bytes_sent,
            3 * kCountBytes + 5 * kRowBytes + 7 * kChoiceBytes + 3 * kRowBytes);
}

/// A chunk's rows travel in 3 calls, its results in one. The calls of the next chunk come before
/// the experts run.
TEST(Traffic, TheNextChunkIsOnItsWayWhileAChunkIsComputed) {
  const std::vector<at::Tensor> choices = three_tokens();
  std::vector<int64_t> calls;
  expect_all_succeed(4, [&](const std::shared_ptr<comm::Group>& group) {
    const ExpertRanks ranks{.placement = make_placement(8, 4, 1, kFfnWidth, false), .group = group};
    const LocalExperts local{.weights = {}, .modules = [&](int64_t e, const at::Tensor& rows) {
                               if (group->rank() == 0 && e == 0)
                                 calls.push_back(group->all_to_all_traffic().calls);
                               return rows;
                             }};
    const at::Tensor slot = at::arange(9, at::kInt).view({3, 3});
    parallel_feed_forward(at::ones({3, 16}), at::ones({3, 3}), choices[0], slot, local, ranks,
                          {.overlap = 3});
  });
  EXPECT_EQ(calls, (std::vector<int64_t>{1 + 6, 1 + 9 + 1, 1 + 9 + 2}));
}

/// Nodes are ranks {0, 1} and {2, 3}. Rows for both ranks of the other node leave in one message.
TEST(Traffic, TwoStagesGoThroughTheNodesGroups) {
  const Sent sent = sent_in({.hierarchical = true}, three_tokens(), 8);
  EXPECT_EQ(sent.world.calls, 1);  // counts
  EXPECT_EQ(sent.inside.calls, 5);
  EXPECT_EQ(sent.between.calls, 5);
  // Rank 0 passes on the rows of its node for rank 2: two of its own and two of rank 1. Each pair
  // has three choices. Sizes of two exchanges go to two ranks of the other node.
  const int64_t rows = 2 * 2, choices = 2 * 3;
  const int64_t results = 2;  // a row for rank 2 and one for rank 3
  EXPECT_EQ(sent.between.bytes_sent,
            2 * 2 * 8 + rows * kRowBytes + choices * kChoiceBytes + results * kRowBytes);
}

/// With experts 2 and 4 on every rank, the first two tokens need one choice each on ranks 1 and 2.
TEST(Traffic, ShadowedExpertsTravelInPlaceOfTheirRows) {
  const Sent sent = sent_in({.shadowed = {2, 4}}, three_tokens(), 8);
  EXPECT_EQ(sent.world.calls, 6);
  // Rank 0 owns no shadowed expert. It sends 3 rows, with a choice each, and returns 3.
  EXPECT_EQ(sent.world.bytes_sent, kCountBytes + 3 * kRowBytes + 3 * kChoiceBytes + 3 * kRowBytes);
  const Sent owner = sent_in({.shadowed = {0, 1}}, three_tokens(), 8);
  const int64_t expert = 2 * kFfnWidth * 16 * 4;
  EXPECT_EQ(owner.world.bytes_sent,
            3 * 2 * expert + kCountBytes + 5 * kRowBytes + 7 * kChoiceBytes);
}

TEST(Traffic, NoRowMovesIfEachRankGathersTheExperts) {
  EXPECT_EQ(sent_in({.shards = 0}, three_tokens(), 8).world.calls, 0);
}

/// Two experts, each in slices on two ranks: {0, 1} and {2, 3}.
TEST(Traffic, RowsGoToAsManySlicesAsTheLayoutSays) {
  const std::vector<at::Tensor> choices(4, at::tensor({1, 1, 0}, at::kInt).view({3, 1}));
  const int64_t counts = 3 * 2 * 8;
  const Sent both = sent_in({.shards = 2}, choices, 2, 2);
  // Two tokens go to ranks 2 and 3, one to 0 and 1. Results: one row to each other rank.
  EXPECT_EQ(both.world.bytes_sent, counts + (5 + 3) * kRowBytes + 5 * kChoiceBytes);
  const Sent one = sent_in({.shards = 1}, choices, 2, 2);
  const int64_t slice = 2 * kFfnWidth / 2 * 16 * 4;
  // A token goes to the slice of its slot's turn, whose rank gathered the other slice.
  EXPECT_EQ(one.world.bytes_sent, slice + counts + (2 + 3) * kRowBytes + 2 * kChoiceBytes);
}

/// Group-limited routing (DeepSeek-V3): groups of experts that lie on one rank each bound the ranks
/// of a token.
TEST(Traffic, TopGroupsBoundTheRanksOfAToken) {
  RoutingSpec spec{.k = 4, .drop = Drop::kNone};
  spec.groups = 4;
  for (const int64_t top : {1, 2}) {
    spec.top_groups = top;
    const at::Tensor expert = route(random({64, 16}, 5).to(at::kFloat), spec).expert;
    const at::Tensor on = expert.div(4, "floor");
    int64_t rows = 0, ranks = 0;
    for (int64_t r = 0; r < 4; ++r) {
      const int64_t tokens = on.eq(r).any(1).sum().item<int64_t>();
      ranks += tokens;
      rows += r == 0 ? 3 * tokens : tokens;  // results for the others, or rows
    }
    EXPECT_LE(ranks, 64 * top);
    const int64_t choices = on.ne(0).sum().item<int64_t>();
    EXPECT_EQ(sent_in({}, std::vector<at::Tensor>(4, expert), 16).world.bytes_sent,
              3 * 5 * 8 + rows * kRowBytes + choices * kChoiceBytes);
  }
}

TEST(Placement, CountsEveryExpertOnce) {
  for (const auto& [experts, ranks, cut] :
       std::vector<std::tuple<int64_t, int, int>>{{8, 4, 1}, {5, 3, 1}, {7, 6, 2}, {1, 4, 4}}) {
    const Placement placement{.experts = experts, .ranks = ranks, .cut = cut};
    int64_t next = 0;
    for (int h = 0; h < placement.holders(); ++h) {
      EXPECT_GE(placement.count(h), 1);
      for (int64_t e = placement.first(h); e < placement.first(h + 1); ++e, ++next) {
        EXPECT_EQ(e, next);
        EXPECT_EQ(placement.holder_of(e), h);
      }
    }
    EXPECT_EQ(next, experts);
  }
}

TEST(Placement, RefusesWhatDoesNotFit) {
  EXPECT_EQ(make_placement(2, 4, 0, 8, false).cut, 2);
  EXPECT_EQ(make_placement(8, 4, 0, 8, true).cut, 1);
  const auto refused = [](int64_t experts, int ranks, int cut, bool bias, const char* message) {
    EXPECT_THAT([&] { make_placement(experts, ranks, cut, 8, bias); },
                ThrowsMessage<UserError>(HasSubstr(message)));
  };
  EXPECT_EQ(make_placement(3, 4, 0, 8, false).holders(), 2);
  refused(2, 4, 1, false, "4 holders of experts");
  refused(8, 4, 3, false, "do not divide into groups of 3");
  refused(2, 6, 3, false, "does not divide model.moe.ffn_width = 8");
  refused(2, 4, 2, true, "have no biases");
}

}  // namespace
}  // namespace dovetail::moe::parallel_test
