#include "dovetail/train/report/run_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/train/report/run_page.h"

namespace dovetail::train::report_test {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::ordered_json;

class Report : public ::testing::Test {
 protected:
  Report() : folder_(fs::temp_directory_path() / ("dovetail-report-" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write("config.toml", "[run]\nname = \"small\"\n[train]\nsteps = 4\n");
  }
  ~Report() override { fs::remove_all(folder_); }

  void write(const std::string& name, const std::string& content) const {
    std::ofstream(folder_ / name) << content;
  }
  std::string page() const { return read_file(write_report(folder_)); }
  Json data() const { return report_data(folder_); }

  /// The curve of a name in any chart; null when there is none.
  static Json curve(const Json& data, const std::string& name) {
    for (const Json& chart : data["charts"]) {
      for (const Json& series : chart["series"]) {
        if (series["name"] == name) return series["points"];
      }
    }
    return nullptr;
  }

  const fs::path folder_;
};

constexpr const char* kFourSteps =
    R"({"step":1,"loss":4.5,"lr":0.001,"grad_norm":2.0,"tokens":100}
{"step":2,"loss":null,"lr":0.002,"grad_norm":null,"tokens":200,"skipped":true}
{"step":3,"loss":3.5,"lr":0.002,"grad_norm":1.5,"tokens":300,"validation_loss":3.6,"validation_nats_per_byte":1.25}
{"step":4,"loss":3.25,"lr":0.001,"grad_norm":1.0,"tokens":400,"validation_loss":3.7,"validation_nats_per_byte":1.5}
)";

TEST_F(Report, ShowsEveryTaskOfARecommenderByName) {
  write("config.toml",
        "[run]\nname = \"small\"\n[train]\nsteps = 2\n[recommender]\nmodel = \"mmoe\"\n"
        "[rows]\nfiles = \"rows.tsv\"\nlabel = [\"delay > 15\", \"cancelled\"]\n"
        "sparse = [{ columns = [\"user\"], num_rows = 9 }]\n");
  write(
      "metrics.jsonl",
      R"({"step":1,"loss":1.5,"lr":0.001,"grad_norm":2.0,"samples":100}
{"step":2,"loss":1.25,"lr":0.001,"grad_norm":2.0,"samples":200,"validation_loss":1.25,"validation_samples":50,)"
      R"("tasks":{"delay > 15":{"samples":40,"log_loss":0.5,"auc":0.625,"normalized_entropy":0.9,"calibration":1.1},)"
      R"("cancelled":{"samples":50,"log_loss":0.75,"auc":0.75,"normalized_entropy":0.8,"calibration":1.2}}}
)");
  const Json d = data();
  EXPECT_EQ(d["verdict"],
            "Trained all 2 steps: AUC 0.6250 of delay > 15, AUC 0.7500 of cancelled, 1.25 nats per "
            "sample on held-out rows.");
  EXPECT_EQ(d["tiles"][1]["label"], "AUC, delay > 15");
  EXPECT_EQ(d["tiles"][2]["value"], "0.7500");
  EXPECT_EQ(curve(d, "delay > 15, all rows")[0][3], 0.625);
  EXPECT_EQ(curve(d, "cancelled, calibration")[0][3], 1.2);
  EXPECT_EQ(curve(d, "cancelled, log loss (nats)")[0][3], 0.75);
  EXPECT_TRUE(curve(d, "cancelled, within groups").is_null());
}

TEST_F(Report, NeedsOnlyConfigAndMetrics) {
  write("metrics.jsonl", kFourSteps);
  const Json d = data();
  EXPECT_EQ(d["name"], "small");
  EXPECT_EQ(curve(d, "training").dump(),
            "[[1,100.0,null,4.5],[3,300.0,null,3.5],[4,400.0,null,3.25]]");
  EXPECT_EQ(curve(d, "validation").size(), 2);
  EXPECT_EQ(d["skipped_steps"].dump(), "[2]");
  EXPECT_TRUE(curve(d, "resident").is_null());
  EXPECT_THAT(page(), HasSubstr("small"));
}

TEST_F(Report, VerdictNamesLossOverfittingAndSkippedSteps) {
  write("metrics.jsonl", kFourSteps);
  const std::string verdict = data()["verdict"];
  EXPECT_THAT(verdict,
              HasSubstr("Trained all 4 steps: 3.7 nats per token on held-out text, 1.5 per byte"));
  EXPECT_THAT(verdict, HasSubstr("best at step 3 (3.6)"));
  EXPECT_THAT(verdict, HasSubstr("1 step was skipped"));
}

TEST_F(Report, OverfittingIsJudgedOnTheSameTokens) {
  write("metrics.jsonl", R"({"step":2,"loss":1,"validation_loss":3.0,"validation_tokens":100}
{"step":3,"loss":1,"validation_loss":2.9,"validation_tokens":100}
{"step":4,"loss":1,"validation_loss":3.5,"validation_tokens":900}
)");
  EXPECT_EQ(data()["verdict"], "Trained all 4 steps: 3.5 nats per token on held-out text.");
}

TEST_F(Report, OfARunThatHasNotBegunOrIsWritingSaysSo) {
  write("metrics.jsonl", "");
  EXPECT_EQ(data()["verdict"], "No step has been taken yet.");
  write("metrics.jsonl", R"({"step":1,"loss":4.5,"tokens":100})"
                         "\n"
                         R"({"step":2,"los)");
  EXPECT_THAT(data()["verdict"].get<std::string>(), HasSubstr("1 of 4 steps so far"));
  EXPECT_FALSE(data()["finished"].get<bool>());
}

TEST_F(Report, AddsTheHoursOfProcessesThatTookTheRunUpAgain) {
  write("metrics.jsonl", kFourSteps);
  write("timings.jsonl", R"({"step":1,"time_s":1800,"tokens_per_s":10}
{"step":2,"time_s":3600,"tokens_per_s":10}
{"step":3,"time_s":900,"tokens_per_s":12}
{"step":4,"time_s":1800,"tokens_per_s":11}
)");
  EXPECT_EQ(curve(data(), "tokens per second").dump(),
            "[[1,100.0,0.5,10.0],[2,200.0,1.0,10.0],[3,300.0,1.25,12.0],[4,400.0,1.5,11.0]]");
}

TEST_F(Report, EscapesEveryTextOfTheRun) {
  const std::string attack = "</script><script>bad()</script><!--<u>&'\"";
  write("config.toml", "[run]\nname = \"x\"\n# " + attack + "\n");
  write("metrics.jsonl", kFourSteps);
  write("samples.json", Json::array({{{"prompt", attack}, {"continuation", attack}}}).dump());
  write("machine.json",
        Json({{"machine", {{"cpu", attack}}},
              {"command_line", {"dovetail", "train", attack}},
              {"device", attack},
              {"data", {{"path", attack}, {"sha256", {attack}}, {"tokenizer", attack}}},
              {"precision", {{"compute", attack}, {"reason", attack}}}})
            .dump());
  const std::string html = page();
  EXPECT_THAT(html, Not(HasSubstr("<script>bad()")));
  EXPECT_THAT(html, Not(HasSubstr("<u>")));
  EXPECT_THAT(html, HasSubstr("&lt;/script&gt;&lt;script&gt;bad()"));
}

TEST_F(Report, DataInTheScriptHasNoLessThanSign) {
  Json d = {{"name", "n"},
            {"model", "m"},
            {"where", ""},
            {"finished", true},
            {"unit", "token"},
            {"verdict", "v"},
            {"tiles", Json::array()},
            {"charts", {{{"title", "</script><!--"}, {"series", Json::array()}}}},
            {"skipped_steps", Json::array()},
            {"samples", Json::array()},
            {"quantization", nullptr},
            {"experts", nullptr},
            {"memory", nullptr},
            {"decisions", Json::array()},
            {"machine", Json::array()},
            {"commands", Json::array()},
            {"config", ""}};
  const std::string html = report_page(d);
  const size_t begin = html.find("id=\"data\">") + 10, end = html.find("</script>", begin);
  const std::string embedded = html.substr(begin, end - begin);
  EXPECT_THAT(embedded, Not(HasSubstr("<")));
  EXPECT_EQ(Json::parse(embedded)["charts"], d["charts"]);
}

TEST_F(Report, ShowsTheSharesOfRanks) {
  write("config.toml",
        "[run]\nname = \"small\"\n[train]\nsteps = 4\nbatch = 8\nmicro_batch = 1\n[balance]\nmode "
        "= \"auto\"\n");
  write("metrics.jsonl", kFourSteps);
  EXPECT_TRUE(curve(data(), "rank 0").is_null());
  write("balance.jsonl", R"({"step":1,"shares":[4,4]}
{"step":3,"shares":[6,2],"rank_ms":[1,3],"compute_ms":6,"before_ms":12}
)");
  const Json d = data();
  EXPECT_EQ(curve(d, "rank 0").dump(),
            "[[1,100.0,null,4.0],[2,200.0,null,4.0],[3,300.0,null,6.0],[4,400.0,null,6.0]]");
  EXPECT_EQ(curve(d, "rank 1").dump(),
            "[[1,100.0,null,4.0],[2,200.0,null,4.0],[3,300.0,null,2.0],[4,400.0,null,2.0]]");
  const std::string html = page();
  EXPECT_THAT(html, HasSubstr("[6,2]"));
  EXPECT_THAT(html, HasSubstr("by the time that theirs took; moved 1 times"));
}

TEST_F(Report, ShowsTheLoadOfExpertsOverTime) {
  write("metrics.jsonl", kFourSteps);
  EXPECT_THAT(page(), Not(HasSubstr("<h2>Experts</h2>")));
  write("experts.jsonl",
        R"({"step":2,"layers":[{"layer":"blocks.0.moe","load":[1,1],"entropy":1,"dropped":0}]}
{"step":4,"layers":[{"layer":"blocks.0.moe","load":[2,0],"entropy":0,"dropped":0.25,"r":1,"overlap":2,"all_to_all":"linear","shadowed":[0]}],"all_to_all":{"calls":3,"bytes_sent":1000,"waited_s":0.5}}
)");
  const Json d = data();
  EXPECT_EQ(curve(d, "largest of any layer").dump(), "[[2,200.0,null,1.0],[4,400.0,null,2.0]]");
  EXPECT_EQ(curve(d, "least entropy, over log E").dump(),
            "[[2,200.0,null,1.0],[4,400.0,null,0.0]]");
  EXPECT_EQ(curve(d, "dropped").dump(), "[[2,200.0,null,0.0],[4,400.0,null,25.0]]");
  EXPECT_EQ(curve(d, "sent").dump(), "[[4,400.0,null,1000.0]]");
  EXPECT_EQ(curve(d, "waiting").dump(), "[[4,400.0,null,500.0]]");
  const std::string map = d["experts"]["layers"][0]["map"];
  // Two records for two experts. The first is even. In the second one expert is three bands above
  // even, the other has no choices.
  EXPECT_THAT(map, HasSubstr("viewBox=\"0 0 2 2\""));
  EXPECT_THAT(map, HasSubstr("<path fill=\"#e9e9e4\" d=\"M0 0h1v1h-1zM0 1h1v1h-1z\"/>"));
  EXPECT_THAT(map, HasSubstr("<path fill=\"#e58a4e\" d=\"M1 0h1v1h-1z\"/>"));
  EXPECT_THAT(map, HasSubstr("<path fill=\"#20262f\" d=\"M1 1h1v1h-1z\"/>"));
  EXPECT_THAT(page(), HasSubstr("r 1, overlap 2, linear, shadowed [0]"));
}

/// Returns memory_plan.json of a step of 10 ms within 3 MiB. `name` replaces each name in the run.
Json memory_record(const std::string& name) {
  constexpr int64_t kMiB = 1 << 20;
  const Json row = {{"decision", "recomputed"},
                    {"storages", 2},
                    {"bytes", 2 * kMiB},
                    {"copied_s", 0},
                    {"waited_s", 0},
                    {"again_s", 0.002},
                    {"packed_s", 0},
                    {"round_trip_s", 0.008},
                    {"make_again_s", 0.002},
                    {"made_once", 0},
                    {"layer", name},
                    {"why", name}};
  const Json streams = {{"compute", {{0, 0.008, name}}},
                        {"again", {{0.008, 0.010, name}}},
                        {"codec", Json::array()},
                        {"out", {{0.001, 0.002, name}}},
                        {"in", Json::array()}};
  return {{"budget_bytes", 3 * kMiB},
          {"floor_bytes", 2 * kMiB},
          {"decisions", {row}},
          {"layers", {row}},
          {"packed",
           {{{"codec", "codes"},
             {"error", "without loss"},
             {"times", 3},
             {"bytes", 4 * kMiB},
             {"packed_bytes", kMiB},
             {"encode_bytes_per_s", 1e9},
             {"decode_bytes_per_s", 1e9}}}},
          {"algorithms",
           {{"changed", 0}, {"to_choose", 0}, {"cost_s", 0}, {"workspace_saved_bytes", 0}}},
          {"step",
           {{"again_s", 0.002},
            {"packed_s", 0},
            {"waited_s", 0},
            {"behind_s", 0},
            {"keep_all_s", 0.008},
            {"predicted_s", 0.010},
            {"measured_s", 0.011}}},
          {"peak",
           {{"keep_all_bytes", 5 * kMiB},
            {"predicted_bytes", 3 * kMiB},
            {"places_bytes", 3 * kMiB},
            {"used_bytes", 3 * kMiB},
            {"measured_bytes", 3 * kMiB}}},
          {"memory",
           {{"purposes", {"weights", "workspace"}},
            {"kept", {{0, kMiB, 4 * kMiB}}},
            {"simulated", {{0, kMiB, 0}, {0.005, kMiB, 2 * kMiB}}},
            {"measured", {{0, kMiB, 0}, {0.006, kMiB, 2 * kMiB}}}}},
          {"streams", {{"simulated", streams}, {"measured", streams}}},
          {"curve",
           {{{"budget_bytes", 3 * kMiB}, {"expected_s", 0.010}},
            {{"budget_bytes", 5 * kMiB}, {"expected_s", 0.008}}}}};
}

TEST_F(Report, ShowsTheMemoryPlan) {
  write("metrics.jsonl", kFourSteps);
  write("memory_plan.json", memory_record("blocks.0").dump());
  EXPECT_THAT(
      page(),
      Not(HasSubstr("<h2>Memory plan</h2>")));  // from an earlier run; this one has no budget
  write("config.toml", "[run]\nname = \"small\"\n[memory]\nbudget = \"3MiB\"\n");
  const Json panel = data()["memory"];
  EXPECT_EQ(panel["words"],
            "A step within 3.0 MiB of the 5.0 MiB that it takes with everything kept. Its plan was "
            "expected to take 10 ms and took 11 ms; with everything kept 8 ms.");
  EXPECT_EQ(panel["compared"][0].dump(), R"(["step","8 ms","10 ms","11 ms","+10.0 %"])");
  EXPECT_EQ(
      panel["decisions"].dump(),
      R"([["recomputed","2","2.0 MiB","2 ms"],["codes","3","4.0 MiB as 1.0 MiB","without loss"]])");
  const std::string chart = panel["chart"], streams = panel["streams"], curve = panel["curve"];
  // 11 ms over 1030 from 66, 5.2 MiB over 274 up from 296.
  EXPECT_THAT(chart, HasSubstr("<path fill=\"var(--m1)\" d=\"M66.0 "
                               "243.3H534.2V137.9H1002.4V137.9V243.3V243.3H534.2V243.3H66.0Z"));
  EXPECT_THAT(chart, HasSubstr("workspace: at most 2.0 MiB"));
  EXPECT_THAT(streams, HasSubstr("again: blocks.0: 8.00 to 10.00 ms"));
  EXPECT_THAT(streams, HasSubstr("to the slow tier: blocks.0: 1.00 to 2.00 ms"));
  EXPECT_THAT(curve, HasSubstr("r=\"6\" fill=\"var(--bad)\"><title>3.0 MiB: 10.00 ms"));
  EXPECT_THAT(page(), HasSubstr("<h2>Memory plan</h2>"));
  const std::string attack = "</script><script>bad()</script>";
  write("memory_plan.json", memory_record(attack).dump());
  EXPECT_THAT(page(), Not(HasSubstr("<script>bad()")));
  write("memory_plan.json", R"({"budget_bytes":"much"})");
  EXPECT_THROW(data(), UserError);
}

TEST_F(Report, LoadsNothingFromOutside) {
  write("metrics.jsonl", kFourSteps);
  const std::string html = page();
  for (const char* reference : {"http://", "https://", "src=", "@import", "url("})
    EXPECT_THAT(html, Not(HasSubstr(reference)));
}

TEST_F(Report, RefusesWhatIsNoRunAndDamagedLinesByName) {
  EXPECT_THROW(write_report(folder_ / "absent"), UserError);
  EXPECT_THROW(write_report(folder_), UserError);  // no metrics.jsonl
  write("metrics.jsonl", "{\"step\":1,\"loss\":1}\nnonsense\n");
  try {
    write_report(folder_);
    FAIL() << "a damaged line was taken";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("metrics.jsonl:2"));
  }
  write("metrics.jsonl", "{\"loss\":1}\n");
  EXPECT_THROW(write_report(folder_), UserError);
  EXPECT_FALSE(fs::exists(folder_ / "report.html"));
}

TEST(ThinOut, KeepsShortCurvesWhole) {
  EXPECT_TRUE(thin_out({}, 8).empty());
  EXPECT_THAT(thin_out({3, 1, 2}, 4), ::testing::ElementsAre(0, 1, 2));
  EXPECT_EQ(thin_out(std::vector<double>(8), 8).size(), 8);
}

TEST(ThinOut, KeepsEndsSpikesAndOrderWithinTheLimit) {
  for (const size_t size : {9, 31, 1000, 4001, 12345}) {
    for (const size_t limit : {4, 5, 8, 100, 4000}) {
      if (size <= limit) continue;
      std::vector<double> y(size);
      for (size_t i = 0; i < size; ++i) y[i] = std::sin(0.01 * static_cast<double>(i));
      y[size / 3] = 50;
      y[size / 2] = -50;
      const std::vector<size_t> kept = thin_out(y, limit);
      EXPECT_LE(kept.size(), limit);
      EXPECT_TRUE(std::is_sorted(kept.begin(), kept.end()));
      EXPECT_EQ(std::adjacent_find(kept.begin(), kept.end()), kept.end());
      EXPECT_EQ(kept.front(), 0);
      EXPECT_EQ(kept.back(), size - 1);
      EXPECT_THAT(kept, ::testing::Contains(size / 3)) << size << " to " << limit;
      EXPECT_THAT(kept, ::testing::Contains(size / 2)) << size << " to " << limit;
    }
  }
}

}  // namespace
}  // namespace dovetail::train::report_test
