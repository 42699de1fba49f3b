#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dovetail {

struct Machine {
  std::string cpu_name;
  int cores = 0;  ///< physical cores that this process may use (hwloc, affinity respected)
  int hardware_threads = 0;
  std::string simd;  ///< "AVX2", "AVX-512", "AVX-512 BF16", "AMX BF16", or "none of them"
  uint64_t memory_bytes = 0, available_bytes = 0;
  double load_average = 0;  ///< average over one minute
};

/// Reads the properties of this machine. A memory limit of the control group counts as the
/// machine's memory.
Machine machine();
nlohmann::json machine_json();

/// Returns true if the CPU has bfloat16 multiply instructions (AVX-512 BF16 or AMX).
bool has_bfloat16_instructions();

/// Measures the memory copy bandwidth: bytes read plus bytes written per second. Takes about
/// `seconds` and returns the best of several rounds.
double measure_copy_bandwidth(double seconds = 0.1);
enum class GemmType { kFloat32, kBFloat16 };
/// Measures FLOP/s of at::matmul and returns the best of several rounds, in about `seconds`. The
/// matrices are 2048 x 2048 on a CPU (smaller on slow machines) and 8192 x 8192 on a GPU.
double measure_gemm_rate(GemmType type, c10::Device device = c10::kCPU, double seconds = 0.05);

/// Current and peak resident memory of this process (Linux). `reset_peak_resident` sets the peak to
/// the current value.
uint64_t resident_bytes();
uint64_t peak_resident_bytes();
void reset_peak_resident();

/// Numbers formatted for people: "3.2 M" or "124 M" (count), "1.5 GB" (bytes, decimal), "1:12"
/// (duration).
std::string format_count(double count);
std::string format_bytes(double bytes);
std::string format_duration(double seconds);
std::string format_grouped(int64_t number);  ///< for example "1,234,567"

}  // namespace dovetail
