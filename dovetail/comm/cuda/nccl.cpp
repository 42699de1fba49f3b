#include <c10/cuda/CUDAException.h>
#include <cuda_runtime_api.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

#include "dovetail/comm/nccl_group.h"

namespace dovetail::comm {
namespace {

/// Sets c10d's reaction to an error, unless the user has set it. NCCL's connections are aborted,
/// and calls that wait for them return. The process goes on: NcclGroup reports the error. By
/// default, c10d would end the process without a word about the run.
void keep_process_alive() {
  ::setenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_ENABLE_MONITORING", "0", /*overwrite=*/0);
  ::setenv("TORCH_NCCL_DUMP_ON_TIMEOUT", "0", /*overwrite=*/0);
}

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store,
                                               int rank, int size, double timeout_s) {
  keep_process_alive();
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = std::chrono::milliseconds(static_cast<int64_t>(timeout_s * 1000));
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

std::string bus_id() {
  int device = 0;
  std::array<char, 32> text{};
  C10_CUDA_CHECK(cudaGetDevice(&device));
  C10_CUDA_CHECK(cudaDeviceGetPCIBusId(text.data(), static_cast<int>(text.size()), device));
  return text.data();
}

}  // namespace
}  // namespace dovetail::comm

extern "C" const dovetail::comm::NcclCalls* dovetail_nccl_calls() {
  using namespace dovetail::comm;
  static const NcclCalls calls = {.make_backend = make_backend, .bus_id = bus_id};
  return &calls;
}
