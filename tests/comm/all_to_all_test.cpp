#include "dovetail/comm/all_to_all.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/types.h>

#include <chrono>
#include <exception>
#include <functional>
#include <latch>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/mx/quantize.h"
#include "ranks.h"

namespace dovetail::comm::all_to_all_test {
namespace {

using ::testing::HasSubstr;
using Sizes = std::vector<std::vector<int64_t>>;  // [from][to]

size_t index(int64_t i) { return static_cast<size_t>(i); }

/// Row counts between all pairs: uneven, with zeros, with one rank that receives nothing and one
/// that sends nothing. The last counts are all zero.
Sizes some_sizes(int ranks, int which) {
  Sizes sizes(index(ranks), std::vector<int64_t>(index(ranks), 0));
  if (which == 3) return sizes;
  for (int from = 0; from < ranks; ++from)
    for (int to = 0; to < ranks; ++to) {
      const bool silent = (which == 1 && to == 0) || (which == 2 && from == ranks - 1);
      sizes[index(from)][index(to)] = silent ? 0 : (5 * from + 3 * to + which) % 4;
    }
  return sizes;
}

int64_t sum(const std::vector<int64_t>& counts) {
  int64_t total = 0;
  for (const int64_t count : counts) total += count;
  return total;
}

/// Rows of a rank before the exchange. Numbers differ by rank and element and are exact in every
/// dtype.
at::Tensor rows_of(int rank, int64_t rows, int64_t width, at::ScalarType dtype) {
  return (torch::arange(rows * width, at::kLong) * 7 + rank * 31)
      .remainder(120)
      .view({rows, width})
      .to(dtype);
}

/// Definition of the exchange in one process. Rank `to` gets rows from each rank in order: those
/// after the rows for the ranks before `to`.
at::Tensor expected(const std::vector<at::Tensor>& x, const Sizes& sizes, int to) {
  std::vector<at::Tensor> rows;
  for (size_t from = 0; from < x.size(); ++from) {
    int64_t begin = 0;
    for (int before = 0; before < to; ++before) begin += sizes[from][index(before)];
    for (int64_t i = 0; i < sizes[from][index(to)]; ++i)
      rows.push_back(x[from].narrow(0, begin + i, 1));
  }
  return rows.empty() ? x[0].narrow(0, 0, 0) : torch::cat(rows);
}

/// An algorithm makes a plan from what this rank sends.
using Plan = std::function<Exchange(std::shared_ptr<Group>, const std::vector<int64_t>&)>;
Exchange linear(std::shared_ptr<Group> group, const std::vector<int64_t>& send) {
  const auto splits = exchange_sizes(*group, send);
  return {group, splits};
}
Plan hierarchical(int ranks_per_node) {
  return [=](std::shared_ptr<Group> group, const std::vector<int64_t>& send) {
    return Exchange::hierarchical(split_by_node(*group, ranks_per_node), {send}).front();
  };
}

struct Case {
  std::string name;
  int ranks;
  Plan plan;
};
std::vector<Case> cases() {
  std::vector<Case> list;
  for (const int ranks : {1, 2, 3, 4})
    list.push_back({fmt::format("linear_{}", ranks), ranks, linear});
  for (const auto& [ranks, node] : {std::pair{1, 1}, {4, 1}, {4, 2}, {4, 4}, {6, 2}, {6, 3}})
    list.push_back({fmt::format("nodes_of_{}_in_{}", node, ranks), ranks, hierarchical(node)});
  return list;
}

class AllToAll : public ::testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(Algorithms, AllToAll, ::testing::ValuesIn(cases()),
                         [](const auto& info) { return info.param.name; });

TEST_P(AllToAll, MovesRowsOfEveryDtypeAndCount) {
  const int n = GetParam().ranks;
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    for (int which = 0; which < 4; ++which) {
      const auto sizes = some_sizes(n, which);
      const int rank = group->rank();
      const auto exchange = GetParam().plan(group, sizes[index(rank)]);
      for (int from = 0; from < n; ++from)
        EXPECT_EQ(exchange.splits().receive[index(from)], sizes[index(from)][index(rank)]);
      for (const auto dtype :
           {at::kFloat, at::kDouble, at::kBFloat16, at::kByte, at::kInt, at::kLong})
        for (const int64_t width : {1, 5, 0}) {
          std::vector<at::Tensor> x;
          for (int r = 0; r < n; ++r) x.push_back(rows_of(r, sum(sizes[index(r)]), width, dtype));
          const auto y = all_to_all_v(x[index(rank)], exchange);
          ASSERT_EQ(y.scalar_type(), dtype);
          EXPECT_TRUE(torch::equal(y, expected(x, sizes, rank)))
              << dtype << " width " << width << " sizes " << which;
          const auto back = all_to_all_v(y, exchange.reversed());
          EXPECT_TRUE(torch::equal(back, x[index(rank)]))
              << dtype << " width " << width << " sizes " << which;
        }
    }
  });
}

TEST_P(AllToAll, GradientsAreThoseOfOneProcess) {
  const int n = GetParam().ranks;
  for (int which = 0; which < 4; ++which) {
    const auto sizes = some_sizes(n, which);
    torch::manual_seed(which);
    std::vector<at::Tensor> x, weight, leaves;
    for (int r = 0; r < n; ++r) {
      x.push_back(torch::randn({sum(sizes[index(r)]), 3}, at::kDouble));
      leaves.push_back(x.back().clone().requires_grad_());
    }
    auto loss = torch::zeros({}, at::kDouble);
    for (int r = 0; r < n; ++r) {
      const auto y = expected(leaves, sizes, r);
      weight.push_back(torch::randn_like(y));
      loss = loss + (y.square() * weight.back()).sum();
    }
    loss.backward();
    expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
      const auto rank = index(group->rank());
      const auto exchange = GetParam().plan(group, sizes[rank]);
      auto leaf = x[rank].clone().requires_grad_();
      (all_to_all_v(leaf, exchange).square() * weight[rank]).sum().backward();
      const auto reference =
          leaves[rank].grad().defined() ? leaves[rank].grad() : torch::zeros_like(x[rank]);
      EXPECT_TRUE(torch::equal(leaf.grad(), reference)) << "sizes " << which;
    });
  }
}

/// Ranks 0 and 1 differ in what requires grad; every one makes the same calls, or this would hang
/// or be refused.
TEST_P(AllToAll, EveryRankTakesPartInBackward) {
  const int n = GetParam().ranks;
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    const auto exchange = GetParam().plan(group, std::vector<int64_t>(index(n), 2));
    auto x = torch::ones({2 * n, 3}).requires_grad_(group->rank() != 0);
    const auto y = all_to_all_v(x * 2, exchange);
    EXPECT_TRUE(y.requires_grad());
    (y * (group->rank() + 1)).sum().backward();
    if (group->rank() == 0) {
      EXPECT_FALSE(x.grad().defined());
      return;
    }
    for (int to = 0; to < n; ++to)
      EXPECT_TRUE(x.grad().narrow(0, 2 * to, 2).eq(2 * (to + 1)).all().item<bool>());
  });
}

/// The gradient of rank 0 is a constant there, but depends on rows of the others.
TEST_P(AllToAll, RefusesSecondDerivativesOnEveryRank) {
  const int n = GetParam().ranks;
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    const auto exchange = GetParam().plan(group, std::vector<int64_t>(index(n), 2));
    auto x = torch::ones({2 * n, 3}).requires_grad_();
    const auto y = all_to_all_v(x, exchange);
    const auto loss = group->rank() == 0 ? y.sum() : y.square().sum();
    const auto gradient =
        torch::autograd::grad({loss}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    EXPECT_TRUE(gradient.narrow(0, 0, 2).eq(1).all().item<bool>());
    std::string error;
    try {
      gradient.sum().backward();
    } catch (const std::exception& refused) {
      error = refused.what();
    }
    EXPECT_THAT(error, HasSubstr("all_to_all has no second derivative; compute on one rank"));
  });
}

TEST_P(AllToAll, OverlapsWithWhatIsComputedInBetween) {
  const int n = GetParam().ranks;
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    const auto exchange = GetParam().plan(group, std::vector<int64_t>(index(n), 3));
    auto x = torch::randn({3 * n, 4}, at::kDouble).requires_grad_();
    const auto chunked = [&] {
      auto first = start_all_to_all(x, exchange);
      auto second = start_all_to_all(x * 2, exchange);
      const auto between = x.sin().sum();
      return first.wait().square().sum() + second.wait().pow(3).sum() + between;
    };
    const auto serial = [&] {
      return all_to_all_v(x, exchange).square().sum() + all_to_all_v(x * 2, exchange).pow(3).sum() +
             x.sin().sum();
    };
    const auto a = torch::autograd::grad({chunked()}, {x})[0],
               b = torch::autograd::grad({serial()}, {x})[0];
    EXPECT_TRUE(torch::allclose(a, b, 1e-14, 1e-14));
  });
}

/// The last rank enters the exchange only after `start` has returned on all others. If one of them
/// waited for its rows there, no rank would go on.
TEST_P(AllToAll, StartsBeforeTheSlowestRankEnters) {
  const int n = GetParam().ranks;
  std::latch started(n - 1);
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    const bool last = group->rank() == n - 1;
    const auto exchange = GetParam().plan(group, std::vector<int64_t>(index(n), 1));
    const auto back = exchange.reversed();
    const auto x = torch::full({n, 2}, group->rank());
    if (last) {
      const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20);
      while (!started.try_wait() && std::chrono::steady_clock::now() < end)
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      EXPECT_TRUE(started.try_wait()) << "a rank waited in start";
    }
    auto there = exchange.start(x), other_way = back.start(x);
    if (!last) started.count_down();
    for (auto* pending : {&there, &other_way}) {
      const auto y = pending->wait();
      for (int r = 0; r < n; ++r) EXPECT_EQ(y[r][0].item<int64_t>(), r);
    }
  });
}

TEST(AllToAllHierarchical, SendsOneMessageToEachOtherNode) {
  expect_all_succeed(6, [&](std::shared_ptr<Group> group) {
    const auto nodes = split_by_node(*group, 2);
    const auto before = nodes.traffic(), far = nodes.between->all_to_all_traffic();
    all_to_all(torch::ones({12, 5}), nodes);
    const auto after = nodes.traffic(), far_after = nodes.between->all_to_all_traffic();
    EXPECT_EQ(after.calls - before.calls, 2);
    EXPECT_EQ(far_after.calls - far.calls, 1);
    // Four of 12 rows go to each node, so 8 leave. Six are for the other index within a node.
    EXPECT_EQ(far_after.bytes_sent - far.bytes_sent, 8 * 5 * 4);
    EXPECT_EQ(after.bytes_sent - before.bytes_sent, (8 + 6) * 5 * 4);
    EXPECT_EQ(group->all_to_all_traffic().calls, 0);
  });
}

TEST(AllToAllUniform, IsTheSameAsBothAlgorithms) {
  expect_all_succeed(4, [&](std::shared_ptr<Group> group) {
    std::vector<at::Tensor> x;
    for (int r = 0; r < 4; ++r) x.push_back(rows_of(r, 8, 3, at::kFloat));
    const auto reference = expected(x, Sizes(4, std::vector<int64_t>(4, 2)), group->rank());
    const auto mine = x[index(group->rank())];
    EXPECT_TRUE(torch::equal(all_to_all(mine, group), reference));
    EXPECT_TRUE(torch::equal(all_to_all(mine.t().contiguous().t(), group), reference))
        << "other strides";
    const auto nodes = split_by_node(*group, 2);
    EXPECT_TRUE(torch::equal(all_to_all(mine, nodes), reference));
    EXPECT_THROW(all_to_all(mine.narrow(0, 0, 7), group), UserError);
    EXPECT_THROW(split_by_node(*group, 3), UserError);
    group->barrier();
  });
}

/// (E, C, M) of every rank: expert e's rows are on rank e / (E / n), all ranks' side by side.
TEST(AllToAllFlexible, BringsTheRowsOfEachExpertTogether) {
  constexpr int64_t kExperts = 8, kCapacity = 3, kWidth = 5;
  constexpr int kRanks = 4;
  const auto element = [](int64_t rank, int64_t e, int64_t c, int64_t m) {
    return static_cast<float>(((rank * kExperts + e) * kCapacity + c) * kWidth + m);
  };
  expect_all_succeed(kRanks, [&](std::shared_ptr<Group> group) {
    auto x = torch::empty({kExperts, kCapacity, kWidth});
    for (int64_t e = 0; e < kExperts; ++e)
      for (int64_t c = 0; c < kCapacity; ++c)
        for (int64_t m = 0; m < kWidth; ++m) x[e][c][m] = element(group->rank(), e, c, m);
    const auto check = [&](const auto& ranks) {
      auto leaf = x.clone().requires_grad_();
      const auto y = all_to_all_flexible(leaf, ranks, 0, 1);
      ASSERT_EQ(y.sizes(), (at::IntArrayRef{kExperts / kRanks, kRanks * kCapacity, kWidth}));
      for (int64_t e = 0; e < kExperts / kRanks; ++e)
        for (int64_t from = 0; from < kRanks; ++from)
          for (int64_t c = 0; c < kCapacity; ++c)
            for (int64_t m = 0; m < kWidth; ++m)
              ASSERT_EQ(y[e][from * kCapacity + c][m].template item<float>(),
                        element(from, group->rank() * (kExperts / kRanks) + e, c, m));
      const auto back = all_to_all_flexible(y, ranks, 1, 0);
      EXPECT_TRUE(torch::equal(back, x));
      (back * x).sum().backward();
      EXPECT_TRUE(torch::equal(leaf.grad(), x));
    };
    check(group);
    check(split_by_node(*group, 2));
    EXPECT_THROW(all_to_all_flexible(x, group, 1, 0), UserError);
    EXPECT_THROW(all_to_all_flexible(x, group, 0, 3), UserError);
  });
}

TEST(ScatterAndGather, MoveRowsFromAndToTheRoot) {
  constexpr int kRanks = 3;
  const std::vector<int64_t> rows = {2, 0, 5};
  for (int root = 0; root < kRanks; ++root)
    expect_all_succeed(kRanks, [&](std::shared_ptr<Group> group) {
      const bool is_root = group->rank() == root;
      const auto all = rows_of(0, 7, 4, at::kDouble);
      const int64_t begin = group->rank() == 0 ? 0 : 2, count = rows[index(group->rank())];
      const auto mine = all.narrow(0, begin, count);
      auto x = (is_root ? all.clone() : all.narrow(0, 0, 0).clone()).requires_grad_();
      const auto scattered = scatter_rows(x, group, rows, root);
      EXPECT_TRUE(torch::equal(scattered, mine));
      (scattered * (group->rank() + 1)).sum().backward();
      auto factor =
          torch::cat({torch::full({2, 4}, 1.0), torch::full({5, 4}, 3.0)}).to(at::kDouble);
      EXPECT_TRUE(torch::equal(x.grad(), is_root ? factor : factor.narrow(0, 0, 0)));

      auto part = mine.clone().requires_grad_();
      const auto gathered = gather_rows(part, group, rows, root);
      EXPECT_TRUE(torch::equal(gathered, is_root ? all : all.narrow(0, 0, 0)));
      (gathered * all.narrow(0, 0, gathered.size(0))).sum().backward();
      EXPECT_TRUE(torch::equal(part.grad(), mine));
    });
}

/// Rounds each 1 x 128 block of x (rows, C) by torch's own cast to float8_e4m3fn, with the float32
/// scale of its largest magnitude. 448 is the largest number of E4M3.
at::Tensor rounded_in_blocks(const at::Tensor& x) {
  std::vector<at::Tensor> blocks;
  for (const at::Tensor& block : x.to(at::kFloat).split(128, 1)) {
    const at::Tensor factor = 448 / block.abs().amax(1, true);
    blocks.push_back((block * factor).clamp(-448, 448).to(at::kFloat8_e4m3fn).to(at::kFloat) *
                     factor.reciprocal());
  }
  return at::cat(blocks, 1).to(x.scalar_type());
}

TEST(Payloads, RowsArriveAsTheFormatHoldsThem) {
  const std::vector<at::Tensor> values = {torch::randn({6, 300}), torch::randn({6, 300})};
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    for (const auto dtype : {at::kFloat, at::kBFloat16})
      for (const int64_t width : {300, 64, 33, 1}) {
        std::vector<at::Tensor> x;
        for (const auto& rows : values)
          x.push_back(rows.narrow(1, 0, width).to(dtype).contiguous());
        const auto sent = expected(x, Sizes(2, {3, 3}), group->rank());
        const auto with = [&](Payload payload) {
          return all_to_all(x[index(group->rank())], group, {.forward = payload});
        };
        EXPECT_TRUE(torch::equal(with(Payload::kUnchanged), sent));
        EXPECT_TRUE(torch::equal(with(Payload::kFloat32), sent));
        EXPECT_TRUE(torch::equal(with(Payload::kBFloat16), sent.to(at::kBFloat16).to(dtype)));
        EXPECT_TRUE(
            torch::equal(with(Payload::kMXFP8), mx::dequantize(mx::quantize(sent).row).to(dtype)));
        EXPECT_TRUE(torch::equal(with(Payload::kFP8), rounded_in_blocks(sent)));
      }
    for (const Payload codes : {Payload::kMXFP8, Payload::kFP8}) {
      EXPECT_THROW(all_to_all(torch::ones({4, 32}, at::kDouble), group, {.forward = codes}),
                   UserError);
      EXPECT_THROW(all_to_all(torch::ones({4, 2, 32}), group, {.forward = codes}), UserError);
    }
  });
}

TEST(Payloads, EachDirectionHasItsOwn) {
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    auto x = torch::randn({4, 32}).requires_grad_();
    const auto weight = torch::randn({4, 32});
    (all_to_all(x, group, {.forward = Payload::kMXFP8, .backward = Payload::kBFloat16}) * weight)
        .sum()
        .backward();
    EXPECT_TRUE(torch::equal(x.grad(), all_to_all(weight.to(at::kBFloat16), group).to(at::kFloat)));
  });
}

TEST(Payloads, BytesOnTheWireAreCounted) {
  constexpr int64_t kRows = 24, kWidth = 1024;
  expect_all_succeed(3, [&](std::shared_ptr<Group> group) {
    const auto bytes = [&](const at::Tensor& x, Payload payload) {
      const auto before = group->all_to_all_traffic();
      all_to_all(x, group, {.forward = payload});
      const auto after = group->all_to_all_traffic();
      EXPECT_EQ(after.calls - before.calls, 1);
      EXPECT_EQ(after.bytes_sent - before.bytes_sent, after.bytes_received - before.bytes_received);
      EXPECT_EQ(after.bytes_sent - before.bytes_sent,
                kRows / 3 * 2 * row_bytes(payload, kWidth, x.scalar_type()));
      return static_cast<double>(after.bytes_sent - before.bytes_sent);
    };
    const auto x = torch::randn({kRows, kWidth});
    EXPECT_EQ(bytes(x, Payload::kFloat32), kRows / 3 * 2 * kWidth * 4);
    EXPECT_EQ(bytes(x.to(at::kDouble), Payload::kUnchanged), kRows / 3 * 2 * kWidth * 8);
    EXPECT_EQ(bytes(x, Payload::kFP8), kRows / 3 * 2 * (kWidth + kWidth / 128 * 4));
    EXPECT_LE(bytes(x, Payload::kMXFP8) / bytes(x, Payload::kBFloat16), 0.52);
  });
}

TEST(Payloads, HaveNames) {
  for (const auto payload :
       {Payload::kUnchanged, Payload::kFloat32, Payload::kBFloat16, Payload::kMXFP8, Payload::kFP8})
    EXPECT_EQ(parse_payload(name(payload)), payload);
  EXPECT_THROW(parse_payload("fp7"), UserError);
}

TEST(AllToAllMisuse, IsRefused) {
  expect_all_succeed(2, [&](std::shared_ptr<Group> group) {
    const Exchange exchange(group, {{1, 1}, {1, 1}});
    EXPECT_THROW(all_to_all_v(torch::ones({3, 2}), exchange), InternalError);
    EXPECT_THROW(Exchange(group, {{1, 1, 1}, {1, 1}}), InternalError);
    auto out = torch::ones({2, 2});
    EXPECT_THROW(group->all_to_all_async(out, torch::ones({2, 3}), {1, 1}, {1, 1}), InternalError);
    EXPECT_THROW(group->all_to_all_async(out, torch::ones({2, 2}, at::kInt), {1, 1}, {1, 1}),
                 InternalError);
    EXPECT_THROW(group->all_to_all_async(out, torch::ones({2, 2}), {1, 1}, {3, -1}), InternalError);

    const at::Tensor ids = all_to_all_v(torch::ones({2, 2}, at::kLong), exchange);
    EXPECT_FALSE(ids.requires_grad());
    {
      const torch::NoGradGuard no_grad;
      EXPECT_FALSE(all_to_all_v(torch::ones({2, 2}), exchange).requires_grad());
    }
    auto pending = start_all_to_all(torch::ones({2, 2}), exchange);
    pending.wait();
    EXPECT_THROW(pending.wait(), InternalError);
  });
}

}  // namespace
}  // namespace dovetail::comm::all_to_all_test
