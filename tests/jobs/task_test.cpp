// Contract of tasks: shards, partials summed along one tree, tasks found by name.
#include "dovetail/jobs/task.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "dovetail/jobs/job.h"
#include "tests/ops/testing.h"

namespace dovetail::jobs::task_test {
namespace {

using dovetail::testing::Threads;

// Numbers whose sum depends on the order of addition.
double value(int64_t i) { return std::pow(-1.1, static_cast<double>(i)) * 1e3; }

Partial partial_of(int64_t i) { return {{at::tensor({value(i), 1.0}, at::kDouble)}, 2}; }

// Definition of the summation tree: a block of a power of two is summed by halves; blocks are
// summed one after another.
double block_of(int64_t first, int64_t count) {
  return count == 1 ? value(first)
                    : block_of(first, count / 2) + block_of(first + count / 2, count / 2);
}

double tree_of(int64_t shards) {
  double sum = 0;
  int64_t first = 0;
  for (int64_t count = 1 << 20; count > 0; count /= 2) {
    if (first + count > shards) continue;
    sum = first == 0 ? block_of(first, count) : sum + block_of(first, count);
    first += count;
  }
  return sum;
}

TEST(TreeSum, IsTheSumOfOneTreeWhateverTheOrderOfArrival) {
  constexpr int64_t kShards = 60;
  std::vector<int64_t> order(kShards);
  std::iota(order.begin(), order.end(), 0);
  for (unsigned seed = 0; seed < 5; ++seed) {
    TreeSum sum;
    for (const int64_t i : order) sum.add({.first = i, .partial = partial_of(i)});
    const Partial all = sum_of(sum.take(0, kShards));
    EXPECT_EQ(all.tensors[0][0].item<double>(), tree_of(kShards));
    EXPECT_EQ(all.tensors[0][1].item<double>(), kShards);
    EXPECT_EQ(all.weight, 2 * kShards);
    std::shuffle(order.begin(), order.end(), std::mt19937(seed));
  }
}

TEST(TreeSum, IsTheSameSumWhereverPartsOfItMeet) {
  constexpr int64_t kShards = 45;
  for (int64_t cut = 0; cut <= kShards; ++cut) {
    TreeSum whole;
    for (const auto& [first, end] : {std::pair<int64_t, int64_t>(cut, kShards), {0, cut}}) {
      TreeSum part;
      for (int64_t i = first; i < end; ++i) part.add({.first = i, .partial = partial_of(i)});
      std::vector<BlockSum> blocks = part.take(first, end - first);
      EXPECT_LE(blocks.size(), 10U) << "more than twice the digits of 45";
      for (BlockSum& block : blocks) whole.add(std::move(block));
    }
    EXPECT_EQ(sum_of(whole.take(0, kShards)).tensors[0][0].item<double>(), tree_of(kShards)) << cut;
  }
}

TEST(TreeSum, RefusesASecondPartialOfAShardAndAMissingOne) {
  TreeSum sum;
  const auto add = [&](int64_t shard) { sum.add({.first = shard, .partial = partial_of(shard)}); };
  for (const int64_t shard : {0, 2, 3, 5}) add(shard);
  for (const int64_t shard : {0, 2, 3, 5}) EXPECT_THROW(add(shard), InternalError) << shard;
  EXPECT_THROW(sum.take(0, 6), InternalError) << "without 1 and 4";
  add(1);
  add(4);
  EXPECT_THROW(sum.take(0, 7), InternalError);
  EXPECT_THROW(sum.take(0, 5), InternalError);
  EXPECT_EQ(sum_of(sum.take(0, 6)).weight, 12);
}

TEST(TreeSum, IsTheSameSumOfArraysThatATaskAddsInBlocks) {
  for (const int64_t first : {0, 1, 6, 32}) {
    TreeSum sum;
    for (int64_t i = 0; i < first; ++i) sum.add({.first = i, .partial = partial_of(i)});
    const std::vector<Block> blocks = blocks_of(first, 45 - first, 16);
    int64_t next = first;
    for (const Block& block : blocks) {
      EXPECT_EQ(block.first, next);
      EXPECT_EQ(block.first % block.count, 0) << "a block of the tree";
      EXPECT_LE(block.count, 16);
      next += block.count;
      ArrayTree array(2);
      for (int64_t i = 0; i < block.count; ++i) {
        double* numbers = array.next();
        EXPECT_EQ(numbers[0], 0);
        numbers[0] = value(block.first + i);
        numbers[1] = 1;
      }
      sum.add({block.first, block.count, {{array.take()}, 2.0 * static_cast<double>(block.count)}});
    }
    EXPECT_EQ(next, 45);
    const Partial all = sum_of(sum.take(0, 45));
    EXPECT_EQ(all.tensors[0][0].item<double>(), tree_of(45)) << first;
    EXPECT_EQ(all.weight, 90);
  }
}

TEST(TreeSum, CountsAPartialWithoutTensorsAsZero) {
  TreeSum sum;
  sum.add({.first = 1, .partial = partial_of(1)});
  sum.add({.first = 0, .partial = {}});
  sum.add({.first = 2, .partial = {}});
  const Partial all = sum_of(sum.take(0, 3));
  EXPECT_EQ(all.tensors[0][0].item<double>(), value(1));
  EXPECT_EQ(all.weight, 2);
}

TEST(TreeSum, KeepsResultsOfShardsInTheirOrder) {
  constexpr int64_t kShards = 45;
  const at::Tensor all = at::arange(3 * kShards, at::kLong).view({kShards, 3});
  std::vector<Block> blocks;
  for (const int64_t first : {0, 12, 13}) {
    const int64_t end = first == 0 ? 12 : first == 12 ? 13 : kShards;
    for (const Block& block : blocks_of(first, end - first, 8)) blocks.push_back(block);
  }
  for (unsigned seed = 0; seed < 5; ++seed) {
    TreeSum sum;
    for (const auto& [first, count] : blocks)
      sum.add(
          {first, count, {{all.narrow(0, first, count).sum(0)}, 1, all.narrow(0, first, count)}});
    const Partial total = sum_of(sum.take(0, kShards));
    EXPECT_TRUE(at::equal(total.of_shards, all));
    EXPECT_TRUE(at::equal(total.tensors[0], all.sum(0)));
    std::shuffle(blocks.begin(), blocks.end(), std::mt19937(seed));
  }
  TreeSum sum;
  sum.add({.first = 0, .partial = {{}, 1, all.narrow(0, 0, 1)}});
  sum.add({.first = 1, .partial = partial_of(1)});
  EXPECT_THROW(sum_of(sum.take(0, 2)), InternalError) << "one shard has no result";
}

TEST(Job, HasADigestOfAllBits) {
  const auto digest = [](Partial partial) {
    ShardResult result;
    result.blocks.push_back({.partial = std::move(partial)});
    return Job::digest(result);
  };
  const at::Tensor row = at::arange(3, at::kDouble).unsqueeze(0);
  const uint64_t expected = digest({{row}, 1, row});
  EXPECT_EQ(digest({{row.clone()}, 1, row.clone()}), expected);
  EXPECT_NE(digest({{row}, 1, row + 1e-15}), expected);
  EXPECT_NE(digest({{row + 1e-15}, 1, row}), expected);
  EXPECT_NE(digest({{row}, 2, row}), expected);
}

TEST(ResidentData, IsCutIntoShardsThatCoverEachRowOnce) {
  const at::Tensor x = at::arange(10, at::kDouble);
  const ResidentData data({x});
  const auto shards = data.shards(4);
  ASSERT_EQ(shards.count(), 3);
  std::vector<at::Tensor> rows;
  for (int64_t i = 0; i < 3; ++i) rows.push_back(rows_of(shards.part(i, 1)).at(0));
  EXPECT_TRUE(at::equal(at::cat(rows), x));
  EXPECT_EQ(rows[1].const_data_ptr<double>(), x.const_data_ptr<double>() + 4)
      << "a view, not a copy";
}

TEST(ResidentData, CountsRowsFromWhereItWasTold) {
  const at::Tensor x = at::arange(10, at::kDouble);
  const ResidentData data({x}, 100);
  const auto shards = data.shards(4);
  ASSERT_EQ(shards.count(), 3);
  EXPECT_EQ(shards.part(1, 1).begin, 104);
  EXPECT_TRUE(at::equal(rows_of(shards.part(1, 1)).at(0), x.slice(0, 4, 8)));
  EXPECT_EQ(shards.part(1, 2).size, 6) << "the last shard is short";
  EXPECT_THROW(shards.part(2, 2), InternalError);
}

TEST(ResidentData, IsGoneWithItsOwner) {
  Shards shards;
  {
    const ResidentData data({at::arange(3)});
    shards = data.shards(3);
  }
  EXPECT_THROW(rows_of(shards), InternalError);
}

TEST(PlacedRows, AreReadWhereverTheyLie) {
  // Rows 2 to 4 and 7 of ten have newer values elsewhere.
  const at::Tensor base = at::arange(10, at::kDouble);
  const PlacedRows rows{
      base, {{2, at::tensor({20., 30., 40.}, at::kDouble)}, {7, at::tensor({70.}, at::kDouble)}}};
  const at::Tensor all = at::tensor({0., 1., 20., 30., 40., 5., 6., 70., 8., 9.}, at::kDouble);
  EXPECT_TRUE(at::equal(rows.gathered(), all));
  EXPECT_TRUE(at::equal(base, at::arange(10, at::kDouble))) << "others may still read it";
  for (int64_t begin = 0; begin < 10; ++begin)
    for (int64_t size = 1; begin + size <= 10; ++size)
      ASSERT_TRUE(at::equal(rows.narrow(begin, size).gathered(), all.narrow(0, begin, size)))
          << begin << ", " << size;
}

/// Writes the sum of both tensors into the second one.
Partial add_task(const Parameters& parameters, const Shards& shard) {
  const auto rows = rows_of(shard);
  rows[1].add_(rows[0]);
  return {{rows[1].sum()}, static_cast<double>(shard.size)};
}
const TaskRegistration kAdd("test.add", at::kCPU, add_task, {1});

TEST(Job, ReadsRowsThatLieElsewhere) {
  const at::Tensor x = at::arange(10, at::kDouble);
  const ResidentData data({x, at::zeros({10}, at::kDouble)});
  const Shards shards = data.shards(3);
  const at::Tensor newer = at::full({4}, 100., at::kDouble);
  // Tensor 0 is read and tensor 1 is written. Both have newer rows, in different places.
  put_rows(shards, 0, {x, {{4, newer}}});
  put_rows(shards, 1, {at::zeros({10}, at::kDouble), {{1, newer}, {8, newer.narrow(0, 0, 2)}}});
  const at::Tensor read = at::cat({x.narrow(0, 0, 4), newer, x.narrow(0, 8, 2)});
  const at::Tensor before =
      at::cat({at::zeros(1), newer, at::zeros(3), newer.narrow(0, 0, 2)}).to(at::kDouble);
  DeviceCopies copies(at::kCPU);
  Job job("test.add", {}, shards);
  for (const auto& [first, count] : {std::pair(2, 2), std::pair(0, 2)})
    job.accept(first, count, job.compute(first, count, copies));
  EXPECT_EQ(sum_of(job.take()).tensors[0].item<double>(), (before + read).sum().item<double>());
  EXPECT_TRUE(at::equal(data.tensor(1), before + read));
  EXPECT_TRUE(at::equal(data.tensor(0), read));
  EXPECT_TRUE(at::equal(newer, at::full({4}, 100., at::kDouble)));
}

Partial sum_task(const Parameters& parameters, const Shards& shard) {
  return {{(rows_of(shard).at(0) * parameters.at(0)).sum()}, static_cast<double>(shard.size)};
}
const TaskRegistration kSum("test.sum", at::kCPU, sum_task);

TEST(Task, RunsByNameWithTheSameBitsForAnyNumberOfThreads) {
  at::Tensor x = at::empty({100}, at::kDouble);
  for (int64_t i = 0; i < 100; ++i) x[i] = value(i);
  const ResidentData data({x});
  const double expected = 2 * tree_of(100);
  for (const int threads : {1, 2, 3}) {
    const Threads now(threads);
    const Partial sum = run_task("test.sum", {at::scalar_tensor(2.0, at::kDouble)}, data.shards(1));
    EXPECT_EQ(sum.tensors[0].item<double>(), expected) << threads;
    EXPECT_EQ(sum.weight, 100);
  }
}

// One call for any shards, and one for a block of them; both write the number of their rows.
Partial sum_of_any(const Parameters&, const Shards& shards) {
  const auto rows = rows_of(shards);
  rows[1].fill_(shards.size);
  return {{rows[0].sum()}, static_cast<double>(shards.size)};
}
Partial sum_of_block(const Parameters&, const Shards& shards) {
  const auto rows = rows_of(shards);
  rows[1].fill_(shards.size);
  ArrayTree sum(1);
  for (int64_t i = 0; i < shards.count(); ++i)
    *sum.next() = rows_of(shards.part(i, 1), 0).sum().item<double>();
  return {{sum.take().squeeze(0)}, static_cast<double>(shards.size)};
}
const TaskRegistration kSumOfAny("test.sum_of_any", at::kCPU, sum_of_any, {1}, Takes::kAny);
const TaskRegistration kSumOfBlock("test.sum_of_block", at::kCPU, sum_of_block, {1}, Takes::kBlock);

TEST(Task, ComputesSeveralShardsInOneCall) {
  at::Tensor x = at::empty({90}, at::kDouble);
  for (int64_t i = 0; i < 90; ++i) x[i] = value(i);
  for (const int64_t grain : {1, 4}) {
    ResidentData data({x, at::zeros({90}, at::kLong)});
    const Shards shards = data.shards(grain);
    const at::Tensor one = at::scalar_tensor(1.0, at::kDouble);
    const Partial expected = run_task("test.sum", {one}, shards);
    for (const int threads : {1, 2, 3}) {
      const Threads now(threads);
      const Partial sum = run_task("test.sum_of_block", {}, shards);
      EXPECT_EQ(sum.tensors[0].item<double>(), expected.tensors[0].item<double>());
      EXPECT_EQ(sum.weight, 90);
      EXPECT_GT(data.tensor(1).max().item<int64_t>(), grain) << "one call for each shard";
    }
    // Shards 3 to 20 of a job: several blocks of the tree, but one call.
    const Shards some = shards.part(3, 18);
    TreeSum sum;
    for (BlockSum& block : call_task(find_task("test.sum_of_any", at::kCPU), {}, some, 3))
      sum.add(std::move(block));
    EXPECT_TRUE((rows_of(some, 1) == some.size).all().item<bool>());
    for (BlockSum& block : run_task_blocks("test.sum_of_any", {}, shards.part(0, 3), 0))
      sum.add(std::move(block));
    const Partial both = sum_of(sum.take(0, 21));
    EXPECT_EQ(both.weight, static_cast<double>(21 * grain));
    EXPECT_NEAR(both.tensors[0].item<double>(), x.narrow(0, 0, 21 * grain).sum().item<double>(),
                1e-9 * std::abs(both.tensors[0].item<double>()) + 1e-9);
  }
}

TEST(Task, IsComputedInCallsThatGetSmaller) {
  for (const int64_t num_shards : {8, 20, 90, 1000}) {
    ResidentData data({at::ones({num_shards}, at::kDouble), at::zeros({num_shards}, at::kLong)});
    for (const int threads : {2, 3}) {
      const Threads now(threads);
      run_task("test.sum_of_block", {}, data.shards(1));
      const at::Tensor sizes = data.tensor(1);  // shards of the call, for each shard
      EXPECT_TRUE((sizes.diff() <= 0).all().item<bool>()) << sizes;
      EXPECT_LE(sizes[0].item<int64_t>(), std::max<int64_t>(1, num_shards / (2 * threads)));
      EXPECT_LE(sizes[0].item<int64_t>(), kCallShards);
      EXPECT_EQ(sizes.narrow(0, num_shards - 2 * threads, 2 * threads).max().item<int64_t>(), 1);
    }
  }
}

TEST(Task, IsRefusedWhereItHasNoVariant) {
  EXPECT_THROW(find_task("test.absent", at::kCPU), InternalError);
  EXPECT_THROW(register_task("test.sum", at::kCPU, sum_task), InternalError);
  try {
    find_task("test.sum", at::kCUDA);
    FAIL() << "found";
  } catch (const UserError& error) {
    EXPECT_STREQ(error.what(), "task test.sum does not run on cuda, only on cpu");
  }
}

}  // namespace
}  // namespace dovetail::jobs::task_test
