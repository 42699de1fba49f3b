// Two nodes of unequal speed share k-means, each with its own runtime. Measures the cost of the
// merge between them.
//
//   ./dev bench nodes [--rows N] [--rounds N] [--factor N] [--out FILE]
//
// Data: 819,200 rows of 100 float32. Executor A is one thread; executor B is another thread that
// computes every shard `factor` times (3). Sides: A alone, B alone, both in one runtime, and both
// as nodes. Nodes send each other their sums over a socket of this machine (Gloo over loopback).
// Sides take turns within a round, and the best round of each counts. Claims: with 64 centres,
// nodes reach at least 0.93 of the sum of both alone. Sums are bitwise equal in all cases. Also
// measured: 5 centres, where an iteration is short, and 1024, where sums are large.
//
// layer: fit
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>

#include "bench/drivers.h"
#include "bench/program.h"
#include "bench/unequal_executors.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/fit/kmeans/kmeans.h"
#include "dovetail/jobs/nodes.h"

namespace dovetail::fit {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kTogether = 0.93;
constexpr int kLearning = 6;  ///< rounds before those that count: shares settle

struct Options {
  int64_t rows = 819200, factor = 3;
  int rounds = 12;
  std::vector<int64_t> clusters = {64, 5, 1024};
  std::string out;
};

struct Measured {
  Json json;
  double nodes_of_sum = 0;  ///< rows a second of both nodes over the sum of both alone
  bool same = true;
};

Measured measure(std::array<Drivers, 4>& sides, const jobs::Nodes& node, const at::Tensor& x,
                 int64_t k, const Options& options) {
  const at::Tensor centres = x.slice(0, 0, k).to(at::kDouble);
  std::array<double, 4> best;
  best.fill(std::numeric_limits<double>::infinity());
  Measured measured;
  const int64_t before = node.report()[1].rows;
  int64_t last = 0;
  for (int round = -kLearning; round < options.rounds; ++round) {
    last = node.report()[1].rows;
    for (size_t i = 0; i < sides.size(); ++i) {
      const double seconds = sides[i].iterate(centres);
      if (round >= 0) best[i] = std::min(best[i], seconds);
    }
    for (const Drivers& other : sides)
      measured.same = measured.same && at::equal(other.sums.tensors[0], sides[0].sums.tensors[0]);
  }
  const double alone = 1 / best[0] + 1 / best[1];
  measured.nodes_of_sum = 1 / best[3] / alone;
  fmt::print("\nk = {}, best of {} rounds\n", k, options.rounds);
  for (size_t i = 0; i < sides.size(); ++i)
    fmt::print("  {:34}{:9.2f} ms an iteration, {:.3f} of the sum of both alone\n", sides[i].name,
               1e3 * best[i], 1 / best[i] / alone);
  fmt::print(
      "  node B has {:.1f} % of the rows in the last iteration, {:.1f} % in the mean\n",
      100.0 * static_cast<double>(node.report()[1].rows - last) / static_cast<double>(options.rows),
      100.0 * static_cast<double>(node.report()[1].rows - before) /
          static_cast<double>(options.rows * (options.rounds + kLearning)));
  measured.json = {{"clusters", k},
                   {"ms", {1e3 * best[0], 1e3 * best[1], 1e3 * best[2], 1e3 * best[3]}},
                   {"one_runtime", 1 / best[2] / alone},
                   {"nodes", measured.nodes_of_sum}};
  return measured;
}

int bench(const Options& options) {
  user_check(options.rows > 1024 && options.factor >= 1 && options.rounds > 0,
             "at least 1025 rows, a factor of 1 and a round");
  fmt::print("{}, load {:.2f}\n", machine().cpu_name, machine().load_average);
  const at::Tensor x = rows_in_clouds(options.rows, 100, 64, 1);
  const std::atomic<int64_t> factor = options.factor;
  const auto groups = comm::local_groups(2);
  const auto node_a = std::make_shared<jobs::Nodes>(groups[0], unequal_executors({false}, factor)),
             node_b =
                 std::make_shared<jobs::Nodes>(groups[1], unequal_executors({true}, factor, 1));
  std::array<Drivers, 4> sides = {
      Drivers("A alone: one thread", x, {unequal_executors({false}, factor)}),
      Drivers("B alone: one thread, throttled", x, {unequal_executors({true}, factor, 1)}),
      Drivers("A and B in one runtime", x, {unequal_executors({false, true}, factor)}),
      Drivers("A and B as nodes", x, {node_a, node_b})};
  Json result = {{"benchmark", "nodes"},
                 {"machine", machine_json()},
                 {"rows", options.rows},
                 {"factor", options.factor}};
  bool same = true;
  std::optional<bool> fast;  // where 64 centres are measured
  for (const int64_t k : options.clusters) {
    const Measured measured = measure(sides, *node_a, x, k, options);
    result["clusters"].push_back(measured.json);
    same = same && measured.same;
    if (k == 64) fast = measured.nodes_of_sum >= kTogether;
  }
  fmt::print("\nclaim: with 64 centres nodes do at least {} of the sum of both alone: {}\n",
             kTogether,
             !fast   ? "not measured"
             : *fast ? "holds"
                     : "DOES NOT HOLD");
  fmt::print("claim: sums of the same bits in all cases: {}\nload {:.2f}\n",
             same ? "holds" : "DOES NOT HOLD", machine().load_average);
  result["claims"] = {{"together", fast ? Json(*fast) : Json()}, {"same_bits", same}};
  if (!options.out.empty()) write_file_atomically(options.out, result.dump(1) + "\n");
  return fast.value_or(true) && same ? 0 : 1;
}

}  // namespace
}  // namespace dovetail::fit

int main(int argc, char** argv) {
  CLI::App app("Two nodes of unequal speed share k-means");
  dovetail::fit::Options options;
  app.add_option("--rows", options.rows, "Rows of 100 columns");
  app.add_option("--rounds", options.rounds, "Rounds; the best counts");
  app.add_option("--clusters", options.clusters, "Numbers of centres; the claim is about 64")
      ->delimiter(',');
  app.add_option("--factor", options.factor, "How often B computes every shard");
  app.add_option("--out", options.out, "Also write the result as JSON");
  return dovetail::run_program(app, argc, argv, [&] {
    dovetail::keep_freed_memory();
    return dovetail::fit::bench(options);
  });
}
