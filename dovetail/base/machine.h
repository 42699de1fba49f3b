#pragma once

#include <c10/core/Device.h>

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace dovetail {

/// Properties of this machine, read by `machine()`.
struct Machine {
  std::string cpu_name;
  /// Physical cores and hardware threads that this process may use, according to hwloc and the
  /// process's affinity mask.
  int cores = 0;
  int hardware_threads = 0;
  /// Best instruction set: "AVX2", "AVX-512", "AVX-512 BF16" or "AMX BF16"; else "none of them".
  std::string simd;
  uint64_t memory_bytes = 0, available_bytes = 0;  ///< RAM in total, and RAM still available
  double load_average = 0;                         ///< load of the system, averaged over one minute
};

/// Reads the properties of this machine. If the process's control group (cgroup) has a lower memory
/// limit, that limit counts as the machine's memory.
Machine machine();
/// Returns `machine()` as a JSON object.
nlohmann::json machine_json();

/// Returns true if the CPU has bfloat16 multiply instructions (AVX-512 BF16 or AMX).
bool has_bfloat16_instructions();

/// Measures the memory copy bandwidth: bytes read plus bytes written, per second. Takes about
/// `seconds` and returns the best of several rounds.
double measure_copy_bandwidth(double seconds = 0.1);
/// kFloat8: E4M3 operands with one scale each and a bfloat16 result (at::_scaled_mm), on a GPU of
/// compute capability 8.9 or later.
enum class GemmType { kFloat32, kBFloat16, kFloat8 };
/// Measures the FLOP/s of matrix products. Takes about `seconds` and returns the best of several
/// rounds. The matrices are 2048 x 2048 on a CPU and 8192 x 8192 on a GPU, or smaller on slow
/// machines.
double measure_gemm_rate(GemmType type, c10::Device device = c10::kCPU, double seconds = 0.05);

/// Returns the resident memory of this process (Linux).
uint64_t resident_bytes();
/// Returns the maximum of resident_bytes() since the process's start or `reset_peak_resident`.
uint64_t peak_resident_bytes();
/// Sets the peak to the current value. Throws UserError if the system cannot do this.
void reset_peak_resident();

/// Functions that format numbers for people.
std::string format_count(double count);       ///< for example "3.2 M" or "124 M"
std::string format_bytes(double bytes);       ///< decimal units, for example "1.5 GB"
std::string format_duration(double seconds);  ///< for example "1:12" (1 minute, 12 seconds)
std::string format_grouped(int64_t number);   ///< for example "1,234,567"

}  // namespace dovetail
