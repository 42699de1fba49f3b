#pragma once

#include <cstdint>

namespace dovetail::fit {

/// Rows of a shard in the kernels below, equal to kKMeansGrain.
inline constexpr int64_t kCudaShardRows = 1024;

/// Arguments of CudaKernels::squares. All pointers are to GPU memory. Squared distances have the
/// bits of the CPU's. Each shard of kCudaShardRows rows is summed in the order of its rows.
struct CudaSquares {
  /// Use of the squared distances.
  enum class Use {
    kNorms,    ///< one point: sets `norm` to the distance, rounded up; sums the squares
    kLabels,   ///< the point of a row is `label`: sets `squares`; sums them
    kInclude,  ///< lowers `squares` to the closest point; sums them
    kWeights,  ///< sums `weight`; reads nothing else
  } use;
  const float* x;  ///< (rows, dim)
  int64_t rows, dim;
  const double* points;  ///< (count, dim)
  int64_t count;
  const int32_t* label;  ///< (rows); kLabels only
  float* norm;           ///< (rows); kNorms only
  double* squares;       ///< (rows); not for kNorms
  const double* weight;  ///< (rows): factors of the rows in sums; null: 1
  double* sums;          ///< (shards)
};

/// Arguments of CudaKernels::nearest and CudaKernels::sums, two halves of `kmeans.assign`. All
/// pointers are to GPU memory. The new labels have the bits of the CPU's.
struct CudaAssign {
  const float* x;  ///< (rows, dim)
  int64_t rows, dim;
  const float *norm, *shift;  ///< as in AssignProblem (assign_simd.h)
  const double* centres;      ///< (num_centres, dim)
  int64_t num_centres;
  int32_t* label;        ///< (rows): previous labels; `sums` replaces them by the new ones
  const double* weight;  ///< (rows): factors of the rows in sums and counts; null: 1

  // Scratch memory. `nearest` fills it, and `sums` reads `fresh`.

  int32_t* fresh;  ///< (rows): new labels
  /// Centres minus shift in float32, transposed: (padded dim, padded num_centres), zeros elsewhere.
  float* packed;
  /// Factors of |x - shift| and of 1 in the score of each centre, and |centre - shift|, rounded up.
  /// Each has padded num_centres elements.
  float *slope, *base, *length;
  uint32_t* doubtful;      ///< (rows): rows whose float32 scores do not prove a label
  float* limit;            ///< (rows): a centre with a higher score is not the nearest
  uint32_t* num_doubtful;  ///< one element
};
inline constexpr int64_t kCudaDepth = 16, kCudaCentres = 64;
/// Returns dim and num_centres as `packed` has them.
constexpr int64_t padded_dim(int64_t dim) {
  return (dim + kCudaDepth - 1) / kCudaDepth * kCudaDepth;
}
constexpr int64_t padded_centres(int64_t num_centres) {
  return (num_centres + kCudaCentres - 1) / kCudaCentres * kCudaCentres;
}

/// Table of k-means kernels. They queue work on torch's current stream.
struct CudaKernels {
  void (*squares)(const CudaSquares& problem);
  void (*nearest)(const CudaAssign& problem);
  /// For `shards` shards from shard `first` of the rows on, sets a row of sums (shards, K D + K +
  /// 1), where K is num_centres and D is dim. A row has three parts. The first has the sums of the
  /// rows with each label (K, D). The second has their numbers, or the sums of their weights (K).
  /// The last is the number of changed labels.
  void (*sums)(const CudaAssign& problem, int64_t first, int64_t shards, double* sums);
  /// Adds rows of sums (shards, width) along the tree of TreeSum (jobs/partial.h). Row 0 has the
  /// number `place` in the job. The sum of each block of blocks_of(place, shards, shards) replaces
  /// the block's first row. Other rows become undefined.
  void (*add_tree)(double* sums, int64_t place, int64_t shards, int64_t width);
};

/// Returns the kernels. The first call opens the CUDA library and requires that load_gpu
/// (base/gpu.h) has succeeded. Throws UserError in a build without nvcc.
const CudaKernels& cuda_kernels();
/// Replaces the kernels. Tests use it to run the source of the kernels on a CPU.
void use_cuda_kernels(const CudaKernels& kernels);

/// Name of the library's entry function, `const CudaKernels* dovetail_fit_cuda_kernels()`.
inline constexpr const char* kCudaEntry = "dovetail_fit_cuda_kernels";

}  // namespace dovetail::fit
