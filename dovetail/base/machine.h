#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dovetail {

struct Machine {
  std::string cpu_name;
  int cores = 0;  ///< physical cores this process may use (hwloc, affinity respected)
  int hardware_threads = 0;
  std::string simd;  ///< "AVX2", "AVX-512", "AVX-512 BF16", "AMX BF16", or "none of them"
  uint64_t memory_bytes = 0, available_bytes = 0;
  double load_average = 0;  ///< over one minute
};

/// What this machine is, read now. The cgroup's memory limit counts as the machine's memory.
Machine machine();
nlohmann::json machine_json();

/// Whether this processor multiplies bfloat16 in instructions of its own (AVX-512 BF16 or AMX).
bool has_bfloat16_instructions();

/// Measured rates; each takes about `seconds` and is the best of several rounds.
double measure_copy_bandwidth(double seconds = 0.1);  ///< bytes read plus written per second
enum class GemmType { kFloat32, kBFloat16 };
/// FLOP/s of at::matmul at 2048 cubed (smaller on slow machines), on a GPU at 8192 cubed.
double measure_gemm_rate(GemmType type, c10::Device device = c10::kCPU, double seconds = 0.05);

/// Resident memory of this process (Linux). `reset_peak_resident` sets the high-water mark to the
/// present value.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();
void reset_peak_resident();

/// "3.2 M", "124 M"; "1.5 GB" (decimal); "1:12".
std::string format_count(double count);
std::string format_bytes(double bytes);
std::string format_duration(double seconds);
std::string format_grouped(int64_t number);  ///< "1,234,567"

}  // namespace dovetail
