#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::fit {

/// Choice of the initial centres of k-means.
enum class KMeansInit {
  /// k-means++ (Arthur, Vassilvitskii 2007). Each centre is the best of 2 + ln K drawn rows. A row
  /// is drawn with a probability proportional to its squared distance to the nearest previous
  /// centre. A sample of max(4096, 64 K) rows decides which is the best.
  kPlusPlus,
  /// k-means|| (Bahmani et al. 2012). Each of five rounds draws about 2 K rows. k-means++ then
  /// chooses K of them.
  kParallel,
  kRandom,  ///< K different rows, drawn at random
  kFirst,   ///< the first K rows
};
/// Parses "k-means++", "k-means-parallel", "random" or "first". Throws UserError for another name.
KMeansInit parse_kmeans_init(std::string_view name);
/// Returns true for the names that parse_kmeans_init accepts.
bool is_kmeans_init(std::string_view name);

/// Returns K = `num_centres` initial centres for k-means, (K, D) float64. They are rows of the
/// data. Random draws depend on `seed` alone, so the centres are the same for any number of
/// threads. If rows have weights, draws are in proportion to them, and rows of weight 0 do not
/// exist. Throws UserError if there are fewer rows than centres.
at::Tensor initial_centres(KMeansData& data, int64_t num_centres, KMeansInit init, uint64_t seed);

}  // namespace dovetail::fit
