// One side of bench/tiers.py: trains tables on Zipf ids and prints one line of JSON.
//   --side tiered  TieredTables over files in --folder, within --memory bytes
//   --side plain   PackedTables, all in RAM
//
// layer: embedding
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <functional>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/rng.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/embedding/pack/lookup.h"
#include "dovetail/embedding/tiers/tiered.h"

namespace dovetail::embedding {
namespace {

struct Arguments {
  std::string side = "tiered", policy = "hot", folder = ".", row_dtype = "fp32";
  int64_t rows = 100'000'000, tables = 8, dim = 16, batch = 4096, memory = 0;
  std::vector<int64_t> phases = {
      1500, 3000};  ///< steps that are measured are [first, second), [third, fourth), ...
  int64_t warmup = 300, refresh = 500;
  double zipf = 1.1;
  bool filled = false, ahead = true;
  int threads = 2;
};

/// Ranks from 1 to n with probability proportional to rank^-s, s > 1, by rejection-inversion
/// (Hoermann and Derflinger, ACM TOMACS 1996).
class Zipf {
 public:
  Zipf(double s, int64_t n)
      : s_(s), n_(static_cast<double>(n)), low_(integral(0.5)), high_(integral(n_ + 0.5)) {}

  int64_t rank(uint64_t seed, uint64_t index) const {
    for (uint64_t attempt = 0;; ++attempt) {
      const double u = low_ + random_uniform(mix_seed(seed, attempt), RandomStream::kTest, index) *
                                  (high_ - low_);
      const double x = std::pow((1 - s_) * u, 1 / (1 - s_)),
                   k = std::min(std::max(std::round(x), 1.0), n_);
      // The bar of k is as wide as the curve is there where it is above k^-s.
      if (u >= integral(k + 0.5) - std::pow(k, -s_)) return static_cast<int64_t>(k);
    }
  }

 private:
  double integral(double x) const { return std::pow(x, 1 - s_) / (1 - s_); }

  double s_, n_, low_, high_;
};

/// The share of accesses that goes to the `top` most frequent of n rows.
double zipf_share(double s, int64_t top, int64_t n) {
  double sum = 0, of_top = 0;
  for (int64_t k = n; k > 0; --k) {
    const double p = std::pow(static_cast<double>(k), -s);
    sum += p;
    if (k <= top) of_top += p;
  }
  return of_top / sum;
}

PackSpec spec_of(const Arguments& a) {
  PackSpec spec{.tables = {},
                .feature_table = {},
                .optimizer = {.kind = OptimizerKind::kRowWiseAdagrad},
                .seed = 1,
                .row_dtype = parse_row_dtype(a.row_dtype)};
  for (int64_t t = 0; t < a.tables; ++t) {
    spec.tables.push_back(
        {.name = fmt::format("table_{}", t), .rows = a.rows / a.tables, .dim = a.dim});
    spec.feature_table.push_back(t);
  }
  return spec;
}

Jagged ids_of(const Arguments& a, const Zipf& zipf, int64_t step) {
  const at::Tensor values = at::empty({a.tables * a.batch}, at::kLong);
  int64_t* to = values.mutable_data_ptr<int64_t>();
  const auto rows = static_cast<uint64_t>(a.rows / a.tables);
  parallel_pieces(a.tables * a.batch, 512, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const auto table = static_cast<uint64_t>(i / a.batch);
      const int64_t rank = zipf.rank(table, static_cast<uint64_t>(step * a.batch + i % a.batch));
      to[i] = static_cast<int64_t>(permuted_index(table, static_cast<uint64_t>(rank - 1), rows));
    }
  });
  return {.values = values,
          .offsets = at::arange(a.tables * a.batch + 1),
          .weights = {},
          .features = a.tables,
          .samples = a.batch};
}

/// Tables of either kind, as the steps use them.
class Tables {
 public:
  explicit Tables(const Arguments& a) : arguments_(a) {
    user_check(a.side == "plain" || a.side == "tiered", "no side \"{}\"", a.side);
    if (a.side == "plain") {
      plain_.emplace(spec_of(a));
      return;
    }
    tiered_.emplace(spec_of(a), TierOptions{.policy = parse_tier_policy(a.policy),
                                            .memory_bytes = a.memory,
                                            .step_rows = a.batch,
                                            .warmup_steps = a.warmup,
                                            .refresh_steps = a.refresh,
                                            .folder = a.folder});
    if (a.filled)
      each_chunk([&](int64_t t, int64_t begin, const at::Tensor& w, const at::Tensor& s) {
        tiered_->set_rows(t, begin, w, s);
      });
  }

  /// Seconds of a step, in which the rows of the next are asked for.
  double step(const Jagged& ids, const Jagged& next, const at::Tensor& gradient) {
    const double begin = now_seconds();
    const Jagged slots = tiered_ ? tiered_->begin(ids) : ids;
    if (tiered_ && arguments_.ahead) tiered_->prefetch(next);
    PackedTables& tables = tiered_ ? tiered_->fast() : *plain_;
    pool(tables, slots);
    update(tables, {{slots, gradient}});
    if (tiered_) tiered_->end();
    return now_seconds() - begin;
  }

  /// A sum over all rows, whose order does not matter, of what their bits are.
  uint64_t checksum() const {
    uint64_t sum = 0;
    const RowDtype dtype = parse_row_dtype(arguments_.row_dtype);
    const int64_t bytes = row_bytes(dtype, arguments_.dim);
    std::vector<float> w(static_cast<size_t>(arguments_.dim));
    each_chunk([&](int64_t t, int64_t begin, const at::Tensor& rows, const at::Tensor& state) {
      const auto* from = static_cast<const char*>(rows.const_data_ptr());
      const auto* s = state.const_data_ptr<float>();
      for (int64_t i = 0; i < rows.size(0); ++i, from += bytes, ++s) {
        decode_row(dtype, from, arguments_.dim, w.data());
        uint64_t row = mix_seed(static_cast<uint64_t>(t), static_cast<uint64_t>(begin + i));
        for (const float x : w) row = (row ^ std::bit_cast<uint32_t>(x)) * 0x100000001B3;
        row = (row ^ std::bit_cast<uint32_t>(*s)) * 0x100000001B3;
        sum += row ^ row >> 29;
      }
    });
    return sum;
  }

  TierCounters counters() const { return tiered_ ? tiered_->counters() : TierCounters(); }
  int64_t fast_rows() const {
    return tiered_ ? tiered_->fast_rows(0) : arguments_.rows / arguments_.tables;
  }
  int64_t memory_bytes() const { return tiered_ ? tiered_->memory_bytes() : 0; }

 private:
  template <class Body>
  void each_chunk(const Body& body) const {
    constexpr int64_t kRows = 1 << 16;
    const int64_t all = arguments_.rows / arguments_.tables;
    for (int64_t t = 0; t < arguments_.tables; ++t) {
      for (int64_t begin = 0; begin < all; begin += kRows) {
        const int64_t count = std::min(kRows, all - begin);
        if (tiered_) {
          const auto [weight, state] = tiered_->rows(t, begin, count);
          body(t, begin, weight, state);
        } else {
          body(t, begin, plain_->stored(t).narrow(0, begin, count),
               plain_->packed_state(t).narrow(0, begin, count));
        }
      }
    }
  }

  Arguments arguments_;
  std::optional<PackedTables> plain_;
  std::optional<TieredTables> tiered_;
};

/// Returns the measurements of steps [first, last), with the counters before and after them.
nlohmann::json phase(const Arguments& a, int64_t first, int64_t last, std::vector<double> seconds,
                     const TierCounters& before, const TierCounters& after) {
  const double sum = std::accumulate(seconds.begin(), seconds.end(), 0.0);
  std::sort(seconds.begin(), seconds.end());
  const double median = seconds[seconds.size() / 2];
  nlohmann::json found = {{"steps", {first, last}},
                          {"step_ms", 1e3 * median},
                          {"mean_step_ms", 1e3 * sum / static_cast<double>(seconds.size())},
                          {"slowest_step_ms", 1e3 * seconds.back()},
                          {"samples_per_s", static_cast<double>(a.batch) / median},
                          {"rows_per_s", static_cast<double>(a.batch * a.tables) / median}};
  if (a.side != "tiered") return found;
  const auto hits = static_cast<double>(after.hits - before.hits),
             misses = static_cast<double>(after.misses - before.misses);
  found["hit_rate"] = hits / (hits + misses);
  found["rows_read"] = after.rows_read - before.rows_read;
  found["rows_written"] = after.rows_written - before.rows_written;
  found["bytes_read"] = after.bytes_read - before.bytes_read;
  found["bytes_written"] = after.bytes_written - before.bytes_written;
  found["rows_initialized"] = after.rows_initialized - before.rows_initialized;
  return found;
}

void run(const Arguments& a) {
  keep_freed_memory();
  at::set_num_threads(a.threads);
  const double start = now_seconds();
  Tables tables(a);
  const double made = now_seconds();
  const Zipf zipf(a.zipf, a.rows / a.tables);
  std::vector<at::Tensor> gradients;
  for (uint64_t i = 0; i < 4; ++i)
    gradients.push_back(at::randn({a.batch, a.tables * a.dim}, at::detail::createCPUGenerator(i)));
  std::vector<double> seconds;
  TierCounters before;
  Jagged next = ids_of(a, zipf, 0);
  nlohmann::json phases;
  for (size_t p = 0; p < a.phases.size(); p += 2) {
    const int64_t first = a.phases[p], last = a.phases[p + 1];
    seconds.clear();
    for (int64_t step = p == 0 ? 0 : a.phases[p - 1]; step < last; ++step) {
      if (step == first) {
        before = tables.counters();
        std::cerr << fmt::format("{} {}: steps {} to {} are measured\n", a.side, a.policy, first,
                                 last);
      }
      const Jagged ids = next;
      next = ids_of(a, zipf, step + 1);
      const double took =
          tables.step(ids, next, gradients[static_cast<size_t>(step) % gradients.size()]);
      if (step >= first) seconds.push_back(took);
    }
    phases.push_back(phase(a, first, last, seconds, before, tables.counters()));
  }
  nlohmann::json line = {{"side", a.side},
                         {"row_dtype", a.row_dtype},
                         {"row_bytes", row_bytes(parse_row_dtype(a.row_dtype), a.dim)},
                         {"make_s", made - start},
                         {"phases", phases}};
  if (a.side == "tiered") {
    line["policy"] = a.policy;
    line["memory_bytes"] = tables.memory_bytes();
    line["fast_rows_of_table"] = tables.fast_rows();
    line["ideal_hit_rate"] = zipf_share(a.zipf, tables.fast_rows(), a.rows / a.tables);
  }
  line["checksum"] = fmt::format("{:016x}", tables.checksum());
  std::cout << line.dump() << std::endl;
}

}  // namespace
}  // namespace dovetail::embedding

int main(int argc, char** argv) {
  CLI::App app("Trains embedding tables in tiers or in RAM");
  dovetail::embedding::Arguments a;
  app.add_option("--side", a.side);
  app.add_option("--policy", a.policy);
  app.add_option("--folder", a.folder);
  app.add_option("--memory", a.memory, "bytes of the fast tier and all that belongs to it");
  app.add_option("--rows", a.rows);
  app.add_option("--tables", a.tables);
  app.add_option("--dim", a.dim);
  app.add_option("--row-dtype", a.row_dtype, "fp32, bf16 or mxfp8");
  app.add_option("--batch", a.batch);
  app.add_option("--phases", a.phases,
                 "steps between which is measured: first, end, first, end, ...")
      ->delimiter(',');
  app.add_option("--warmup", a.warmup);
  app.add_option("--refresh", a.refresh);
  app.add_option("--zipf", a.zipf);
  app.add_option("--threads", a.threads);
  app.add_flag("!--no-prefetch", a.ahead, "rows of a step are asked for when it begins");
  app.add_flag("--filled", a.filled,
               "every row is in the file before the first step, as late in a training");
  CLI11_PARSE(app, argc, argv);
  try {
    dovetail::user_check(!a.phases.empty() && a.phases.size() % 2 == 0 && a.phases[0] >= 0 &&
                             std::ranges::is_sorted(a.phases, std::less_equal<>()),
                         "--phases {} are no steps that rise, two for each phase",
                         fmt::join(a.phases, ","));
    dovetail::embedding::run(a);
  } catch (const dovetail::UserError& e) {
    std::cerr << dovetail::describe_error(e) << '\n';
    return 2;
  }
  return 0;
}
