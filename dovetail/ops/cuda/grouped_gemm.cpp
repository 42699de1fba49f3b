#include "dovetail/ops/cuda/grouped_gemm.h"

#include <cuda_runtime_api.h>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cublas_v2.h>

#include <map>
#include <vector>

// cuBLAS computes C = op(A) op(B) of column-major matrices. A row-major matrix is its transpose in
// column-major order, so c^T = b^T a^T. Thus A of cuBLAS is b, and B of cuBLAS is a. A matrix is
// passed as it is if we store it row-major, and transposed if we store its transpose. Sizes are on
// the host, addresses on the GPU. Source: cuBLAS documentation, cublasGemmGroupedBatchedEx.
namespace dovetail::ops::cuda {
namespace {

void check(cublasStatus_t status, const char* what, size_t products) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, products, " grouped products: ", what, ": ",
              cublasGetStatusString(status));
}

/// Returns the handle of this thread for the current GPU. It is never destroyed: at exit, CUDA may
/// already be gone.
cublasHandle_t handle(size_t products) {
  thread_local std::map<int, cublasHandle_t> handles;
  cublasHandle_t& handle = handles[c10::cuda::current_device()];
  if (handle == nullptr) check(cublasCreate(&handle), "cublasCreate", products);
  return handle;
}

/// Copies the addresses of every A, then B, then C to the GPU.
at::Tensor on_gpu(const std::vector<const void*>& addresses, cudaStream_t stream) {
  const size_t bytes = addresses.size() * sizeof(void*);
  at::Tensor copy =
      at::empty({static_cast<int64_t>(bytes)}, at::TensorOptions(at::kByte).device(at::kCUDA));
  // CUDA has read memory that is not pinned before the call returns.
  C10_CUDA_CHECK(cudaMemcpyAsync(copy.mutable_data_ptr(), addresses.data(), bytes,
                                 cudaMemcpyHostToDevice, stream));
  return copy;
}

/// Arguments of the call; each product is a group of its own.
struct Groups {
  std::vector<cublasOperation_t> a_op, b_op;
  std::vector<int64_t> m, n, k, a_stride, b_stride, c_stride;
  std::vector<float> beta;

  void add(const GroupedProduct& p) {
    a_op.push_back(p.b.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    b_op.push_back(p.a.transposed ? CUBLAS_OP_T : CUBLAS_OP_N);
    m.push_back(p.n);
    n.push_back(p.m);
    k.push_back(p.k);
    a_stride.push_back(p.b.stride);
    b_stride.push_back(p.a.stride);
    c_stride.push_back(p.c_stride);
    beta.push_back(p.accumulate ? 1.0f : 0.0f);
  }
};

}  // namespace

void grouped_gemm(Storage storage, std::span<const GroupedProduct> products) {
  Groups groups;
  std::vector<const void*> addresses;
  for (const GroupedProduct& p : products) groups.add(p);
  for (const GroupedProduct& p : products) addresses.push_back(p.b.data);
  for (const GroupedProduct& p : products) addresses.push_back(p.a.data);
  for (const GroupedProduct& p : products) addresses.push_back(p.c);
  const size_t count = products.size();
  const auto stream = c10::cuda::getCurrentCUDAStream().stream();
  const at::Tensor copied = on_gpu(addresses, stream);
  auto* const pointers = static_cast<void**>(copied.mutable_data_ptr());
  const std::vector<float> alpha(count, 1.0f);
  const std::vector<int64_t> sizes(count, 1);
  const cudaDataType type = storage == Storage::kFloat32 ? CUDA_R_32F : CUDA_R_16BF;
  check(cublasSetStream(handle(count), stream), "cublasSetStream", count);
  check(cublasGemmGroupedBatchedEx_64(
            handle(count), groups.a_op.data(), groups.b_op.data(), groups.m.data(), groups.n.data(),
            groups.k.data(), alpha.data(), pointers, type, groups.a_stride.data(), pointers + count,
            type, groups.b_stride.data(), groups.beta.data(), pointers + 2 * count, type,
            groups.c_stride.data(), static_cast<int64_t>(count), sizes.data(), CUBLAS_COMPUTE_32F),
        "cublasGemmGroupedBatchedEx", count);
}

}  // namespace dovetail::ops::cuda
