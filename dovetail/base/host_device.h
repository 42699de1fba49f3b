#pragma once

/// Marks functions that are compiled for both the CPU and CUDA kernels.
#if defined(__CUDACC__)
#define DOVETAIL_HOST_DEVICE __host__ __device__
#else
#define DOVETAIL_HOST_DEVICE
#endif
