// ctest-labels: threads
#include "dovetail/data/text/loader.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "dovetail/base/error.h"
#include "dovetail/data/text/prepare.h"
#include "temporary_folder.h"

namespace dovetail::data::loader_test {
namespace {

/// A prepared folder of `size` bytes of text, all `letter` or, without one, counting up.
std::string prepared(const TemporaryFolder& folder, const std::string& name, size_t size,
                     char letter = 0) {
  std::string text(size, letter);
  if (letter == 0)
    for (size_t i = 0; i < size; ++i) text[i] = static_cast<char>('!' + i % 90);
  DataConfig config;
  config.text = {folder.write(name + ".txt", text).string()};
  config.validation_fraction = 0;
  prepare(config, folder.path() / name);
  return (folder.path() / name).string();
}

std::vector<at::Tensor> steps(const DataConfig& config, const LoaderOptions& options, int64_t begin,
                              int64_t end) {
  Loader loader(config, options);
  std::vector<at::Tensor> out;
  for (int64_t step = begin; step < end; ++step) out.push_back(loader.step(step));
  return out;
}

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() {
    one_.path = prepared(folder_, "one", 1000);
    const std::string a = prepared(folder_, "a", 300, 'a'), b = prepared(folder_, "b", 200, 'b'),
                      c = prepared(folder_, "c", 100, 'c');
    mixed_.mixture = {{a, 3}, {b, 1}};
    PhaseConfig later;
    later.from = 0.6;
    later.mixture = {{b, 1}, {c, 1}};
    mixed_.phase = {later};
  }

  TemporaryFolder folder_;
  DataConfig one_, mixed_;
};

TEST_F(LoaderTest, GivesTokensOfTheText) {
  Loader loader(one_, {.seed = 1, .batch = 3, .context = 8, .total_steps = 10});
  const at::Tensor tokens = loader.step(0);
  ASSERT_EQ(tokens.sizes(), (std::vector<int64_t>{3, 9}));
  ASSERT_EQ(tokens.scalar_type(), at::kLong);
  for (int64_t i = 0; i < 3; ++i)
    for (int64_t t = 0; t < 8; ++t) {
      const auto next = tokens[i][t + 1].item<int64_t>();
      if (next != 256) {
        EXPECT_EQ((tokens[i][t].item<int64_t>() - '!' + 1) % 90, next - '!');
      }
    }
  EXPECT_EQ(loader.first_store().num_bytes(Split::kTrain), 1000u);
}

TEST_F(LoaderTest, IsAFunctionOfTheStepInAnyOrder) {
  for (const DataConfig& config : {one_, mixed_}) {
    const LoaderOptions options{.seed = 4, .batch = 6, .context = 16, .total_steps = 20};
    const auto expected = steps(config, options, 0, 30);  // past the end of the run, too
    Loader loader(config, options);
    for (const int64_t step : {0, 1, 2, 17, 18, 3, 3, 29, 0, 12, 13, 14, 15, 16, 11})
      EXPECT_TRUE(at::equal(loader.step(step), expected[static_cast<size_t>(step)])) << step;
    // Resumed in the middle.
    const auto resumed = steps(config, options, 11, 20);
    for (size_t i = 0; i < resumed.size(); ++i)
      EXPECT_TRUE(at::equal(resumed[i], expected[11 + i]));
  }
}

TEST_F(LoaderTest, RanksTogetherHaveTheSamples) {
  LoaderOptions options{.seed = 4, .batch = 10, .context = 5, .total_steps = 12};
  const auto expected = steps(mixed_, options, 0, 12);
  for (const int world : {2, 3, 4, 10}) {
    options.world = world;
    std::vector<std::vector<at::Tensor>> of_rank;
    for (options.rank = 0; options.rank < world; ++options.rank)
      of_rank.push_back(steps(mixed_, options, 0, 12));
    for (size_t s = 0; s < expected.size(); ++s) {
      std::vector<at::Tensor> parts;
      for (const auto& mine : of_rank) parts.push_back(mine[s]);
      EXPECT_TRUE(at::equal(at::cat(parts), expected[s])) << "world " << world << " step " << s;
    }
  }
}

TEST_F(LoaderTest, GivesThePartThatItIsTold) {
  const LoaderOptions options{
      .seed = 4, .batch = 10, .context = 5, .total_steps = 12, .rank = 1, .world = 2};
  const auto expected =
      steps(mixed_, {.seed = 4, .batch = 10, .context = 5, .total_steps = 12}, 0, 12);
  Loader loader(mixed_, options);
  const auto expect_part = [&](int64_t step, int64_t begin, int64_t end) {
    EXPECT_TRUE(
        at::equal(loader.step(step), expected[static_cast<size_t>(step)].slice(0, begin, end)))
        << step;
  };
  expect_part(0, 5, 10);
  loader.set_part(9, 10);  // also for prefetched steps
  expect_part(1, 9, 10);
  expect_part(2, 9, 10);
  loader.set_part(1, 10);
  for (int64_t step = 3; step < 12; ++step) expect_part(step, 1, 10);
}

TEST_F(LoaderTest, TakesEachWindowOnceAnEpoch) {
  // 1001 tokens (the text and the end of its document) in windows of 10: 99 an epoch at any offset.
  const auto epoch = steps(one_, {.seed = 9, .batch = 33, .context = 10, .total_steps = 6}, 0, 6);
  for (const size_t first : {size_t{0}, size_t{3}}) {
    std::map<int64_t, int> targets;
    for (size_t s = first; s < first + 3; ++s)
      for (int64_t i = 0; i < 33; ++i)
        for (int64_t t = 1; t <= 10; ++t) ++targets[epoch[s][i][t].item<int64_t>()];
    int total = 0;
    for (const auto& [token, count] : targets) {
      EXPECT_LE(count, 12) << token;  // the text has 11 or 12
      total += count;
    }
    EXPECT_EQ(total, 990);
  }
}

TEST_F(LoaderTest, MixesInPhases) {
  const LoaderOptions options{.seed = 2, .batch = 8, .context = 9, .total_steps = 100};
  const auto all = steps(mixed_, options, 0, 100);
  const auto count = [&](char letter, size_t begin, size_t end) {
    int64_t samples = 0;
    for (size_t s = begin; s < end; ++s)
      samples += all[s].select(1, 0).eq(letter).sum().item<int64_t>();
    return samples;
  };
  EXPECT_EQ(count('a', 0, 60), 360);
  EXPECT_EQ(count('b', 0, 60), 120);
  EXPECT_EQ(count('a', 60, 100), 0);
  EXPECT_EQ(count('b', 60, 100), 160);
  EXPECT_EQ(count('c', 60, 100), 160);
  // Every step has its share, not only the whole.
  for (size_t s = 0; s < 60; ++s) EXPECT_EQ(count('a', s, s + 1), 6);
  EXPECT_THAT(Loader(mixed_, options).summary(), ::testing::HasSubstr("weight 0.45"));
}

TEST_F(LoaderTest, AnotherSeedIsAnotherOrder) {
  LoaderOptions options{.seed = 1, .batch = 8, .context = 16, .total_steps = 4};
  const auto first = steps(one_, options, 0, 1);
  options.seed = 2;
  EXPECT_FALSE(at::equal(first[0], steps(one_, options, 0, 1)[0]));
}

TEST_F(LoaderTest, RefusesWhatCannotBeSampled) {
  const LoaderOptions options{.batch = 2, .context = 150, .total_steps = 10};
  try {
    Loader loader(mixed_, options);
    FAIL() << "c has 101 tokens";
  } catch (const UserError& e) {
    EXPECT_THAT(e.what(),
                ::testing::AllOf(::testing::HasSubstr("101"), ::testing::HasSubstr("151")));
  }
  DataConfig twice = mixed_;
  twice.mixture.push_back(twice.mixture[0]);
  EXPECT_THROW(Loader(twice, {.context = 9}), UserError);
  DataConfig backwards = mixed_;
  backwards.phase.push_back(backwards.phase[0]);
  EXPECT_THROW(Loader(backwards, {.context = 9}), UserError);
  DataConfig absent;
  absent.path = (folder_.path() / "absent").string();
  EXPECT_THROW(Loader(absent, {}), UserError);
  Loader loader(one_, {});
  EXPECT_THROW(loader.step(-1), InternalError);
}

TEST_F(LoaderTest, RefusesMixedTokenizers) {
  DataConfig config;
  config.text = {folder_.write("words.txt", std::string(500, 'x') + " words words").string()};
  config.validation_fraction = 0;
  config.tokenizer.kind = "bpe";
  config.tokenizer.vocab_size = 260;
  prepare(config, folder_.path() / "words");
  mixed_.mixture.push_back({(folder_.path() / "words").string(), 1});
  EXPECT_THROW(Loader(mixed_, {.context = 9}), UserError);
}

TEST_F(LoaderTest, StopsWhileItPrefetches) {
  for (int i = 0; i < 20; ++i) {
    Loader loader(one_, {.batch = 64, .context = 32, .total_steps = 1000});
    loader.step(i);
  }
}

}  // namespace
}  // namespace dovetail::data::loader_test
