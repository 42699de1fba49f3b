// Compares the project's CPU kernels with ATen's, interleaved in one process. Prints the minimum
// time over the rounds and the ratio. Matrix products also print their share of the measured peak
// of fused multiply-adds. Options: `./dev bench kernels --help`.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <fstream>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/adamw.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/fma_rate.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail {
namespace {

struct Case {
  std::string name;
  double flops;  ///< operations of the matrix products; 0 if memory is the bound
  std::function<void()> ours, aten;
};

/// Sizes of one micro-batch of the two models that the claim is about.
struct Sizes {
  std::string model;
  int64_t batch, length, heads, head_dim, hidden, vocab;
  int64_t tokens() const { return batch * length; }
  int64_t width() const { return heads * head_dim; }
};
const Sizes kTenMillion = {"10M", 16, 256, 6, 64, 1024, 2048};
const Sizes kGpt2 = {"124M", 2, 1024, 12, 64, 3072, 50257};

at::Tensor leaf(at::IntArrayRef sizes, at::ScalarType dtype) {
  return at::randn(sizes).mul_(0.5).to(dtype).requires_grad_();
}

/// Forward and backward, gradients made anew.
std::function<void()> step(std::vector<at::Tensor> leaves,
                           const std::function<at::Tensor()>& forward) {
  return [leaves, forward] {
    const at::Tensor y = forward();
    y.backward(y.dim() == 0 ? at::Tensor() : at::ones_like(y));
    for (at::Tensor x : leaves) x.mutable_grad().reset();
  };
}

void add_gemm(std::vector<Case>& cases, const std::string& name, int64_t m, int64_t n, int64_t k,
              ops::GemmOptions options) {
  const at::Tensor a = options.transpose_a ? at::randn({k, m}) : at::randn({m, k});
  const at::Tensor b = options.transpose_b ? at::randn({n, k}) : at::randn({k, n});
  cases.push_back({fmt::format("gemm {} {}x{}x{}", name, m, n, k), 2.0 * m * n * k,
                   [=, c = at::empty({m, n})]() mutable { ops::gemm_into(c, a, b, options); },
                   [=, c = at::empty({m, n})]() mutable {
                     at::mm_out(c, options.transpose_a ? a.t() : a,
                                options.transpose_b ? b.t() : b);
                   }});
}

/// The three products of a Linear (in -> out): forward, the input's gradient, the weight's.
void add_linear_gemms(std::vector<Case>& cases, const Sizes& s, const std::string& role, int64_t in,
                      int64_t out) {
  const std::string name = s.model + " " + role;
  add_gemm(cases, name + " forward", s.tokens(), out, in, {.transpose_b = true});
  add_gemm(cases, name + " dx", s.tokens(), in, out, {});
  add_gemm(cases, name + " dweight", out, in, s.tokens(), {.transpose_a = true});
}

void add_attention(std::vector<Case>& cases, const Sizes& s, at::ScalarType dtype,
                   const std::string& name) {
  const at::Tensor q = leaf({s.batch, s.length, s.heads, s.head_dim}, dtype),
                   k = leaf(q.sizes(), dtype), v = leaf(q.sizes(), dtype);
  const ops::AttentionOptions options{.rotary_dim = s.head_dim};
  // Two products forward and five backward, half of them above the diagonal.
  const double product = 2.0 * s.batch * s.heads * s.length * s.length * s.head_dim / 2;
  cases.push_back({name + " attention forward", 2 * product,
                   [=] {
                     const at::NoGradGuard no_grad;
                     ops::attention(q, k, v, options);
                   },
                   [=] {
                     const at::NoGradGuard no_grad;
                     ops::composed::attention(q, k, v, options);
                   }});
  cases.push_back({name + " attention", 7 * product,
                   step({q, k, v}, [=] { return ops::attention(q, k, v, options); }),
                   step({q, k, v}, [=] { return ops::composed::attention(q, k, v, options); })});
}

void add_rowwise(std::vector<Case>& cases, const Sizes& s, at::ScalarType dtype,
                 const std::string& name) {
  const at::Tensor x = leaf({s.tokens(), s.width()}, dtype),
                   wide = leaf({s.tokens(), 2 * s.hidden}, dtype);
  const at::Tensor up = leaf({s.tokens(), 4 * s.width()}, dtype);
  const at::Tensor weight = leaf({s.width()}, at::kFloat), bias = leaf({s.width()}, at::kFloat);
  const at::Tensor same_weight = weight.detach().to(dtype).requires_grad_(),
                   same_bias = bias.detach().to(dtype).requires_grad_();
  const int64_t width = s.width();
  cases.push_back(
      {name + " rms_norm", 0,
       step({x, weight}, [=] { return dovetail::ops::rms_norm(x, weight, 1e-5); }),
       step({x, same_weight}, [=] { return at::rms_norm(x, {width}, same_weight, 1e-5); })});
  cases.push_back(
      {name + " layer_norm", 0,
       step({x, weight, bias}, [=] { return dovetail::ops::layer_norm(x, weight, bias, 1e-5); }),
       step({x, same_weight, same_bias},
            [=] { return at::layer_norm(x, {width}, same_weight, same_bias, 1e-5); })});
  cases.push_back({name + " swiglu", 0, step({wide}, [=] { return ops::swiglu(wide); }),
                   step({wide}, [=] { return ops::composed::swiglu(wide); })});
  cases.push_back({name + " gelu", 0, step({up}, [=] { return dovetail::ops::gelu(up); }),
                   step({up}, [=] { return at::gelu(up, "tanh"); })});
  cases.push_back({name + " squared_relu", 0, step({up}, [=] { return ops::squared_relu(up); }),
                   step({up}, [=] { return ops::composed::squared_relu(up); })});
}

void add_ends(std::vector<Case>& cases, const Sizes& s, at::ScalarType dtype,
              const std::string& name) {
  const at::Tensor x = leaf({s.tokens(), s.width()}, dtype),
                   weight = leaf({s.vocab, s.width()}, dtype);
  const at::Tensor ids = at::randint(0, s.vocab, {s.tokens()}, at::kLong);
  cases.push_back(
      {name + " linear_cross_entropy", 6.0 * s.tokens() * s.width() * s.vocab,
       step({x, weight}, [=] { return ops::linear_cross_entropy(x, weight, ids); }),
       step({x, weight}, [=] { return ops::composed::linear_cross_entropy(x, weight, ids); })});
  cases.push_back({name + " embedding", 0,
                   step({weight}, [=] { return ops::embedding(weight, ids); }),
                   step({weight}, [=] { return at::embedding(weight, ids); })});
}

void add_adamw(std::vector<Case>& cases) {
  constexpr int64_t kElements = 10'000'000;
  const at::Tensor p = at::randn({kElements}), g = at::randn({kElements}), m = at::zeros_like(p),
                   v = at::zeros_like(p);
  const at::Tensor count = at::ones({});
  cases.push_back({"adamw 10M elements", 0,
                   [=] {
                     ops::adamw_step(
                         {{.parameter = p, .gradient = g, .m = m, .v = v, .weight_decay = 0.1}},
                         {.lr = 1e-4});
                   },
                   [=] {
                     at::_fused_adamw_({p}, {g}, {m}, {v}, {}, {count}, 1e-4, 0.9, 0.95, 0.1, 1e-8,
                                       false, false, {}, {});
                   }});
  cases.push_back({"sum of squares 10M elements", 0, [=] { ops::sum_of_squares({g}); },
                   [=] { at::_foreach_norm({g})[0].item<float>(); }});
}

std::vector<Case> all_cases(const std::string& only) {
  std::vector<Case> cases;
  for (const Sizes& s : {kTenMillion, kGpt2}) {
    add_linear_gemms(cases, s, "qkv", s.width(), 3 * s.width());
    add_linear_gemms(cases, s, "out", s.width(), s.width());
    add_linear_gemms(cases, s, "up", s.width(), 4 * s.width());
    add_linear_gemms(cases, s, "down", 4 * s.width(), s.width());
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
      const std::string name = s.model + (dtype == at::kFloat ? " fp32" : " bf16");
      add_attention(cases, s, dtype, name);
      add_rowwise(cases, s, dtype, name);
      add_ends(cases, s, dtype, name);
    }
  }
  add_adamw(cases);
  std::erase_if(cases, [&](const Case& c) { return c.name.find(only) == std::string::npos; });
  return cases;
}

double seconds_of(const std::function<void()>& work) {
  const double begin = now_seconds();
  work();
  return now_seconds() - begin;
}

struct Result {
  std::string name;
  double ours_s, aten_s, flops;
};

/// The two sides take turns, and each goes first in turn. So a slow moment of the machine affects
/// both.
Result measure(const Case& c, int rounds) {
  c.ours();
  c.aten();
  Result result{c.name, std::numeric_limits<double>::infinity(),
                std::numeric_limits<double>::infinity(), c.flops};
  for (int round = 0; round < rounds; ++round) {
    for (const bool ours : {round % 2 == 0, round % 2 != 0}) {
      double& best = ours ? result.ours_s : result.aten_s;
      best = std::min(best, seconds_of(ours ? c.ours : c.aten));
    }
  }
  return result;
}

void print(const Result& r, double peak) {
  std::string rates;
  if (r.flops > 0) {
    rates = fmt::format("{:7.1f} {:7.1f} {:5.0f}%", r.flops / r.ours_s * 1e-9,
                        r.flops / r.aten_s * 1e-9, 100 * r.flops / r.ours_s / peak);
  }
  fmt::print("{:44} {:9.3f} {:9.3f} {:6.2f}x {}\n", r.name, 1e3 * r.ours_s, 1e3 * r.aten_s,
             r.aten_s / r.ours_s, rates);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  int threads = at::get_num_threads(), rounds = 9;
  std::string only, json_path;
  CLI::App app("Our CPU kernels against ATen's, interleaved; least time of the rounds.",
               "bench_kernels");
  app.add_option("--threads", threads, "threads of both sides")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--rounds", rounds, "rounds of each side")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--only", only, "cases whose name contains this");
  app.add_option("--json", json_path, "also write the figures to this file");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  at::manual_seed(1);

  const Machine m = machine();
  const double peak = ops::measure_fma_rate();
  fmt::print("{} | {} | kernels on {} | {} threads | load {:.1f} | FMA peak {:.0f} GFLOP/s\n",
             m.cpu_name, m.simd, ops::simd_level_name(ops::simd_level()), threads, m.load_average,
             peak * 1e-9);
  fmt::print("{:44} {:>9} {:>9} {:>7} {:>7} {:>7} {:>6}\n", "", "ours ms", "ATen ms", "ratio",
             "GFLOP/s", "ATen", "peak");
  nlohmann::json results = nlohmann::json::array();
  for (const Case& c : all_cases(only)) {
    const Result r = measure(c, rounds);
    print(r, peak);
    results.push_back(
        {{"name", r.name}, {"ours_s", r.ours_s}, {"aten_s", r.aten_s}, {"flops", r.flops}});
  }
  if (!json_path.empty()) {
    std::ofstream(json_path) << nlohmann::json{{"machine", machine_json()},
                                               {"threads", threads},
                                               {"rounds", rounds},
                                               {"simd", ops::simd_level_name(ops::simd_level())},
                                               {"fma_peak_flops", peak},
                                               {"results", results}}
                                    .dump(2)
                             << "\n";
  }
  return 0;
}

}  // namespace
}  // namespace dovetail

int main(int argc, char** argv) { return dovetail::run(argc, argv); }
