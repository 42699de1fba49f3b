// Compares quantized experts as one operation with the same experts one after another. The third
// side are experts in BF16 that are not quantized.
//
// usage: ./dev bench quantized_experts [--threads 1,2] [--rounds N] [--tokens N] [--width N]
//                                      [--experts N] [--ffn-width N] [--k N] [--recipes NAMES]
//                                      [--out FILE]
//
// Time: forward and backward of a layer of SwiGLU experts in BF16, routing included. Sides take
// turns within a round, and the best round of each counts. The spread is the range of the rounds'
// ratios, without the lowest and highest tenth. Claim: one operation takes at most 0.9 of the time
// of the modules, for each recipe and number of threads. Exit code 1 when it does not hold, as with
// DOVETAIL_DISABLE=experts.
//
// layer: moe
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "bench/program.h"
#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/layer.h"
#include "dovetail/ops/simd_level.h"

namespace {

using namespace dovetail;

constexpr double kMostTime = 0.9;

struct Options {
  std::vector<int> threads = {1, 2};
  int64_t rounds = 15, tokens = 2048, width = 512, experts = 64, ffn_width = 512, k = 2;
  std::vector<std::string> recipes = {"mxfp8", "mxfp4_stochastic", "fp8_block"};
  std::string out;
};

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Layer of experts, and the seconds that each round took.
class Side {
 public:
  Side(const Options& options, const std::string& recipe, std::string disabled)
      : disabled_(std::move(disabled)) {
    moe::Config config;
    config.experts = options.experts;
    config.k = options.k;
    layer_ = std::make_shared<moe::Layer>(
        moe::resolve(config, options.ffn_width),
        moe::Layer::Options{
            .width = options.width, .activation = "swiglu", .name = "blocks.0.moe"});
    uint64_t seed = 1;
    for (const auto& parameter : layer_->named_parameters()) {
      const at::Tensor values =
          random(parameter.value().sizes(), seed++) / std::sqrt(parameter.value().size(-1));
      parameter.value().set_data(parameter.key() == "router.weight" ? values
                                                                    : values.to(at::kBFloat16));
    }
    for (const auto& linear : mx::quantizable_linears(*layer_))
      linear->set_recipe(mx::find_recipe(mx::built_in_recipes(), recipe).linear);
  }

  /// Times one forward and backward pass.
  void run(const at::Tensor& x, const at::Tensor& dy) {
    ops::set_disabled_kernels(disabled_);
    layer_->zero_grad();
    layer_->reset_load();
    const double begin = now_seconds();
    const moe::Layer::Output out = layer_->forward(x, {.training = true});
    ((out.y * dy).sum() + out.loss).backward();
    seconds_.push_back(now_seconds() - begin);
  }
  const std::vector<double>& seconds() const { return seconds_; }
  double best() const { return std::ranges::min(seconds_); }

 private:
  std::string disabled_;
  std::shared_ptr<moe::Layer> layer_;
  std::vector<double> seconds_;
};

/// Returns the ratio of the best rounds, and the range of the rounds' ratios without their ends.
nlohmann::json ratio(const Side& of, const Side& over) {
  std::vector<double> ratios;
  for (size_t i = 0; i < of.seconds().size(); ++i)
    ratios.push_back(of.seconds()[i] / over.seconds()[i]);
  std::ranges::sort(ratios);
  const size_t end = ratios.size() / 10;
  return {{"best", of.best() / over.best()},
          {"spread", {ratios[end], ratios[ratios.size() - 1 - end]}}};
}

nlohmann::json measure(const Options& options, const std::string& recipe, int threads) {
  at::set_num_threads(threads);
  const std::string off = ops::kernel_enabled(ops::Kernel::kExperts) ? "" : "experts";
  Side bf16(options, "bf16", off), modules(options, recipe, "experts"),
      grouped(options, recipe, off);
  const at::Tensor x = random({options.tokens, options.width}, 98).to(at::kBFloat16),
                   dy = random({options.tokens, options.width}, 99).to(at::kBFloat16);
  const at::Tensor leaf = x.clone().requires_grad_();
  for (int64_t round = 0; round < options.rounds; ++round) {
    for (Side* side : {&bf16, &modules, &grouped}) {
      side->run(leaf, dy);
      leaf.mutable_grad().reset();
    }
  }
  ops::set_disabled_kernels(off);
  return {{"recipe", recipe},
          {"threads", threads},
          {"bf16_ms", 1e3 * bf16.best()},
          {"modules_ms", 1e3 * modules.best()},
          {"grouped_ms", 1e3 * grouped.best()},
          {"over_modules", ratio(grouped, modules)},
          {"over_bf16", ratio(grouped, bf16)}};
}

std::string text_of(const nlohmann::json& ratio) {
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", ratio["best"].get<double>(),
                     ratio["spread"][0].get<double>(), ratio["spread"][1].get<double>());
}

int compare(const Options& options) {
  keep_freed_memory();  // as `dovetail train`
  nlohmann::json result = {{"benchmark", "quantized_experts"},
                           {"experts", options.experts},
                           {"k", options.k},
                           {"width", options.width},
                           {"ffn_width", options.ffn_width},
                           {"tokens", options.tokens},
                           {"rounds", options.rounds},
                           {"machine", machine_json()}};
  const Machine here = machine();
  std::cout << fmt::format(
      "{} experts of width {}, k {}, {} tokens of width {}, SwiGLU, BF16\n{}, {}, load {:.2f}\n",
      options.experts, options.ffn_width, options.k, options.tokens, options.width, here.cpu_name,
      here.simd, here.load_average);
  bool holds = true;
  for (const int threads : options.threads) {
    for (const std::string& recipe : options.recipes) {
      const nlohmann::json line = measure(options, recipe, threads);
      std::cout << fmt::format(
          "{:17} {} threads: bf16 {:7.1f} ms, modules {:7.1f} ms, one operation {:7.1f} ms\n",
          recipe, threads, line["bf16_ms"].get<double>(), line["modules_ms"].get<double>(),
          line["grouped_ms"].get<double>());
      const bool fine = line["over_modules"]["best"].get<double>() <= kMostTime;
      std::cout << fmt::format("  over bf16 {}\n  claim: over modules at most {:.2f}: {} {}\n",
                               text_of(line["over_bf16"]), kMostTime,
                               fine ? "holds" : "DOES NOT HOLD", text_of(line["over_modules"]))
                << std::flush;
      holds &= fine;
      result["layers"].push_back(line);
    }
  }
  if (!options.out.empty()) std::ofstream(options.out) << result.dump(2) << "\n";
  return holds ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Quantized experts as one operation against modules and BF16");
  app.add_option("--threads", options.threads)->delimiter(',');
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000000));
  app.add_option("--tokens", options.tokens)->check(CLI::Range(1, 1000000));
  app.add_option("--width", options.width)->check(CLI::Range(1, 1000000));
  app.add_option("--experts", options.experts)->check(CLI::Range(1, 1000000));
  app.add_option("--ffn-width", options.ffn_width)->check(CLI::Range(1, 1000000));
  app.add_option("--k", options.k)->check(CLI::Range(1, 1000000));
  app.add_option("--recipes", options.recipes)->delimiter(',');
  app.add_option("--out", options.out, "JSON");
  return run_program(app, argc, argv, [&] { return compare(options); });
}
