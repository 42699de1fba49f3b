// layer: ops
//
// 3 x 3 convolutions by each algorithm, interleaved in one process: `./dev bench convolution
// --rounds 15`. Prints the minimum time over the rounds and its ratio to ATen's time. Also prints
// the convolution's own multiplications per second as a share of the GEMM kernel's rate in the same
// rounds. Winograd does only a quarter of these multiplications.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
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
#include "dovetail/ops/convolution.h"
#include "dovetail/ops/gemm.h"

namespace dovetail {
namespace {

struct Shape {
  int64_t batch, channels, filters, size;
};
// Layers of VGG at 64 x 64 and 224 x 224 and of UNet at 256 x 256.
constexpr std::array<Shape, 9> kShapes = {{{4, 64, 64, 64},
                                           {4, 128, 128, 32},
                                           {4, 256, 256, 16},
                                           {4, 512, 512, 8},
                                           {4, 512, 512, 4},
                                           {1, 64, 64, 224},
                                           {1, 256, 256, 56},
                                           {1, 512, 512, 28},
                                           {1, 128, 64, 256}}};

struct Way {
  std::string pass, name;
  std::function<void()> run;
  int64_t workspace_bytes = 0;
  double seconds = std::numeric_limits<double>::infinity();
};

std::vector<Way> ways(const Shape& s) {
  const at::Tensor x = at::randn({s.batch, s.channels, s.size, s.size}),
                   dy = at::randn({s.batch, s.filters, s.size, s.size}),
                   weight = at::randn({s.filters, s.channels, 3, 3}), bias = at::randn({s.filters});
  const auto aten = [=](std::array<bool, 3> mask) {
    return [=] {
      at::convolution_backward(dy, x, weight, {{s.filters}}, {1, 1}, {1, 1}, {1, 1}, false, {0, 0},
                               1, mask);
    };
  };
  std::vector<Way> out = {{"forward", "aten", [=] { at::conv2d(x, weight, bias, 1, 1); }},
                          {"data", "aten", aten({true, false, false})},
                          {"weight", "aten", aten({false, true, true})}};
  for (const auto algorithm :
       {ops::ConvolutionAlgorithm::kIm2col, ops::ConvolutionAlgorithm::kWinograd}) {
    const ops::ConvolutionOptions options{.padding = {1, 1}, .algorithm = algorithm};
    const auto add = [&](const char* name_of_pass, ops::ConvolutionPass pass,
                         std::function<void()> run) {
      if (!ops::why_not(pass, weight.sizes(), options))
        out.push_back({name_of_pass, std::string(name(algorithm)), std::move(run),
                       ops::convolution_workspace_bytes(pass, x.sizes(), weight.sizes(), options)});
    };
    add("forward", ops::ConvolutionPass::kForward,
        [=] { ops::convolution(x, weight, bias, options); });
    add("data", ops::ConvolutionPass::kBackwardData,
        [=] { ops::convolution_backward_data(dy, weight, x.sizes(), options); });
    add("weight", ops::ConvolutionPass::kBackwardWeight,
        [=] { ops::convolution_backward_weight(dy, x, weight.sizes(), options); });
  }
  std::stable_sort(out.begin(), out.end(),
                   [](const Way& a, const Way& b) { return a.pass < b.pass; });
  return out;
}

nlohmann::ordered_json run(const Shape& s, int rounds) {
  constexpr int64_t kWidth = 768;
  const at::Tensor a = at::randn({kWidth, kWidth}), b = at::randn({kWidth, kWidth});
  std::vector<Way> all = ways(s);
  all.push_back({"", "gemm", [&] { ops::gemm(a, b); }});
  for (int round = 0; round < rounds + 1; ++round)
    for (Way& way : all) {
      const double start_s = now_seconds();
      way.run();
      if (round > 0) way.seconds = std::min(way.seconds, now_seconds() - start_s);
    }
  const double peak = 2.0 * kWidth * kWidth * kWidth / all.back().seconds;
  const double flops =
      18.0 * static_cast<double>(s.batch * s.channels * s.filters * s.size * s.size);
  fmt::print("{} x {} to {} of {} x {}\n", s.batch, s.channels, s.filters, s.size, s.size);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  double aten_s = 0;
  for (const Way& way : all) {
    if (way.name == "aten") aten_s = way.seconds;
    if (way.name == "gemm") continue;
    const double share = flops / way.seconds / peak;
    fmt::print(
        "  {:<8} {:<9} {:>8.2f} ms  {:>5.2f} x aten  {:>4.0f} % of the GEMM's rate  workspace "
        "{:>6.1f} MiB\n",
        way.pass, way.name, way.seconds * 1e3, way.seconds / aten_s, 100 * share,
        static_cast<double>(way.workspace_bytes) / (1 << 20));
    rows.push_back({{"pass", way.pass},
                    {"algorithm", way.name},
                    {"seconds", way.seconds},
                    {"ratio_to_aten", way.seconds / aten_s},
                    {"share_of_gemm", share},
                    {"workspace_bytes", way.workspace_bytes}});
  }
  return {{"batch", s.batch},
          {"channels", s.channels},
          {"filters", s.filters},
          {"size", s.size},
          {"ways", rows}};
}

}  // namespace
}  // namespace dovetail

int main(int argc, char** argv) {
  int rounds = 9;
  std::string file;
  CLI::App app("Convolutions by each algorithm");
  app.add_option("--rounds", rounds, "timed rounds; the fastest counts");
  app.add_option("--out", file, "write the result as JSON");
  CLI11_PARSE(app, argc, argv);
  const c10::NoGradGuard no_grad;
  dovetail::keep_freed_memory();
  nlohmann::ordered_json out = {{"machine", dovetail::machine_json()},
                                {"threads", at::get_num_threads()}};
  for (const dovetail::Shape& shape : dovetail::kShapes)
    out["shapes"].push_back(dovetail::run(shape, rounds));
  if (!file.empty()) std::ofstream(file) << out.dump(1) << '\n';
}
