// Two nodes of unequal speed share k-means, each a runtime of its own: what does the merge between them cost?
//
//   ./dev bench nodes [--rows N] [--rounds N] [--factor N] [--out FILE]
//
// 819,200 rows of 100 float32. Executor A is one thread; executor B is another that computes every shard `factor` times
// (3). Sides take turns within a round, and the best round of each counts: A alone, B alone, both in one runtime, and
// both as nodes that send each other their sums over a socket of this machine (Gloo over loopback). Claims: with 64
// centres, nodes do at least 0.93 of the sum of what each does alone, and the sums are the same bits in all cases.
// Beside them 5 centres, where an iteration is short, and 1024, where sums are large.
//
// layer: hybrid
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <thread>

#include "bench/program.h"
#include "bench/unequal_executors.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/hybrid/kmeans.h"
#include "dovetail/hybrid/nodes.h"

namespace dovetail::hybrid {
namespace {

using Json = nlohmann::ordered_json;
constexpr double kTogether = 0.93;

struct Options {
  int64_t rows = 819200, factor = 3;
  int rounds = 9;
  std::string out;
};

/// One driver for each of some workers, all on the same rows.
struct Side {
  Side(std::string side, const at::Tensor& x, std::vector<std::shared_ptr<Workers>> workers)
      : name(std::move(side)), data(workers.size()) {
    on_each([&](size_t node) { data[node] = std::make_unique<KMeansData>(x, workers[node]); });
  }

  void on_each(const std::function<void(size_t)>& work) {
    std::vector<std::jthread> threads;
    for (size_t node = 0; node < data.size(); ++node) threads.emplace_back(work, node);
  }

  /// Seconds of an iteration; `sums` become those of its first node.
  double iterate(const at::Tensor& centres, Partial& sums) {
    const double begin = now_seconds();
    on_each([&](size_t node) {
      Partial partial = data[node]->assign(centres);
      if (node == 0) sums = std::move(partial);
    });
    return now_seconds() - begin;
  }

  std::string name;
  std::vector<std::unique_ptr<KMeansData>> data;
};

struct Measured {
  Json json;
  double nodes_of_sum = 0;  ///< rows a second of both nodes over the sum of both alone
  bool same = true;
};

Measured measure(std::array<Side, 4>& sides, const at::Tensor& x, int64_t k, const Options& options) {
  const at::Tensor centres = x.slice(0, 0, k).to(at::kDouble);
  std::array<double, 4> best;
  best.fill(std::numeric_limits<double>::infinity());
  Measured measured;
  for (int round = -3; round < options.rounds; ++round) {
    std::array<Partial, 4> sums;
    for (size_t i = 0; i < sides.size(); ++i) {
      const double seconds = sides[i].iterate(centres, sums[i]);
      if (round >= 0) best[i] = std::min(best[i], seconds);
    }
    for (const Partial& other : sums) measured.same &= at::equal(other.tensors[0], sums[0].tensors[0]);
  }
  const double alone = 1 / best[0] + 1 / best[1];
  measured.nodes_of_sum = 1 / best[3] / alone;
  fmt::print("\nk = {}, best of {} rounds\n", k, options.rounds);
  for (size_t i = 0; i < sides.size(); ++i)
    fmt::print("  {:34}{:9.2f} ms an iteration, {:.3f} of the sum of both alone\n", sides[i].name, 1e3 * best[i],
               1 / best[i] / alone);
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
  const auto groups = local_groups(2);
  std::array<Side, 4> sides = {Side("A alone: one thread", x, {unequal_executors({false}, factor)}),
                               Side("B alone: one thread, throttled", x, {unequal_executors({true}, factor, 1)}),
                               Side("A and B in one runtime", x, {unequal_executors({false, true}, factor)}),
                               Side("A and B as nodes", x,
                                    {std::make_shared<Nodes>(groups[0], unequal_executors({false}, factor)),
                                     std::make_shared<Nodes>(groups[1], unequal_executors({true}, factor, 1))})};
  Json result = {
      {"benchmark", "nodes"}, {"machine", machine_json()}, {"rows", options.rows}, {"factor", options.factor}};
  bool same = true, fast = true;
  for (const int64_t k : {64, 5, 1024}) {
    const Measured measured = measure(sides, x, k, options);
    result["clusters"].push_back(measured.json);
    same = same && measured.same;
    if (k == 64) fast = measured.nodes_of_sum >= kTogether;
  }
  fmt::print("\nclaim: with 64 centres nodes do at least {} of the sum of both alone: {}\n", kTogether,
             fast ? "holds" : "DOES NOT HOLD");
  fmt::print("claim: sums of the same bits in all cases: {}\nload {:.2f}\n", same ? "holds" : "DOES NOT HOLD",
             machine().load_average);
  result["claims"] = {{"together", fast}, {"same_bits", same}};
  if (!options.out.empty()) write_file_atomically(options.out, result.dump(1) + "\n");
  return fast && same ? 0 : 1;
}

}  // namespace
}  // namespace dovetail::hybrid

int main(int argc, char** argv) {
  CLI::App app("Two nodes of unequal speed share k-means");
  dovetail::hybrid::Options options;
  app.add_option("--rows", options.rows, "Rows of 100 columns");
  app.add_option("--rounds", options.rounds, "Rounds, of which the best counts");
  app.add_option("--factor", options.factor, "How often B computes every shard");
  app.add_option("--out", options.out, "Also write the result as JSON");
  return dovetail::run_program(app, argc, argv, [&] {
    dovetail::keep_freed_memory();
    return dovetail::hybrid::bench(options);
  });
}
