#include "dovetail/base/machine.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <hwloc.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/proc_files.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace dovetail {
namespace {

struct Cores {
  int cores = 0, hardware_threads = 0;
};

Cores usable_cores() {
  hwloc_topology_t topology = nullptr;
  DOVETAIL_CHECK(hwloc_topology_init(&topology) == 0 && hwloc_topology_load(topology) == 0,
                 "hwloc does not start");
  const std::unique_ptr<hwloc_topology, decltype(&hwloc_topology_destroy)> owner(
      topology, hwloc_topology_destroy);
  const std::unique_ptr<hwloc_bitmap_s, decltype(&hwloc_bitmap_free)> mask(hwloc_bitmap_alloc(),
                                                                           hwloc_bitmap_free);
  if (hwloc_get_cpubind(topology, mask.get(), HWLOC_CPUBIND_PROCESS) != 0) {
    hwloc_bitmap_copy(mask.get(), hwloc_topology_get_allowed_cpuset(topology));
  }
  hwloc_bitmap_and(mask.get(), mask.get(), hwloc_topology_get_allowed_cpuset(topology));
  Cores found;
  found.hardware_threads = hwloc_bitmap_weight(mask.get());
  for (hwloc_obj_t core = nullptr;
       (core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != nullptr;) {
    found.cores += hwloc_bitmap_intersects(core->cpuset, mask.get());
  }
  // Some virtual machines report no cores, only processing units.
  if (found.cores == 0) found.cores = found.hardware_threads;
  return found;
}

#if defined(__x86_64__)

// Returns true if the CPU has AMX with BF16 and the system saves the AMX registers.
bool has_amx_bf16() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  constexpr unsigned kOsXsave = 1U << 27, kAmxBf16 = 1U << 22, kAmxTile = 1U << 24,
                     kTileState = 3U << 17;
  if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kOsXsave) == 0) return false;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (d & kAmxBf16) == 0 || (d & kAmxTile) == 0)
    return false;
  unsigned low = 0, high = 0;
  __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (low & kTileState) == kTileState;
}

std::string simd_name() {
  if (has_amx_bf16()) return "AMX BF16";
  if (__builtin_cpu_supports("avx512bf16") != 0) return "AVX-512 BF16";
  if (__builtin_cpu_supports("avx512f") != 0) return "AVX-512";
  return __builtin_cpu_supports("avx2") != 0 ? "AVX2" : "none of them";
}

#else

std::string simd_name() { return "none of them"; }

#endif

std::string process_status() { return read_file("/proc/self/status"); }

std::string format_scaled(double value, std::initializer_list<const char*> units) {
  if (!std::isfinite(value)) return "-";
  const auto* unit = units.begin();
  // 999.5 would be printed as 1000.
  while (std::abs(value) >= 999.5 && unit + 1 != units.end()) value /= 1000, ++unit;
  const bool fraction = unit != units.begin() && std::abs(value) < 9.95;
  const std::string number = fraction ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
  return **unit == '\0' ? number : number + " " + *unit;
}

}  // namespace

bool has_bfloat16_instructions() {
  static const std::string simd = simd_name();
  return simd.ends_with("BF16");
}

Machine machine() {
  Machine m;
  m.cpu_name = line_value(read_file("/proc/cpuinfo"), "model name");
  if (m.cpu_name.empty()) m.cpu_name = "unknown";
  const Cores cores = usable_cores();
  m.cores = cores.cores;
  m.hardware_threads = cores.hardware_threads;
  m.simd = simd_name();
  const SystemMemory memory = system_memory();
  m.memory_bytes = memory.total_bytes;
  m.available_bytes = std::min(memory.available_bytes, memory.total_bytes);
  double load = 0;
  if (::getloadavg(&load, 1) == 1) m.load_average = load;
  return m;
}

nlohmann::json machine_json() {
  const Machine m = machine();
  return {{"cpu", m.cpu_name},
          {"cores", m.cores},
          {"hardware_threads", m.hardware_threads},
          {"simd", m.simd},
          {"memory_bytes", m.memory_bytes},
          {"available_bytes", m.available_bytes},
          {"load_average", m.load_average}};
}

uint64_t resident_bytes() { return kilobytes_of(process_status(), "VmRSS:"); }

uint64_t peak_resident_bytes() { return kilobytes_of(process_status(), "VmHWM:"); }

void reset_peak_resident() {
  const int fd = ::open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC);
  const bool done = fd >= 0 && ::write(fd, "5", 1) == 1;
  if (fd >= 0) ::close(fd);
  user_check(done,
             "this system cannot reset the high-water mark of memory (/proc/self/clear_refs)");
}

std::string format_count(double count) { return format_scaled(count, {"", "k", "M", "B", "T"}); }

std::string format_bytes(double bytes) {
  return format_scaled(bytes, {"B", "kB", "MB", "GB", "TB", "PB"});
}

std::string format_duration(double seconds) {
  if (!(seconds >= 0) || seconds > 1e9) return "-";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  const int64_t hours = whole / 3600, minutes = whole / 60 % 60;
  return hours > 0 ? fmt::format("{}:{:02}:{:02}", hours, minutes, whole % 60)
                   : fmt::format("{}:{:02}", minutes, whole % 60);
}

std::string format_grouped(int64_t number) {
  std::string digits = std::to_string(number);
  for (int64_t at = static_cast<int64_t>(digits.size()) - 3; at > (number < 0 ? 1 : 0); at -= 3) {
    digits.insert(static_cast<size_t>(at), 1, ',');
  }
  return digits;
}

}  // namespace dovetail
