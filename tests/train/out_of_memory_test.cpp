#include "dovetail/train/resolve/out_of_memory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <regex>

#include "dovetail/train/resolve/resolve.h"
#include "tests/train/tiny_run.h"

namespace dovetail::train::out_of_memory_test {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ResolvedRun resolved(const test::TinyRun& tiny) {
  RunConfig config = tiny.config();
  config.train.batch = config.train.micro_batch = 64;
  const auto group = comm::local_groups(1)[0];
  ResolvedRun run = resolve_run(config, *group, {.quiet = true});
  resolve_precision_and_size(run, *group, std::nullopt);
  return run;
}

UserError error_with(ResolvedRun run, int64_t usable_bytes) {
  run.available_bytes = static_cast<uint64_t>(usable_bytes);
  const auto bytes = static_cast<uint64_t>(usable_bytes);
  return out_of_memory(run, {.total_bytes = bytes + 3'000'000, .allocated_bytes = bytes - 1000});
}

TEST(OutOfMemory, NamesTheLargestMicroBatchThatFits) {
  const test::TinyRun tiny;
  const ResolvedRun run = resolved(tiny);
  for (const int64_t micro_batch : {1, 17, 63}) {
    const UserError error = error_with(run, memory_with(run, micro_batch).of_step());
    EXPECT_THAT(error.help(), HasSubstr(fmt::format("train.micro_batch = {},", micro_batch)));
    EXPECT_THAT(error.help(), HasSubstr("train.checkpoint_activations = true"));
  }
  const UserError none = error_with(run, memory_with(run, 1).of_step() - 1);
  EXPECT_THAT(none.help(), Not(HasSubstr("micro_batch")));
  EXPECT_THAT(none.help(), HasSubstr("train.checkpoint_activations = true"));
}

TEST(OutOfMemory, OfARecommenderIsRelievedOfRows) {
  ResolvedRun run;
  run.config.recommender.model = "dlrm";
  EXPECT_THAT(error_with(run, 10'000'000).help(), HasSubstr("embedding.memory_bytes = \"auto\""));
  run.config.embedding.memory_bytes = 1 << 20;
  EXPECT_THAT(error_with(run, 10'000'000).help(), HasSubstr("lower embedding.memory_bytes"));
}

TEST(OutOfMemory, ListsThePartsOfAStep) {
  const test::TinyRun tiny;
  const ResolvedRun run = resolved(tiny);
  const std::string message = error_with(run, 10'000'000).what();
  EXPECT_THAT(message, HasSubstr("13 MB in all"));
  EXPECT_THAT(message, HasSubstr("micro-batches of 64"));
  for (const char* const part :
       {"weights", "gradients", "optimizer", "activations", "workspace", "together"})
    EXPECT_TRUE(std::regex_search(message, std::regex(fmt::format("{} +[0-9.]+ [kMG]?B", part))))
        << part << message;
  EXPECT_THAT(message, ::testing::ContainsRegex("other programs +3.0 MB"));
}

}  // namespace
}  // namespace dovetail::train::out_of_memory_test
