// ctest-labels: fuzz
//
// Mutated files of a run's folder make a report or are refused. Mutated tasks of multiple choice
// are accepted or refused.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/train/gpt/multiple_choice.h"
#include "dovetail/train/report/run_report.h"
#include "tests/base/temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::train::train_files_fuzz_test {
namespace {

const char* const kMetrics =
    R"({"step":1,"loss":4.5,"lr":0.001,"grad_norm":2.0,"tokens":100}
{"step":2,"loss":null,"lr":0.002,"grad_norm":null,"tokens":200,"skipped":true}
{"step":3,"loss":3.5,"lr":0.002,"grad_norm":1.5,"tokens":300,"validation_loss":3.6,"validation_nats_per_byte":1.25}
)";

const char* const kExperts =
    R"({"step":1,"layers":[{"layer":1,"load":[0.5,0.5],"entropy":1.0,"dropped":0.0,"r":1,"overlap":2,"all_to_all":"linear","shadowed":[0]}],"all_to_all":{"bytes_sent":10,"waited_s":0.1}}
)";

const char* const kTimings = R"({"step":1,"step_ms":12.5,"tokens_per_s":800,"memory_bytes":1000000}
)";

const char* const kTasks =
    R"({"context": "a", "choices": ["x", "y"], "answer": 1}
{"context":"","choices":["é","y","z"],"answer":0,"id":7})";

/// Mutates one file of a run's folder and leaves the others intact.
void fuzz_run_file(const std::string& name, const std::string& content, uint64_t seed) {
  const test::TemporaryFolder folder;
  test::overwrite(folder / "config.toml", "[run]\nname = \"small\"\n[train]\nsteps = 3\n");
  test::overwrite(folder / "metrics.jsonl", kMetrics);
  test::fuzz({content}, 1000, seed, [&](const std::string& input) {
    test::overwrite(folder / name, input);
    report_data(folder.path()).dump();
  });
}

TEST(RunFilesFuzz, MetricsMakeAReportOrAreRefused) { fuzz_run_file("metrics.jsonl", kMetrics, 67); }
TEST(RunFilesFuzz, TimingsMakeAReportOrAreRefused) { fuzz_run_file("timings.jsonl", kTimings, 71); }
TEST(RunFilesFuzz, ExpertsMakeAReportOrAreRefused) { fuzz_run_file("experts.jsonl", kExperts, 73); }

TEST(MultipleChoiceFuzz, TasksAreReadOrRefused) {
  test::fuzz({kTasks}, 5000, 79, [](const std::string& input) {
    for (const MultipleChoiceItem& item : parse_multiple_choice(input, "fuzzed.jsonl")) {
      EXPECT_GE(item.answer, 0);
      EXPECT_LT(static_cast<size_t>(item.answer), item.choices.size());
    }
  });
}

}  // namespace
}  // namespace dovetail::train::train_files_fuzz_test
