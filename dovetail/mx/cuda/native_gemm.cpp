#include "dovetail/mx/cuda/native_gemm.h"

#include <cuda_runtime_api.h>

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/Exception.h>
#include <cublasLt.h>

#include <map>
#include <memory>
#include <type_traits>

// cuBLASLt computes D = op(A) op(B) with column-major matrices. A row-major matrix is its transpose
// in column-major order. So y^T (cols x rows) = b a^T. Its A is b, (depth x cols), to be
// transposed; its B is a, (depth x rows). For 8-bit floats, this form ("TN") is the only one that
// every GPU supports. Source: cuBLAS documentation, "Narrow precision data types usage" and "1D
// block scaling".
namespace dovetail::mx::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{32} << 20;  // cuBLAS's own size on Hopper and later

void check(cublasStatus_t status, const char* what, const NativeProblem& p) {
  TORCH_CHECK(status == CUBLAS_STATUS_SUCCESS, "native product (", p.rows, " x ", p.depth, ") by (",
              p.cols, " x ", p.depth, "): ", what, ": ", cublasLtGetStatusName(status));
}

/// Returns the handle of this thread and the current GPU. Handles are never destroyed: at exit,
/// CUDA may already be gone.
cublasLtHandle_t handle(const NativeProblem& p) {
  thread_local std::map<int, cublasLtHandle_t> handles;
  cublasLtHandle_t& handle = handles[c10::cuda::current_device()];
  if (handle == nullptr) check(cublasLtCreate(&handle), "cublasLtCreate", p);
  return handle;
}

template <auto kDestroy>
struct Destroy {
  template <class T>
  void operator()(T* object) const {
    kDestroy(object);
  }
};
template <class Handle, auto kDestroy>
using Owned = std::unique_ptr<std::remove_pointer_t<Handle>, Destroy<kDestroy>>;
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

cudaDataType type_of(Format format) {
  return format == Format::kE5M2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3;
}

Description describe(const NativeProblem& p) {
  cublasLtMatmulDesc_t made = nullptr;
  check(cublasLtMatmulDescCreate(&made, CUBLAS_COMPUTE_32F, CUDA_R_32F), "cublasLtMatmulDescCreate",
        p);
  Description description(made);
  const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
    check(cublasLtMatmulDescSetAttribute(made, attribute, &value, sizeof(value)),
          "cublasLtMatmulDescSetAttribute", p);
  };
  set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
  set(CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0);
  set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p.b.scales);
  set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p.a.scales);
  if (p.bias != nullptr) {
    set(CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, CUDA_R_16BF);
  }
  return description;
}

/// Describes a column-major, contiguous matrix.
Layout layout(const NativeProblem& p, cudaDataType type, int64_t rows, int64_t cols) {
  cublasLtMatrixLayout_t made = nullptr;
  check(cublasLtMatrixLayoutCreate(&made, type, static_cast<uint64_t>(rows),
                                   static_cast<uint64_t>(cols), rows),
        "cublasLtMatrixLayoutCreate", p);
  return Layout(made);
}

}  // namespace

void native_gemm(const NativeProblem& p) {
  const Description description = describe(p);
  const Layout a = layout(p, type_of(p.b.format), p.depth, p.cols),
               b = layout(p, type_of(p.a.format), p.depth, p.rows),
               y = layout(p, p.narrow ? CUDA_R_16BF : CUDA_R_32F, p.cols, p.rows);
  cublasLtMatmulPreference_t made = nullptr;
  check(cublasLtMatmulPreferenceCreate(&made), "cublasLtMatmulPreferenceCreate", p);
  const Preference preference(made);
  check(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                             &kWorkspaceBytes, sizeof(kWorkspaceBytes)),
        "cublasLtMatmulPreferenceSetAttribute", p);
  cublasLtMatmulHeuristicResult_t found = {};
  int count = 0;
  check(cublasLtMatmulAlgoGetHeuristic(handle(p), description.get(), a.get(), b.get(), y.get(),
                                       y.get(), made, 1, &found, &count),
        "cublasLtMatmulAlgoGetHeuristic", p);
  TORCH_CHECK(count > 0, "native product (", p.rows, " x ", p.depth, ") by (", p.cols, " x ",
              p.depth, "): cuBLASLt has no kernel for it");
  const at::Tensor workspace = at::empty({static_cast<int64_t>(found.workspaceSize)},
                                         at::TensorOptions(at::kByte).device(at::kCUDA));
  const float one = 1, zero = 0;
  check(cublasLtMatmul(handle(p), description.get(), &one, p.b.codes, a.get(), p.a.codes, b.get(),
                       &zero, p.y, y.get(), p.y, y.get(), &found.algo, workspace.mutable_data_ptr(),
                       found.workspaceSize, c10::cuda::getCurrentCUDAStream().stream()),
        "cublasLtMatmul", p);
}

}  // namespace dovetail::mx::cuda
