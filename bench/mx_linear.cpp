// Compares the emulated MXFP8 Linear with BF16's, and the memory that whole models keep for
// backward.
//
// usage: ./dev bench mx_linear [--threads N] [--rounds N] [--tokens N] [--widths 1024,2048,4096]
//                              [--recipe NAME] [--out FILE]
//
// Time: forward and backward of one Linear (width x width) in BF16 and with quantized operands.
// Sides take turns; the best round of each counts. Claim: at most 1.30 times BF16's time. Kept
// bytes: memory alive after the loss of a GPT-2 (124 M) and a Llama (160 M), minus memory alive
// before. Claim: at most 0.85 of BF16's. Exit code 1 when a claim does not hold. The first claim
// must fail with DOVETAIL_DISABLE=mx_quantize.
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/types.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/base/kept_memory.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/models/gpt.h"
#include "dovetail/mx/linear.h"
#include "tests/models/allocation_meter.h"

namespace {

using namespace dovetail;

constexpr double kMostTime = 1.30, kMostBytes = 0.85;

struct Options {
  int threads = 2;
  int64_t rounds = 15, tokens = 2048;
  std::vector<int64_t> widths = {1024, 2048, 4096};
  std::string recipe = "mxfp8", out;
};

mx::LinearRecipe find(const std::string& name) {
  return mx::find_recipe(mx::built_in_recipes(), name).linear;
}

at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed)).to(at::kBFloat16);
}

class Side {
 public:
  Side(int64_t width, const std::string& recipe)
      : linear_(mx::make_linear(
            {.in = width, .out = width, .role = mx::LinearRole::kFeedForwardUp, .name = recipe})) {
    linear_->weight.set_data(random({width, width}, 1));
    linear_->set_recipe(find(recipe));
  }

  /// One forward and backward pass.
  void run(const at::Tensor& x, const at::Tensor& dy) {
    linear_->weight.mutable_grad().reset();
    const double begin = now_seconds();
    at::Tensor y = linear_->forward(x);
    y.backward(dy);
    best_ = std::min(best_, now_seconds() - begin);
  }
  double best() const { return best_; }

 private:
  std::shared_ptr<mx::Linear> linear_;
  double best_ = std::numeric_limits<double>::infinity();
};

nlohmann::json time_linear(const Options& options, int64_t width) {
  Side bf16(width, "bf16"), quantized(width, options.recipe);
  const at::Tensor x = random({options.tokens, width}, 2).requires_grad_(),
                   dy = random({options.tokens, width}, 3);
  for (int64_t round = 0; round < options.rounds; ++round) {
    bf16.run(x, dy);
    quantized.run(x, dy);
    x.mutable_grad().reset();
  }
  const double flops = 6.0 * static_cast<double>(options.tokens * width * width);
  return {{"width", width},
          {"bf16_ms", 1e3 * bf16.best()},
          {"quantized_ms", 1e3 * quantized.best()},
          {"ratio", quantized.best() / bf16.best()},
          {"bf16_gflops", flops / bf16.best() / 1e9}};
}

/// Bytes alive after the loss beyond the parameters.
int64_t kept_bytes(const std::string& preset, const std::string& recipe) {
  constexpr int64_t kBatch = 4, kTokens = 512;
  models::ModelConfig config = models::model_preset(preset).config;
  config.preset = preset;
  models::GPT model(models::resolve_model_config(config, 0));
  initialize(model, 1);
  model.set_compute_dtype(at::kBFloat16);
  for (const auto& linear : mx::quantizable_linears(model)) linear->set_recipe(find(recipe));
  const at::Tensor tokens = at::randint(config.vocab_size, {kBatch, kTokens + 1}, at::kLong);
  const dovetail::testing::AllocationMeter meter;
  const models::LossSum loss = model.loss(tokens);
  return meter.current();
}

nlohmann::json weigh_model(const Options& options, const std::string& preset) {
  const int64_t bf16 = kept_bytes(preset, "bf16"), quantized = kept_bytes(preset, options.recipe);
  return {{"preset", preset},
          {"bf16_bytes", bf16},
          {"quantized_bytes", quantized},
          {"ratio", static_cast<double>(quantized) / static_cast<double>(bf16)}};
}

/// Prints a claim and says whether it holds.
bool claim(const std::string& what, double value, double most) {
  std::cout << fmt::format("claim: {}, at most {:.2f}: {} ({:.3f})\n", what, most,
                           value <= most ? "holds" : "DOES NOT HOLD", value);
  return value <= most;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("The emulated microscaling Linear against BF16's");
  app.add_option("--threads", options.threads)->check(CLI::Range(1, 1024));
  app.add_option("--rounds", options.rounds)->check(CLI::Range(1, 1000000));
  app.add_option("--tokens", options.tokens)->check(CLI::Range(1, 1000000));
  app.add_option("--widths", options.widths)->delimiter(',');
  app.add_option("--recipe", options.recipe);
  app.add_option("--out", options.out, "JSON");
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(options.threads);
  keep_freed_memory();  // as `dovetail train`
  nlohmann::json result = {{"benchmark", "mx_linear"},   {"recipe", options.recipe},
                           {"threads", options.threads}, {"tokens", options.tokens},
                           {"rounds", options.rounds},   {"machine", machine_json()}};
  const Machine here = machine();
  std::cout << fmt::format("mx_linear {}, {} tokens\n{}, {}, {} threads, load {:.2f}\n",
                           options.recipe, options.tokens, here.cpu_name, here.simd,
                           options.threads, here.load_average);
  bool holds = true;
  for (const int64_t width : options.widths) {
    const nlohmann::json line = time_linear(options, width);
    std::cout << fmt::format("width {:5}  bf16 {:8.2f} ms ({:.0f} GFLOP/s)  quantized {:8.2f} ms\n",
                             width, line["bf16_ms"].get<double>(),
                             line["bf16_gflops"].get<double>(), line["quantized_ms"].get<double>());
    holds &= claim(fmt::format("width {} in the time of bf16's", width),
                   line["ratio"].get<double>(), kMostTime);
    result["linears"].push_back(line);
  }
  for (const char* preset : {"gpt2-124m", "llama-160m"}) {
    const nlohmann::json line = weigh_model(options, preset);
    std::cout << fmt::format("{}  kept for backward: bf16 {}, quantized {}\n", preset,
                             format_bytes(line["bf16_bytes"].get<double>()),
                             format_bytes(line["quantized_bytes"].get<double>()));
    holds &= claim(fmt::format("{} keeps of bf16's bytes", preset), line["ratio"].get<double>(),
                   kMostBytes);
    result["models"].push_back(line);
  }
  if (!options.out.empty()) std::ofstream(options.out) << result.dump(2) << "\n";
  return holds ? 0 : 1;
}
