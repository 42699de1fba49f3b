#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "dovetail/base/gpu.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"

namespace dovetail {
namespace {

// Returns the duration of the shortest round. Runs at least three rounds, and more until `seconds`
// are over. Other programs on the machine can only make a round longer.
template <class Round>
double shortest_round(double seconds, Round round) {
  constexpr int kMinRounds = 3;
  double best = INFINITY;
  const double start = now_seconds();
  for (int i = 0; i < kMinRounds || now_seconds() - start < seconds; ++i) {
    const double begin = now_seconds();
    round();
    best = std::min(best, now_seconds() - begin);
  }
  return best;
}

}  // namespace

double measure_copy_bandwidth(double seconds) {
  // 128 MiB each for source and target, which exceeds the caches of current processors.
  constexpr int64_t kBytes = int64_t{128} << 20, kPiece = int64_t{1} << 20;
  const at::Tensor from = at::ones({kBytes}, at::kByte), to = at::zeros({kBytes}, at::kByte);
  const auto* source = from.const_data_ptr<uint8_t>();
  auto* target = to.mutable_data_ptr<uint8_t>();
  const double best = shortest_round(seconds, [&] {
    parallel_pieces(kBytes, kPiece, [&](int64_t begin, int64_t end) {
      std::memcpy(target + begin, source + begin, static_cast<size_t>(end - begin));
    });
  });
  return 2.0 * static_cast<double>(kBytes) / best;
}

double measure_gemm_rate(GemmType type, c10::Device device, double seconds) {
  const c10::NoGradGuard no_grad;
  const bool float8 = type == GemmType::kFloat8;
  const auto options =
      at::TensorOptions(type == GemmType::kFloat32 ? at::kFloat : at::kBFloat16).device(device);
  const at::Tensor scale = float8 ? at::ones({}, options.dtype(at::kFloat)) : at::Tensor();
  const auto rate_at = [&](int64_t n, double budget) {
    // All elements are ones, since drawing random numbers would take time. On a CPU, the GEMM rate
    // does not depend on the values. A GPU draws less power for ones, so its rate is an upper bound
    // for training.
    const auto of_operands = float8 ? options.dtype(at::kFloat8_e4m3fn) : options;
    const at::Tensor a = at::ones({n, n}, options).to(of_operands),
                     b = float8 ? a.t() : at::ones({n, n}, options);
    at::Tensor out = at::empty({n, n}, options);
    const auto product = [&] {
      if (float8) {
        out = at::_scaled_mm(a, b, scale, scale, {}, {}, at::kBFloat16);
      } else {
        at::matmul_out(out, a, b);
      }
      if (!device.is_cpu()) synchronize_gpu();
    };
    product();  // warm-up: packs, allocates and selects the kernel
    return 2.0 * std::pow(static_cast<double>(n), 3) / shortest_round(budget, product);
  };
  // Matrix size for which several rounds fit into the requested time.
  double rate = rate_at(512, seconds / 8);
  const int64_t largest = device.is_cpu() ? 2048 : 8192;
  int64_t n = largest;
  while (n > 512 && 4 * 2.0 * std::pow(static_cast<double>(n), 3) / rate > seconds) n /= 2;
  if (n > 512) rate = std::max(rate, rate_at(n, seconds / 2));
  return rate;
}

}  // namespace dovetail
