// One side of bench/mx_quantize.py: quantizes and copies on request. Reads one command per line
// from its input. Answers each with one line of JSON:
//
//   time CASE DTYPE   CASE memcpy, row, column, both, random, new or nvfp4; DTYPE fp32 or bf16
//                     -> {"seconds": ..., "bytes": ...}
//
// All cases except `new` write to existing memory. `new` is `row` with its allocation, as in the
// peers. `random` is `row` with stochastic rounding. `nvfp4` is `new` in NVFP4 instead of the
// program's format, with a tensor scale. It reads x twice, which counts once. Bytes are bytes read
// plus bytes written. The first output line describes the program.
//
// layer: mx
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstring>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/nvfp4.h"
#include "dovetail/mx/quantize.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail {
namespace {

int64_t bytes_of(const mx::MXTensor& x) {
  return x.defined() ? x.codes().numel() + x.scales().numel() : 0;
}

/// As many pieces as threads, each one call of memcpy.
void copy_bytes(const at::Tensor& from, const at::Tensor& to) {
  const auto bytes = static_cast<int64_t>(from.nbytes());
  const auto* source = static_cast<const char*>(from.const_data_ptr());
  auto* target = static_cast<char*>(to.mutable_data_ptr());
  const int64_t threads = at::get_num_threads();
  parallel_pieces(bytes, (bytes + threads - 1) / threads, [&](int64_t begin, int64_t end) {
    std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin));
  });
}

class Bench {
 public:
  Bench(int64_t size, const mx::QuantizeSpec& spec)
      : fp32_(at::randn({size, size})),
        bf16_(fp32_.to(at::kBFloat16)),
        copy_(at::zeros_like(fp32_)),
        spec_(spec) {
    spec_.copies = mx::Copies::kRowAndColumn;
    out_ = mx::quantize(fp32_, spec_);
  }

  nlohmann::json time(const std::string& name, const std::string& dtype) {
    user_check(dtype == "fp32" || dtype == "bf16", "no dtype is named \"{}\"; use fp32 or bf16",
               dtype);
    const at::Tensor& x = dtype == "fp32" ? fp32_ : bf16_;
    auto bytes = static_cast<int64_t>(x.nbytes());
    const double begin = now_seconds();
    if (name == "memcpy") {
      copy_bytes(x, copy_);
      return {{"seconds", now_seconds() - begin}, {"bytes", 2 * bytes}};
    }
    if (name == "nvfp4") {
      const mx::Nvfp4 out = mx::quantize_nvfp4(x);
      bytes += out.tensor.codes.numel() + out.tensor.scales.numel();
      return {{"seconds", now_seconds() - begin}, {"bytes", bytes}};
    }
    user_check(
        name == "row" || name == "column" || name == "both" || name == "random" || name == "new",
        "no case is named \"{}\"; use memcpy, row, column, both, random, new or nvfp4", name);
    spec_.copies = name == "both"     ? mx::Copies::kRowAndColumn
                   : name == "column" ? mx::Copies::kColumn
                                      : mx::Copies::kRow;
    spec_.rounding = name == "random" ? mx::Rounding::kStochastic : mx::Rounding::kNearestEven;
    double seconds = 0;
    if (name == "new") {
      const mx::Quantized out = mx::quantize(x, spec_);
      seconds = now_seconds() - begin;
    } else {
      mx::quantize_into(x, spec_, out_);
      seconds = now_seconds() - begin;
    }
    bytes += (name == "column" ? 0 : bytes_of(out_.row)) +
             (spec_.copies == mx::Copies::kRow ? 0 : bytes_of(out_.column));
    return {{"seconds", seconds}, {"bytes", bytes}};
  }

 private:
  at::Tensor fp32_, bf16_, copy_;
  mx::QuantizeSpec spec_;
  mx::Quantized out_;
};

int run(int argc, char** argv) {
  int threads = at::get_num_threads();
  int64_t size = 4096;
  std::string format = "e4m3", mode = "round_up";
  CLI::App app("One side of bench/mx_quantize.py: commands on its input, answers in JSON.",
               "bench_mx_quantize");
  app.add_option("--threads", threads, "threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--size", size, "rows and columns")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--format", format, "element format")->capture_default_str();
  app.add_option("--scale-mode", mode, "scale mode")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  at::set_num_threads(threads);
  Bench bench(size, {.format = mx::parse_format(format), .scale_mode = mx::parse_scale_mode(mode)});
  std::cout << nlohmann::json{{"machine", machine_json()},
                              {"simd", ops::simd_level_name(ops::simd_level())}}
            << std::endl;
  for (std::string line; std::getline(std::cin, line);) {
    std::istringstream words(line);
    std::string command, name, dtype;
    words >> command >> name >> dtype;
    user_check(command == "time", "unknown command \"{}\"", line);
    std::cout << bench.time(name, dtype) << std::endl;
  }
  return 0;
}

}  // namespace
}  // namespace dovetail

int main(int argc, char** argv) {
  try {
    return dovetail::run(argc, argv);
  } catch (const dovetail::UserError& error) {
    std::cerr << dovetail::describe_error(error) << "\n";
    return 2;
  }
}
