#include "dovetail/comm/group.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/base/error.h"
#include "ranks.h"

namespace dovetail::comm::group_test {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

double seconds_of(const std::function<void()>& call) {
  const auto start = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

class Collectives : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Collectives, ::testing::Values(1, 2, 3, 4));

const std::vector<std::vector<int64_t>> kShapes = {{},        {0},     {1},    {31},      {33},
                                                   {3, 0, 2}, {7, 11}, {1009}, {3, 20011}};

TEST_P(Collectives, AllReduceSumsEveryDtypeAndShape) {
  const int n = GetParam();
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    EXPECT_EQ(group->size(), n);
    for (const auto dtype : {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kInt,
                             at::kChar, at::kByte})
      for (const auto& shape : kShapes) {
        // Sums stay small whole numbers, so they are exact in every dtype, and differ by element
        // and rank.
        const auto base = torch::ones(shape).flatten().cumsum(0).remainder(5).reshape(shape);
        auto tensor = (base * (group->rank() + 1)).to(dtype);
        group->all_reduce(tensor);
        EXPECT_TRUE(torch::equal(tensor, (base * (n * (n + 1) / 2)).to(dtype)))
            << tensor.scalar_type() << tensor.sizes();
      }
  });
}

TEST_P(Collectives, AllReduceAsyncRunsManyAtOnce) {
  const int n = GetParam();
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Group::Work>> works;
    for (int i = 0; i < 20; ++i) {
      tensors.push_back(torch::full({1000 * i}, i + group->rank(), at::kDouble));
      works.push_back(group->all_reduce_async(tensors.back()));
    }
    for (int i = 19; i >= 0; --i) {  // waiting in another order is allowed
      works[static_cast<size_t>(i)]->wait();
      works[static_cast<size_t>(i)]->wait();  // and waiting twice
      EXPECT_TRUE(tensors[static_cast<size_t>(i)].eq(n * i + n * (n - 1) / 2).all().item<bool>());
    }
  });
}

TEST_P(Collectives, ReduceScatterGivesEachRankItsPartOfTheSum) {
  const int n = GetParam();
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    const auto each = [&](auto&& of_tensor) {
      for (const auto dtype :
           {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf, at::kLong, at::kByte})
        for (const int64_t share : {0, 1, 31, 33, 1009, 300007}) of_tensor(dtype, share);
    };
    // As in all_reduce: small whole numbers that differ by element and rank. All run at once.
    const auto base = [&](int64_t share) {
      return torch::ones({n * share}).cumsum(0).remainder(5);
    };
    std::vector<at::Tensor> tensors;
    std::vector<std::unique_ptr<Group::Work>> works;
    each([&](at::ScalarType dtype, int64_t share) {
      tensors.push_back((base(share) * (group->rank() + 1)).to(dtype));
      works.push_back(group->reduce_scatter_async(tensors.back()));
    });
    size_t i = 0;
    each([&](at::ScalarType dtype, int64_t share) {
      works[i]->wait();
      const auto part = tensors[i++].narrow(0, group->rank() * share, share);
      const auto sum =
          (base(share) * (n * (n + 1) / 2)).to(dtype).narrow(0, group->rank() * share, share);
      EXPECT_TRUE(torch::equal(part, sum)) << dtype << " " << share;
    });
  });
}

TEST_P(Collectives, BroadcastAndAllGatherMoveTheBitsOfEveryDtype) {
  const int n = GetParam();
  const auto of_rank = [](int rank, at::ScalarType dtype, const std::vector<int64_t>& shape) {
    return (torch::ones(shape).flatten().cumsum(0).remainder(2 + rank)).reshape(shape).to(dtype);
  };
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    for (const auto dtype :
         {at::kDouble, at::kBFloat16, at::kBool, at::kShort, at::kFloat8_e4m3fn, at::kLong})
      for (const auto& shape : kShapes) {
        for (int root = 0; root < n; ++root) {
          auto tensor = of_rank(group->rank(), dtype, shape);
          group->broadcast(tensor, root);
          EXPECT_TRUE(
              torch::equal(tensor.to(at::kFloat), of_rank(root, dtype, shape).to(at::kFloat)));
        }
        const auto mine = of_rank(group->rank(), dtype, shape);
        const auto all = group->all_gather(mine);
        ASSERT_EQ(all.size(), static_cast<size_t>(n));
        for (int r = 0; r < n; ++r) {
          EXPECT_EQ(all[static_cast<size_t>(r)].scalar_type(), dtype);
          EXPECT_EQ(all[static_cast<size_t>(r)].sizes(), mine.sizes());
          EXPECT_TRUE(torch::equal(all[static_cast<size_t>(r)].to(at::kFloat),
                                   of_rank(r, dtype, shape).to(at::kFloat)));
        }
      }
  });
}

TEST_P(Collectives, TheSameRanksGiveTheSameBits) {
  const int n = GetParam();
  const auto run = [&] {
    std::vector<at::Tensor> sums(static_cast<size_t>(n));
    expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
      auto generator =
          at::make_generator<at::CPUGeneratorImpl>(static_cast<uint64_t>(group->rank()));
      auto tensor = torch::randn({100003}, generator);
      group->all_reduce(tensor);
      sums[static_cast<size_t>(group->rank())] = tensor;
    });
    for (const auto& sum : sums) EXPECT_TRUE(torch::equal(sum, sums[0])) << "ranks differ";
    return sums[0];
  };
  EXPECT_TRUE(torch::equal(run(), run()));
}

TEST_P(Collectives, ABarrierHoldsUntilTheLastRankComes) {
  const int n = GetParam();
  std::atomic<int> entered = 0;
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    for (int round = 1; round <= 20; ++round) {
      if (group->rank() == round % n) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      ++entered;
      group->barrier();
      EXPECT_GE(entered, n * round);
      group->barrier();
    }
  });
}

TEST_P(Collectives, MisuseIsAnInternalError) {
  const int n = GetParam();
  expect_all_succeed(n, [&](std::shared_ptr<Group> group) {
    auto tensor = torch::zeros({2});
    EXPECT_THROW(group->broadcast(tensor, n), InternalError);
    if (n == 1) return;
    auto transposed = torch::zeros({3, 4}).t();
    EXPECT_THROW(group->all_reduce(transposed), InternalError);
    auto flags = torch::zeros({3 * n}, at::kBool);
    EXPECT_THROW(group->all_reduce(flags), InternalError);
    EXPECT_THROW(group->reduce_scatter_async(flags), InternalError);
    EXPECT_THROW(group->reduce_scatter_async(torch::zeros({n + 1})), InternalError);
    group->barrier();  // and the group is still good
  });
}

/// One of four ranks dies: its group is destroyed. The others are in an all-reduce; some of them do
/// not exchange data with it.
TEST(DeadRank, EveryOtherRankNamesItAtOnce) {
  for (int dead = 0; dead < 4; ++dead) {
    std::vector<std::string> errors;
    const double took = seconds_of([&] {
      errors = run_ranks(4, [&](std::shared_ptr<Group> group) {
        auto tensor = torch::ones({1000});
        group->all_reduce(tensor);
        if (group->rank() == dead) return;
        std::vector<std::unique_ptr<Group::Work>> works;  // several under way, as in backward
        for (int i = 0; i < 5; ++i) works.push_back(group->all_reduce_async(torch::ones({1000})));
        for (auto& work : works) work->wait();
      });
    });
    // Far below the timeout of 60 s; the margin is for a loaded machine.
    EXPECT_LT(took, 20);
    for (int r = 0; r < 4; ++r)
      EXPECT_THAT(errors[static_cast<size_t>(r)],
                  r == dead ? ::testing::Eq("")
                            : ::testing::Matcher<std::string>(
                                  AllOf(HasSubstr("all_reduce (call "),
                                        HasSubstr(fmt::format("rank {} stopped answering", dead)))))
          << "rank " << r;
  }
}

/// Gloo leaves a call that was in the middle of a transfer asleep; it must not wait for the
/// timeout.
TEST(DeadRank, DyingInTheMiddleOfATransferIsNoticedAtOnce) {
  for (int round = 0; round < 3; ++round) {
    std::vector<std::string> errors;
    const double took = seconds_of([&] {
      errors = run_ranks(3, [&](std::shared_ptr<Group> group) {
        group->barrier();
        auto tensor = torch::ones({16 << 20});
        const auto work = group->all_reduce_async(tensor);
        if (group->rank() == 1) {
          std::this_thread::sleep_for(std::chrono::milliseconds(3 + 2 * round));
          return;
        }
        while (true) group->barrier();
      });
    });
    EXPECT_LT(took, 20);
    EXPECT_EQ(errors[1], "");
    for (const size_t r : {0, 2}) EXPECT_THAT(errors[r], HasSubstr("rank 1 stopped answering"));
  }
}

TEST(DeadRank, EveryCollectiveNoticesAndTheGroupStaysUnusable) {
  const std::map<std::string, std::function<void(Group&)>> calls = {
      {"barrier", [](Group& g) { g.barrier(); }},
      {"all_gather", [](Group& g) { g.all_gather(torch::ones({4})); }},
      {"broadcast",
       [](Group& g) {
         auto t = torch::ones({4});
         g.broadcast(t, 1);
       }},
      {"all_to_all",
       [](Group& g) {
         auto t = torch::ones({3});
         g.all_to_all_async(t.clone(), t, {1, 1, 1}, {1, 1, 1})->wait();
       }},
      {"all_reduce", [](Group& g) {
         auto t = torch::ones({4});
         g.all_reduce(t);
       }}};
  for (const auto& [name, call] : calls) {
    const auto errors = run_ranks(3, [&, &call = call](std::shared_ptr<Group> group) {
      group->barrier();
      if (group->rank() == 1) return;
      std::string first;
      try {
        call(*group);
      } catch (const CommError& error) {
        first = error.what();
      }
      EXPECT_THAT(first, AllOf(HasSubstr(fmt::format("{} (call 2)", name)),
                               HasSubstr("rank 1 stopped answering")));
      auto tensor = torch::ones({4});
      group->all_reduce(tensor);
    });
    EXPECT_EQ(errors[1], "");
    for (const int r : {0, 2})
      EXPECT_THAT(errors[static_cast<size_t>(r)], HasSubstr("failed before: " + name));
  }
}

/// One of four ranks in two pairs dies. Its pair's error also ends the other pair, and names ranks
/// by their number in the world.
TEST(DeadRank, AFailureInASubgroupEndsAllGroups) {
  for (int dead = 0; dead < 4; ++dead) {
    std::vector<std::string> errors;
    const double took = seconds_of([&] {
      errors = run_ranks(4, [&](std::shared_ptr<Group> world) {
        const auto row = world->split({{0, 1}, {2, 3}}), column = world->split({{0, 2}, {1, 3}});
        auto tensor = torch::ones({1000});
        row->all_reduce(tensor);
        if (world->rank() == dead) return;
        if (world->rank() / 2 == dead / 2) {
          EXPECT_THROW(row->all_reduce(tensor), CommError);
          std::string text;
          try {
            column->barrier();
          } catch (const CommError& error) {
            text = error.what();
          }
          EXPECT_THAT(text, HasSubstr("failed before: all_reduce (call 2) among ranks"));
        }
        world->barrier();
      });
    });
    EXPECT_LT(took, 20);
    for (int r = 0; r < 4; ++r)
      if (r != dead) {
        EXPECT_THAT(errors[static_cast<size_t>(r)],
                    HasSubstr(fmt::format("rank {} stopped answering", dead)));
      }
  }
}

TEST(DeadRank, AnErrorOnOneRankEndsTheOthers) {
  const auto errors = run_ranks(3, [&](std::shared_ptr<Group> group) {
    group->barrier();
    if (group->rank() == 2) throw UserError("bad record");
    while (true) group->barrier();
  });
  EXPECT_EQ(errors[2], "bad record");
  for (const int r : {0, 1})
    EXPECT_THAT(errors[static_cast<size_t>(r)], HasSubstr("rank 2 stopped answering"));
}

TEST(SilentRank, IsNamedAfterTheTimeout) {
  std::atomic<int> done = 0;
  const auto errors =
      run_ranks(3,
                [&](std::shared_ptr<Group> group) {
                  group->barrier();
                  if (group->rank() == 1) {
                    while (done < 2) std::this_thread::sleep_for(std::chrono::milliseconds(5));
                    return;
                  }
                  auto tensor = torch::ones({4});
                  double took = 0;
                  std::string text;
                  took = seconds_of([&] {
                    try {
                      group->all_reduce(tensor);
                    } catch (const CommError& error) {
                      text = error.what();
                    }
                  });
                  ++done;
                  EXPECT_GE(took, 0.9);
                  EXPECT_THAT(text, AllOf(HasSubstr("all_reduce (call 2)"), HasSubstr("rank 1 ")));
                },
                {.timeout_s = 1});
  EXPECT_THAT(errors, ElementsAre("", "", ""));
}

TEST(SilentRank, InAnAllToAllOfASubgroupIsNamedAfterTheTimeout) {
  std::atomic<int> done = 0;
  const auto errors = run_ranks(
      3,
      [&](std::shared_ptr<Group> world) {
        const auto pair = world->split({{0}, {1, 2}});
        if (world->rank() == 2) {
          const auto x = torch::ones({2});
          double took = 0;
          took = seconds_of([&] {
            try {
              pair->all_to_all_async(x.clone(), x, {1, 1}, {1, 1})->wait();
            } catch (const CommError& error) {
              EXPECT_THAT(error.what(), AllOf(HasSubstr("all_to_all (call 1) among ranks 1, 2"),
                                              HasSubstr("rank 1 did not answer")));
            }
          });
          EXPECT_GE(took, 0.9);
          EXPECT_LT(took, 10);
          ++done;
        }
        while (done < 1) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      },
      {.timeout_s = 1});
  EXPECT_THAT(errors, ElementsAre("", "", ""));
}

}  // namespace
}  // namespace dovetail::comm::group_test
