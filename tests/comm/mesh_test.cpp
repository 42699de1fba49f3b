#include "dovetail/comm/mesh.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/types.h>

#include <memory>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "ranks.h"

namespace dovetail::comm::mesh_test {
namespace {

using ::testing::HasSubstr;

/// The world's ranks that are in `group`, in its order.
std::vector<int64_t> members(Group& group, int64_t rank) {
  std::vector<int64_t> ranks;
  for (const auto& one : group.all_gather(torch::full({1}, rank, at::kLong)))
    ranks.push_back(one.item<int64_t>());
  return ranks;
}

TEST(Mesh, AxesAreTheDigitsOfTheRank) {
  constexpr int kData = 2, kExpert = 3, kTensor = 2;
  expect_all_succeed(kData * kExpert * kTensor, [&](std::shared_ptr<Group> world) {
    const Mesh mesh(world, {{"data", kData}, {"expert", kExpert}, {"expert_tensor", kTensor}});
    const auto both = mesh.make_group({"data", "expert"});
    const int64_t rank = world->rank();
    for (int64_t d = 0; d < kData; ++d)
      for (int64_t e = 0; e < kExpert; ++e)
        for (int64_t t = 0; t < kTensor; ++t) {
          if ((d * kExpert + e) * kTensor + t != rank) continue;
          EXPECT_EQ(mesh.coordinate("data"), d);
          EXPECT_EQ(mesh.coordinate("expert"), e);
          EXPECT_EQ(mesh.coordinate("expert_tensor"), t);
          std::vector<int64_t> data, expert, tensor, data_expert;
          for (int64_t i = 0; i < kData; ++i) data.push_back((i * kExpert + e) * kTensor + t);
          for (int64_t i = 0; i < kExpert; ++i) expert.push_back((d * kExpert + i) * kTensor + t);
          for (int64_t i = 0; i < kTensor; ++i) tensor.push_back((d * kExpert + e) * kTensor + i);
          for (int64_t i = 0; i < kData * kExpert; ++i) data_expert.push_back(i * kTensor + t);
          EXPECT_EQ(members(*mesh.group("data"), rank), data);
          EXPECT_EQ(members(*mesh.group("expert"), rank), expert);
          EXPECT_EQ(members(*mesh.group("expert_tensor"), rank), tensor);
          EXPECT_EQ(members(*both, rank), data_expert);
          EXPECT_EQ(mesh.group("expert")->rank(), e);
        }
  });
}

TEST(Mesh, AnAxisOfOneHasAGroupOfOneAndAWholeAxisConnectionsOfItsOwn) {
  expect_all_succeed(3, [&](std::shared_ptr<Group> world) {
    const Mesh mesh(world, {{"data", 1}, {"expert", 3}});
    EXPECT_EQ(mesh.group("data")->size(), 1);
    auto in_world = torch::ones({1000}), in_axis = torch::full({1000}, 2.0);
    // Ranks start the two in different orders, which one group would not allow.
    std::unique_ptr<Group::Work> first, second;
    if (world->rank() == 1) {
      first = world->all_reduce_async(in_world);
      second = mesh.group("expert")->all_reduce_async(in_axis);
    } else {
      second = mesh.group("expert")->all_reduce_async(in_axis);
      first = world->all_reduce_async(in_world);
    }
    first->wait();
    second->wait();
    EXPECT_TRUE(in_world.eq(3).all().item<bool>());
    EXPECT_TRUE(in_axis.eq(6).all().item<bool>());
  });
}

TEST(Mesh, SplitsOfSplitsAreGroupsToo) {
  expect_all_succeed(4, [&](std::shared_ptr<Group> world) {
    const auto half = world->split({{0, 1}, {3, 2}});
    EXPECT_EQ(members(*half, world->rank()),
              world->rank() < 2 ? (std::vector<int64_t>{0, 1}) : (std::vector<int64_t>{3, 2}));
    const auto again = half->split({{1, 0}});
    EXPECT_EQ(again->rank(), 1 - half->rank());
    EXPECT_EQ(half->split({{0}, {1}})->size(), 1);
  });
}

TEST(Mesh, SizesThatDoNotFitAreRefused) {
  expect_all_succeed(2, [&](std::shared_ptr<Group> world) {
    const auto message = [&](std::vector<Mesh::Axis> axes) -> std::string {
      try {
        const Mesh mesh(world, std::move(axes));
      } catch (const UserError& error) {
        return error.what();
      }
      return "";
    };
    EXPECT_THAT(message({{"data", 2}, {"expert", 3}}),
                HasSubstr("data 2 x expert 3 = 6 ranks, but the job has 2"));
    EXPECT_THAT(message({{"data", 0}}), HasSubstr("data has size 0"));
    EXPECT_THAT(message({{"data", 1}, {"data", 2}}), HasSubstr("data stands twice"));
    EXPECT_THROW(world->split({{0}}), InternalError);
    EXPECT_THROW(world->split({{0, 1}, {1}}), InternalError);
    EXPECT_THROW(world->split({{0, 2}}), InternalError);
    EXPECT_THROW(Mesh(world, {{"data", 2}}).group("expert"), InternalError);
  });
}

}  // namespace
}  // namespace dovetail::comm::mesh_test
