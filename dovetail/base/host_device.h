#pragma once

/// For functions that CPU code and kernels of a GPU share.
#if defined(__CUDACC__)
#define DOVETAIL_HOST_DEVICE __host__ __device__
#else
#define DOVETAIL_HOST_DEVICE
#endif
