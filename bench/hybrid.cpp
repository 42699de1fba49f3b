// Two executors of unequal speed share k-means. Does their joint rate come near the sum of their
// separate rates?
//
//   ./dev bench hybrid [--rows N] [--rounds N] [--runs N] [--factor N] [--out FILE]
//
// Data: 819,200 rows of 100 float32 in 64 overlapping normal clouds. Executor A is one thread.
// Executor B is another thread that computes every shard `factor` times (3), and so has a third of
// A's speed. Sides (A alone, B alone, both) take turns within a round. Each side's threads are
// bound to processors of their own. The best round of each side counts. Measured:
//
//   together   rows per second of both, divided by the sum of the two alone, with 64 and with 5
//              centres. With 5 centres an iteration mostly reads rows. There the goal is scaled: by
//              the rate of two reading threads over the sum of one and one.
//   change     B's factor is doubled and halved. Counts the iterations until both reach 0.9 of
//              their rate with settled shares.
//   runs       fits of five iterations: mean, variance, and standard deviation over the mean of
//              each side
//   quality    the same centres give bitwise equal results; silhouettes of ten fits of 8192 x 100,
//              whose eight shards both executors compute
//
// The paper's table stands beside the runs, from other machines and data. It has two programs of
// the Rodinia benchmarks, on 16 cores and on a GPU. Its own ran on 15 cores and a GPU. A GPU as an
// executor is not measured here. Exit code 1 when a claim does not hold.
//
// layer: fit
#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/program.h"
#include "bench/unequal_executors.h"
#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/fit/kmeans/cluster_metrics.h"
#include "dovetail/fit/kmeans/init.h"
#include "dovetail/jobs/runtime.h"

namespace dovetail::fit {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kColumns = 100, kClouds = 64;
constexpr double kTogether = 0.93, kBack = 0.9;
constexpr int kBackIterations = 3;

struct Options {
  int64_t rows = 819200, factor = 3;
  int rounds = 15, runs = 10;
  std::string out;
};

at::Tensor make_rows(int64_t rows, uint64_t seed) {
  return rows_in_clouds(rows, kColumns, kClouds, seed);
}

std::atomic<int64_t> g_factor = 1;  ///< how often the slow executor computes a shard

/// Executors of one thread each: A, and B where `slow`.
struct Side {
  Side(std::string side, const at::Tensor& x, const std::vector<bool>& slow)
      : name(std::move(side)), runtime(unequal_executors(slow, g_factor)), data(x, runtime) {}

  double iterate(const at::Tensor& centres) {
    const double begin = now_seconds();
    data.assign(centres);
    return now_seconds() - begin;
  }

  std::string name;
  std::shared_ptr<jobs::Runtime> runtime;
  KMeansData data;
};

struct Sides {
  explicit Sides(const at::Tensor& x)
      : a("A alone: one thread", x, {false}),
        b("B alone: one thread, throttled", x, {true}),
        both("A and B", x, {false, true}) {}
  std::array<Side*, 3> list() { return {&a, &b, &both}; }

  Side a, b, both;
};

void claim(Json& claims, const std::string& text, bool holds) {
  fmt::print("claim: {}: {}\n", text, holds ? "holds" : "DOES NOT HOLD");
  claims.push_back({{"claim", text}, {"holds", holds}});
}

/// Seconds of an iteration of each side: the best of some rounds, after one that learns speeds.
std::array<double, 3> best_times(Sides& sides, const at::Tensor& centres, int rounds) {
  std::array<double, 3> best;
  best.fill(std::numeric_limits<double>::infinity());
  for (int round = -2; round < rounds; ++round)
    for (size_t i = 0; i < 3; ++i) {
      const double seconds = sides.list()[i]->iterate(centres);
      if (round >= 0) best[i] = std::min(best[i], seconds);
    }
  return best;
}

/// Reads all of its rows and does nothing else.
jobs::Partial read_rows(const jobs::Parameters&, const jobs::Shards& shard) {
  using Vector [[gnu::vector_size(64)]] = float;
  const at::Tensor x = jobs::rows_of(shard, 0);
  const auto* from = x.const_data_ptr<float>();
  const int64_t count = x.numel() / 64 * 64;
  std::array<Vector, 4> sums{};
  for (int64_t i = 0; i < count; i += 64)
    for (size_t v = 0; v < sums.size(); ++v) {
      Vector next;
      std::memcpy(&next, from + i + 16 * v, sizeof(next));
      sums[v] += next;
    }
  const Vector sum = sums[0] + sums[1] + sums[2] + sums[3];
  return {{at::scalar_tensor(sum[0], at::kDouble)}, static_cast<double>(shard.size)};
}
const jobs::TaskRegistration kRead("bench.read", at::kCPU, read_rows);

struct Bandwidth {
  double one = 0, two = 0;  ///< bytes a second that so many threads read
  /// Returns the rate of two threads that only read, divided by the sum of one and one.
  double allowed() const { return std::min(1.0, two / (2 * one)); }
};

Bandwidth read_bandwidth(const at::Tensor& x, int rounds) {
  const jobs::ResidentData data({x});
  std::array<double, 2> best{};
  jobs::Runtime one(std::vector<jobs::ExecutorSpec>(1)), two(std::vector<jobs::ExecutorSpec>(2));
  for (int round = -1; round < rounds; ++round)
    for (size_t i = 0; i < 2; ++i) {
      const double begin = now_seconds();
      (i == 0 ? one : two).run("bench.read", {}, data.shards(kKMeansGrain));
      if (round >= 0)
        best[i] = std::max(best[i], static_cast<double>(x.nbytes()) / (now_seconds() - begin));
    }
  return {best[0], best[1]};
}

/// `allowed`: the part of the sum of both that the machine leaves to two threads at once.
Json together(Sides& sides, const at::Tensor& x, int64_t k, double allowed, const Options& options,
              Json& claims) {
  g_factor = options.factor;
  const at::Tensor centres = x.slice(0, 0, k).to(at::kDouble);
  const auto best = best_times(sides, centres, options.rounds);
  const double ratio = (1 / best[2]) / (1 / best[0] + 1 / best[1]);
  const auto rows = static_cast<double>(options.rows);
  fmt::print("\nk = {}, B computes every shard {} times; best of {} rounds\n", k, options.factor,
             options.rounds);
  for (size_t i = 0; i < 3; ++i)
    fmt::print("  {:32}{:9.2f} ms an iteration {:8.2f} M rows/s\n", sides.list()[i]->name,
               1e3 * best[i], rows / best[i] / 1e6);
  const double goal = kTogether * allowed;
  claim(claims,
        fmt::format("k = {}: together {:.3f} of the sum of both alone, at least {:.3f}", k, ratio,
                    goal),
        ratio >= goal);
  return {{"clusters", k},
          {"factor", options.factor},
          {"ms", {1e3 * best[0], 1e3 * best[1], 1e3 * best[2]}},
          {"ratio", ratio},
          {"goal", goal}};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

/// Measures how soon both are at full speed after B's speed changes. Each round changes it and
/// changes it back. It first watches the iterations after a change, then those with settled shares
/// in the same round. Returns medians over rounds.
Json change(Sides& sides, const at::Tensor& x, const Options& options, Json& claims) {
  constexpr size_t kWatched = 6, kSettled = 4;
  const at::Tensor centres = x.slice(0, 0, kClouds).to(at::kDouble);
  const std::array<int64_t, 2> factors = {options.factor, 2 * options.factor};
  std::array<std::array<std::vector<double>, kWatched>, 2> after;
  std::array<std::vector<double>, 2> settled;
  g_factor = factors[0];
  for (size_t i = 0; i < kWatched; ++i) sides.both.iterate(centres);
  for (int round = 0; round < options.rounds; ++round)
    for (const size_t to : {1U, 0U}) {
      g_factor = factors[to];
      for (std::vector<double>& seconds : after[to]) seconds.push_back(sides.both.iterate(centres));
      for (size_t i = 0; i < kSettled; ++i) settled[to].push_back(sides.both.iterate(centres));
    }
  fmt::print(
      "\nB's speed changes, k = {}: throughput of the next iterations over that once settled; "
      "medians of {}\n",
      kClouds, options.rounds);
  Json all = Json::array();
  for (const size_t to : {1U, 0U}) {
    std::vector<double> ratios;
    for (const std::vector<double>& seconds : after[to])
      ratios.push_back(median(settled[to]) / median(seconds));
    fmt::print("  from {} times to {}: {:.3f}   settled {:.2f} ms\n", factors[1 - to], factors[to],
               fmt::join(ratios, " "), 1e3 * median(settled[to]));
    all.push_back({{"from", factors[1 - to]},
                   {"to", factors[to]},
                   {"ratios", ratios},
                   {"settled_ms", 1e3 * median(settled[to])}});
    claim(
        claims,
        fmt::format("back at {} of the new optimum within {} iterations of a change from {} to {}",
                    kBack, kBackIterations, factors[1 - to], factors[to]),
        std::all_of(ratios.begin() + kBackIterations - 1, ratios.end(),
                    [](double r) { return r >= kBack; }));
  }
  return all;
}

struct Spread {
  double mean_s = 0, variance = 0;
  double relative() const { return std::sqrt(variance) / mean_s; }
};

Spread spread_of(const std::vector<double>& seconds) {
  Spread spread;
  for (const double s : seconds) spread.mean_s += s / static_cast<double>(seconds.size());
  for (const double s : seconds)
    spread.variance +=
        (s - spread.mean_s) * (s - spread.mean_s) / static_cast<double>(seconds.size() - 1);
  return spread;
}

Json runs(Sides& sides, const at::Tensor& x, const Options& options, Json& claims) {
  g_factor = options.factor;
  const at::Tensor centres = x.slice(0, 0, kClouds).to(at::kDouble);
  std::array<std::vector<double>, 3> seconds;
  for (int run = 0; run < options.runs; ++run)
    for (size_t i = 0; i < 3; ++i) {
      const double begin = now_seconds();
      lloyd(sides.list()[i]->data, centres, {.iterations = 5, .tolerance = 0});
      seconds[i].push_back(now_seconds() - begin);
    }
  struct Paper {
    const char* side;
    double seconds, variance;
  };
  constexpr std::array<Paper, 3> kPaper = {{{"Rodinia, 16 cores", 33.87, 1.079},
                                            {"Rodinia, 1 GPU", 29.83, 0.224},
                                            {"15 cores and 1 GPU", 23.8, 3.443}}};
  fmt::print(
      "\n{} runs of five iterations, k = {}; beside it the paper's table, of its machines and "
      "data\n",
      options.runs, kClouds);
  fmt::print("  {:32}{:>10}{:>12}{:>10}   {:24}{:>9}{:>10}{:>10}\n", "", "mean s", "variance",
             "sd/mean", "paper", "s", "variance", "sd/mean");
  Json rows = Json::array();
  std::array<Spread, 3> spreads;
  for (size_t i = 0; i < 3; ++i) {
    spreads[i] = spread_of(seconds[i]);
    fmt::print("  {:32}{:10.4f}{:12.3g}{:10.4f}   {:24}{:9.2f}{:10.3f}{:10.4f}\n",
               sides.list()[i]->name, spreads[i].mean_s, spreads[i].variance, spreads[i].relative(),
               kPaper[i].side, kPaper[i].seconds, kPaper[i].variance,
               std::sqrt(kPaper[i].variance) / kPaper[i].seconds);
    rows.push_back({{"side", sides.list()[i]->name},
                    {"seconds", seconds[i]},
                    {"variance", spreads[i].variance}});
  }
  fmt::print("  {:32}{:>10}\n", "one GPU; one GPU and cores", "not measured");
  fmt::print("  speed-up over the faster part: {:.3f}\n", spreads[0].mean_s / spreads[2].mean_s);
  claim(claims, "the runs of both vary no more, relative to their mean, than runs of a part",
        spreads[2].relative() <= std::max(spreads[0].relative(), spreads[1].relative()));
  return rows;
}

Json quality(Sides& sides, const at::Tensor& x, const Options& options, Json& claims) {
  const at::Tensor centres = x.slice(0, 0, kClouds).to(at::kDouble);
  const auto one = lloyd(sides.a.data, centres, {.iterations = 5}),
             two = lloyd(sides.both.data, centres, {.iterations = 5});
  claim(
      claims,
      fmt::format("from the same centres the same inertia, {:.9g}, centres and labels, to the bit",
                  two.inertia),
      one.inertia == two.inertia && at::equal(one.centres, two.centres) &&
          at::equal(one.labels, two.labels));
  const at::Tensor small = make_rows(8192, 2);
  Sides fits(small);
  bool same = true;
  double sum = 0;
  for (int run = 0; run < 10; ++run) {
    std::array<double, 2> values{};
    for (size_t i = 0; i < 2; ++i) {
      KMeansData& data = i == 0 ? fits.a.data : fits.both.data;
      const at::Tensor start =
          initial_centres(data, kClouds, KMeansInit::kPlusPlus, static_cast<uint64_t>(run));
      values[i] = silhouette(small, lloyd(data, start, {.iterations = 50}).labels);
    }
    same = same && values[0] == values[1];
    sum += values[1] / 10;
  }
  claim(claims,
        fmt::format("ten fits of 8192 x 100: the same silhouettes, {:.4f} in the mean", sum), same);
  return {{"inertia", two.inertia}, {"silhouette", sum}};
}

int bench(const Options& options) {
  user_check(
      options.rows > kClouds && options.factor >= 1 && options.rounds > 0 && options.runs > 1,
      "at least {} rows, a factor of 1, a round and two runs", kClouds + 1);
  fmt::print("{}, load {:.2f}\n", machine().cpu_name, machine().load_average);
  const at::Tensor x = make_rows(options.rows, 1);
  Sides sides(x);
  Json claims = Json::array();
  Json result = {{"benchmark", "hybrid"}, {"machine", machine_json()}, {"rows", options.rows}};
  const Bandwidth read = read_bandwidth(x, options.rounds);
  fmt::print("reading the rows: {:.1f} GB/s by one thread, {:.1f} GB/s by two, {:.2f} times\n",
             read.one / 1e9, read.two / 1e9, read.two / read.one);
  result["read_gb_s"] = {read.one / 1e9, read.two / 1e9};
  result["together"] = {together(sides, x, kClouds, 1, options, claims),
                        together(sides, x, 5, read.allowed(), options, claims)};
  result["change"] = change(sides, x, options, claims);
  result["runs"] = runs(sides, x, options, claims);
  result["quality"] = quality(sides, x, options, claims);
  result["claims"] = claims;
  fmt::print("load {:.2f}\n", machine().load_average);
  if (!options.out.empty()) write_file_atomically(options.out, result.dump(1) + "\n");
  return std::ranges::all_of(claims,
                             [](const Json& one) { return one["holds"].template get<bool>(); })
             ? 0
             : 1;
}

}  // namespace
}  // namespace dovetail::fit

int main(int argc, char** argv) {
  CLI::App app("Two executors of unequal speed share k-means");
  dovetail::fit::Options options;
  app.add_option("--rows", options.rows, "Rows of 100 columns");
  app.add_option("--rounds", options.rounds, "Rounds; the best or the median counts");
  app.add_option("--runs", options.runs, "Fits of each side, for their variation");
  app.add_option("--factor", options.factor, "How often B computes every shard");
  app.add_option("--out", options.out, "Also write the result as JSON");
  return dovetail::run_program(app, argc, argv, [&] {
    dovetail::keep_freed_memory();
    return dovetail::fit::bench(options);
  });
}
