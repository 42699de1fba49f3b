#include <ATen/Context.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <regex>

#include "dovetail/base/gpu.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/module.h"
#include "dovetail/base/table.h"
#include "dovetail/cli/parse/command.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/parse/parser.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/gemm.h"

namespace dovetail::cli {
namespace {

namespace fs = std::filesystem;

constexpr double kGiga = 1e9;
constexpr uint64_t kLittleMemory = uint64_t{1} << 30, kLittleDisk = uint64_t{2} << 30;

struct Gpu {
  int devices = 0;       ///< device files of the driver
  std::string driver;    ///< version of the driver; empty: no driver is loaded
  std::string unusable;  ///< reason why this program cannot use a GPU; empty: it can
  bool kernels = false;  ///< this build has its own kernels for the GPU
  std::string nccl;      ///< path of the library next to torch; empty: not found
};

std::string driver_version() {
  std::ifstream file("/proc/driver/nvidia/version");
  std::string line;
  std::getline(file, line);
  std::smatch match;
  return std::regex_search(line, match, std::regex(R"(\s(\d+\.\d+(\.\d+)?)\s)")) ? match[1].str()
                                                                                 : "";
}

/// Returns NCCL's path in the torch wheel: site-packages/nvidia/nccl/lib, next to
/// site-packages/torch/lib.
std::string find_nccl() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<void*>(&at::globalContext), &info) == 0) return "";
  const fs::path site_packages =
      fs::weakly_canonical(info.dli_fname).parent_path().parent_path().parent_path();
  const fs::path library = site_packages / "nvidia/nccl/lib/libnccl.so.2";
  return fs::exists(library) ? library.string() : "";
}

Gpu find_gpu() {
  return {.devices = count_gpu_device_files(),
          .driver = driver_version(),
          .unusable = load_gpu(),
          .kernels = std::filesystem::exists(module_path(ops::kCudaLibrary)),
          .nccl = find_nccl()};
}

struct Problem {
  std::string what, help;
};

std::vector<Problem> find_problems(const Machine& m, const Gpu& gpu) {
  std::vector<Problem> problems;
  if (m.load_average > 0.5 * m.cores) {
    problems.push_back(
        {fmt::format("other programs keep {:.1f} of {} cores busy", m.load_average, m.cores),
         "rates below are lower than this machine's, and so is training"});
  }
  if (m.available_bytes < kLittleMemory) {
    problems.push_back({fmt::format("only {} of memory is available",
                                    format_bytes(static_cast<double>(m.available_bytes))),
                        "end other programs, or train a smaller model (`dovetail train CONFIG "
                        "--dry-run` says what it needs)"});
  }
  if (m.simd == "none of them")
    problems.push_back({"this processor has neither AVX2 nor AVX-512",
                        "kernels run without SIMD, several times slower"});
  if (const char* threads = std::getenv("OMP_NUM_THREADS");
      threads != nullptr && std::atoi(threads) < m.cores) {
    problems.push_back(
        {fmt::format("OMP_NUM_THREADS={} leaves cores of {} unused", threads, m.cores),
         "unset it, or set run.threads in the config"});
  }
  std::error_code error;
  const fs::space_info disk = fs::space(".", error);
  if (!error && disk.available < kLittleDisk) {
    problems.push_back(
        {fmt::format("only {} is free on the disk of this folder",
                     format_bytes(static_cast<double>(disk.available))),
         "checkpoints need 12 bytes per parameter each; lower checkpoint.keep or free some space"});
  }
  if (gpu.devices > 0 && !gpu.unusable.empty()) {
    problems.push_back(
        {"there is a GPU, but " + gpu.unusable, "install the driver and the CUDA build of torch"});
  }
  if (gpu.devices > 0 && !gpu.kernels) {
    problems.push_back(
        {"this build has no kernels of its own for the GPU and composes them of ATen's",
         "build where nvcc is found: ./dev build --preset cuda"});
  }
  if (gpu.devices == 0 && !gpu.driver.empty()) {
    problems.push_back({"the NVIDIA driver is loaded, but there are no device files",
                        "in a container, start it with access to the GPU (--gpus all)"});
  }
  if (gpu.devices > 1 && gpu.unusable.empty() && gpu.nccl.empty()) {
    problems.push_back({"several GPUs, but NCCL was not found beside torch",
                        "install the CUDA build of torch, which brings it"});
  }
  return problems;
}

class DoctorCommand : public Command {
 public:
  std::string name() const override { return "doctor"; }
  std::string summary() const override {
    return "Report this machine's measured rates and its problems";
  }
  std::string example() const override { return "dovetail doctor --json"; }

  void declare(Arguments& arguments) override {
    arguments.flag("--json", json_, "Print the result as JSON");
  }

  void run() override {
    const Machine m = machine();
    const Gpu gpu = find_gpu();
    const std::vector<Problem> problems = find_problems(m, gpu);
    const double copy = measure_copy_bandwidth(), fp32 = measure_gemm_rate(GemmType::kFloat32),
                 bf16 = measure_gemm_rate(ops::bfloat16_gemm_type(at::kCPU));
    if (json_) {
      print_report_json(gpu, problems, copy, fp32, bf16);
      return;
    }
    const auto bytes = [](uint64_t count) { return format_bytes(static_cast<double>(count)); };
    print(format_table({
        {"version", version_line().substr(0, version_line().size() - 1)},
        {"processor", m.cpu_name},
        {"cores", fmt::format("{} ({} hardware threads), load {:.2f}", m.cores, m.hardware_threads,
                              m.load_average)},
        {"SIMD", m.simd},
        {"memory",
         fmt::format("{} available of {}", bytes(m.available_bytes), bytes(m.memory_bytes))},
        {"copy bandwidth", fmt::format("{:.1f} GB/s read plus written", copy / kGiga)},
        {"matrix products", fmt::format("fp32 {:.0f} GFLOP/s, bf16 {:.0f} GFLOP/s ({:.2f}x)",
                                        fp32 / kGiga, bf16 / kGiga, bf16 / fp32)},
        {"GPU", gpu_line(gpu)},
        {"NCCL", gpu.nccl.empty() ? "not found" : gpu.nccl},
    }));
    print(problems.empty() ? "\nNothing is wrong.\n" : "\n");
    for (const Problem& problem : problems)
      print(fmt::format("problem: {}\n  help: {}\n", problem.what, problem.help));
  }

 private:
  static std::string gpu_line(const Gpu& gpu) {
    if (gpu.devices == 0) return "none";
    return fmt::format("{} (driver {}), {}", gpu.devices,
                       gpu.driver.empty() ? "unknown" : gpu.driver,
                       gpu.unusable.empty() ? "usable" : "not usable: " + gpu.unusable);
  }

  static void print_report_json(const Gpu& gpu, const std::vector<Problem>& problems, double copy,
                                double fp32, double bf16) {
    nlohmann::ordered_json json = machine_json();
    json["copy_bytes_per_s"] = copy;
    json["gemm_fp32_flops"] = fp32;
    json["gemm_bf16_flops"] = bf16;
    json["gpu"] = {{"devices", gpu.devices},
                   {"driver", gpu.driver},
                   {"usable", gpu.unusable.empty()},
                   {"kernels", gpu.kernels},
                   {"nccl", gpu.nccl}};
    json["problems"] = nlohmann::ordered_json::array();
    for (const Problem& problem : problems)
      json["problems"].push_back({{"problem", problem.what}, {"help", problem.help}});
    print_json(json);
  }

  bool json_ = false;
};

}  // namespace

std::unique_ptr<Command> make_doctor_command() { return std::make_unique<DoctorCommand>(); }

}  // namespace dovetail::cli
