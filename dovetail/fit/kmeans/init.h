#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string_view>

#include "dovetail/fit/kmeans/kmeans.h"

namespace dovetail::fit {

/// Where Lloyd's algorithm starts.
enum class KMeansInit {
  kPlusPlus,  ///< k-means++ (Arthur, Vassilvitskii 2007), of 2 + ln K draws each time the one that
              ///< lowers the sum most
  kParallel,  ///< k-means|| (Bahmani et al. 2012): five rounds of about 2 K rows, of which
              ///< k-means++ makes K
  kRandom,    ///< K different rows
  kFirst,     ///< the first K rows
};
/// "k-means++", "k-means-parallel", "random", "first"; UserError for another name.
KMeansInit parse_kmeans_init(std::string_view name);
bool is_kmeans_init(std::string_view name);

/// Centres (K, D), float64, of rows of x. Draws are keyed by the seed: the same centres for any
/// number of threads. Throws UserError for fewer rows than centres.
at::Tensor initial_centres(KMeansData& data, int64_t num_centres, KMeansInit init, uint64_t seed);

}  // namespace dovetail::fit
