#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::fit {

/// Choice of the initial centres of k-means.
enum class KMeansInit {
  kPlusPlus,  ///< k-means++ (Arthur, Vassilvitskii 2007): the best of 2 + ln K drawn rows for each
              ///< centre
  kParallel,  ///< k-means|| (Bahmani et al. 2012): five rounds draw about 2 K rows each; k-means++
              ///< reduces them to K
  kRandom,    ///< K different rows
  kFirst,     ///< the first K rows
};
/// Parses "k-means++", "k-means-parallel", "random" or "first". Throws UserError for another name.
KMeansInit parse_kmeans_init(std::string_view name);
bool is_kmeans_init(std::string_view name);

/// Returns initial centres (K, D) float64, which are rows of x. Random draws depend on the seed
/// alone, so the centres are the same for any number of threads. Throws UserError for fewer rows
/// than centres.
at::Tensor initial_centres(KMeansData& data, int64_t num_centres, KMeansInit init, uint64_t seed);

}  // namespace dovetail::fit
