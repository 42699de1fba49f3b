#include "dovetail/base/machine.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "dovetail/base/proc_files.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::machine_test {
namespace {

TEST(Machine, IsPlausible) {
  const Machine m = machine();
  EXPECT_FALSE(m.cpu_name.empty());
  EXPECT_GE(m.cores, 1);
  EXPECT_LE(m.cores, m.hardware_threads);
  EXPECT_LE(m.hardware_threads, static_cast<int>(std::thread::hardware_concurrency()));
  EXPECT_GT(m.available_bytes, 0U);
  EXPECT_LE(m.available_bytes, m.memory_bytes);
  EXPECT_GE(m.load_average, 0);
  const nlohmann::json json = machine_json();
  EXPECT_EQ(json.at("cores"), m.cores);
  EXPECT_EQ(json.at("simd"), m.simd);
  EXPECT_EQ(json.at("memory_bytes"), m.memory_bytes);
}

// The flags of /proc/cpuinfo are the kernel's own reading of the same registers.
TEST(Machine, SimdIsWhatTheKernelSays) {
  std::ifstream file("/proc/cpuinfo");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const std::string flags = " " + line_value(text, "flags") + " ";
  const auto has = [&](const std::string& flag) {
    return flags.find(" " + flag + " ") != flags.npos;
  };
  const std::string expected = has("amx_bf16") && has("amx_tile") ? "AMX BF16"
                               : has("avx512_bf16")               ? "AVX-512 BF16"
                               : has("avx512f")                   ? "AVX-512"
                               : has("avx2")                      ? "AVX2"
                                                                  : "none of them";
  EXPECT_EQ(machine().simd, expected);
}

TEST(Machine, CoresFollowTheAffinityMask) {
  const pid_t child = ::fork();
  if (child == 0) {
    cpu_set_t allowed, one;
    ::sched_getaffinity(0, sizeof(allowed), &allowed);
    CPU_ZERO(&one);
    for (int cpu = 0; cpu < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++cpu) {
      if (CPU_ISSET(cpu, &allowed)) CPU_SET(cpu, &one);
    }
    ::sched_setaffinity(0, sizeof(one), &one);
    const Machine m = machine();
    ::_exit(m.cores == 1 && m.hardware_threads == 1 ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class SystemMemoryFiles : public ::testing::Test {
 protected:
  void write(const std::string& path, const std::string& content) {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << content;
  }
  void expect(uint64_t total, uint64_t available) {
    const SystemMemory memory = system_memory(root_.path());
    EXPECT_EQ(memory.total_bytes, total);
    EXPECT_EQ(memory.available_bytes, available);
  }
  void SetUp() override {
    write("proc/meminfo", "MemTotal:  1000 kB\nMemFree: 5 kB\nMemAvailable:   800 kB\n");
  }

  test::TemporaryFolder root_;
};

TEST_F(SystemMemoryFiles, WithoutControlGroups) { expect(1'024'000, 819'200); }

TEST_F(SystemMemoryFiles, Version2TakesTheTightestLimitOnTheWay) {
  write("proc/self/cgroup", "0::/pod/inner\n");
  write("sys/fs/cgroup/pod/memory.max", "500000\n");
  write("sys/fs/cgroup/pod/memory.current", "300000\n");
  write("sys/fs/cgroup/pod/memory.stat", "anon 1\ninactive_file 100000\nactive_file 7\n");
  write("sys/fs/cgroup/pod/inner/memory.max", "max\n");
  expect(500'000, 300'000);
  write("sys/fs/cgroup/pod/inner/memory.max", "400000\n");
  write("sys/fs/cgroup/pod/inner/memory.current", "50000\n");
  expect(400'000, 300'000);
  write("sys/fs/cgroup/pod/inner/memory.current", "450000\n");
  expect(400'000, 0);
}

TEST_F(SystemMemoryFiles, Version2InsideAContainerSeesTheRootOfItsMount) {
  write("proc/self/cgroup", "0::/not/mounted/here\n");
  write("sys/fs/cgroup/memory.max", "600000");
  write("sys/fs/cgroup/memory.current", "0");
  expect(600'000, 600'000);
}

TEST_F(SystemMemoryFiles, Version1) {
  write("proc/self/cgroup", "9:name=systemd:/x\n4:cpu,memory:/job\n0::/\n");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
  write("sys/fs/cgroup/memory/memory.usage_in_bytes", "123\n");
  expect(1'024'000, 819'200);
  write("sys/fs/cgroup/memory/job/memory.limit_in_bytes", "700000\n");
  write("sys/fs/cgroup/memory/job/memory.usage_in_bytes", "650000\n");
  write("sys/fs/cgroup/memory/job/memory.stat", "inactive_file 1\ntotal_inactive_file 50000\n");
  expect(700'000, 100'000);
}

TEST(ProcFiles, LineValue) {
  const std::string text = "VmPeak:\t 12 kB\nVmHWM:\t    1944 kB\nlast : x";
  EXPECT_EQ(line_value(text, "VmHWM:"), "1944 kB");
  EXPECT_EQ(line_value(text, "last"), "x");
  EXPECT_EQ(line_value(text, "none"), "");
  EXPECT_EQ(kilobytes_of(text, "VmHWM:"), 1944U * 1024);
  EXPECT_EQ(kilobytes_of(text, "none"), 0U);
}

TEST(ResidentMemory, ThePeakStaysUntilItIsReset) {
  constexpr size_t kBytes = size_t{64} << 20;
  constexpr uint64_t kMost = kBytes - (uint64_t{8} << 20);
  reset_peak_resident();
  const uint64_t before = peak_resident_bytes();
  EXPECT_GE(before + (uint64_t{1} << 20), resident_bytes());
  void* const memory =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  std::memset(memory, 1, kBytes);
  EXPECT_GE(resident_bytes(), before + kMost / 2);
  ::munmap(memory, kBytes);
  EXPECT_GE(peak_resident_bytes(), before + kMost);
  reset_peak_resident();
  EXPECT_LT(peak_resident_bytes(), before + kMost);
}

TEST(Rates, ArePositiveAndFinite) {
  for (const double rate :
       {measure_copy_bandwidth(0.01), measure_gemm_rate(GemmType::kFloat32, at::kCPU, 0.01),
        measure_gemm_rate(GemmType::kBFloat16, at::kCPU, 0.01)}) {
    EXPECT_TRUE(std::isfinite(rate));
    EXPECT_GT(rate, 1e6);
  }
}

TEST(Format, Counts) {
  EXPECT_EQ(format_count(0), "0");
  EXPECT_EQ(format_count(7), "7");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(1000), "1.0 k");
  EXPECT_EQ(format_count(3.2e6), "3.2 M");
  EXPECT_EQ(format_count(9.949e6), "9.9 M");
  EXPECT_EQ(format_count(9.96e6), "10 M");
  EXPECT_EQ(format_count(124.4e6), "124 M");
  EXPECT_EQ(format_count(999.7e6), "1.0 B");
  EXPECT_EQ(format_count(8.03e9), "8.0 B");
  EXPECT_EQ(format_count(5e16), "50000 T");
  EXPECT_EQ(format_count(-3.2e6), "-3.2 M");
  EXPECT_EQ(format_count(NAN), "-");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1.5e9), "1.5 GB");
  EXPECT_EQ(format_bytes(23.4e9), "23 GB");
  EXPECT_EQ(format_bytes(999'600), "1.0 MB");
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0), "0:00");
  EXPECT_EQ(format_duration(59.6), "1:00");
  EXPECT_EQ(format_duration(72), "1:12");
  EXPECT_EQ(format_duration(3723), "1:02:03");
  EXPECT_EQ(format_duration(360'000), "100:00:00");
  for (const double none : {-1.0, double{NAN}, double{INFINITY}, 1e300})
    EXPECT_EQ(format_duration(none), "-");
}

}  // namespace
}  // namespace dovetail::machine_test
