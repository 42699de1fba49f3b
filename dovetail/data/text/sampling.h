#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dovetail::data {

/// Order in which the samples of a mixture are drawn from its sources. Sample n of the mixture
/// comes from source s = source_of(n), and is sample count(s, n) of that source. Both functions
/// have a closed form, in O(sources). Samples and sources count from 0.
///
/// The rule for sample n: let p be the first source's share of the samples, rounded to a multiple
/// of 2^-32.
///
/// 1. If floor((n + 1) p) > floor(n p), sample n comes from the first source.
/// 2. Otherwise, it is sample n - floor(n p) of the mixture of the other sources. The same rule
///    orders that mixture.
///
/// For every n, a source with share q has n q of the first n samples. This count is exact to within
/// one sample per other source.
class MixtureOrder {
 public:
  /// `weights` has the weight of each source; only their ratios matter.
  explicit MixtureOrder(const std::vector<double>& weights);

  /// Returns the index of the source of sample number `sample`.
  size_t source_of(uint64_t sample) const;
  /// Returns how many of the first `samples` samples come from `source`.
  uint64_t count(size_t source, uint64_t samples) const;

 private:
  /// Share of each source in the mixture of itself and all later sources, in units of 2^-32.
  std::vector<uint64_t> shares_;
};

/// Order of the windows of a source. The tokens of a source are one sequence, and a sample is a
/// window of T + 1 consecutive tokens. Successive windows begin T tokens apart.
///
/// In each epoch, every window is one sample. All epochs have the same number of windows, each
/// epoch in its own order. The first window of an epoch begins at an offset below T that is drawn
/// for the epoch. So windows have other boundaries in each epoch.
class WindowOrder {
 public:
  /// `num_tokens` is the number of tokens of the source, `context` is T, and `name` stands for the
  /// source in errors. Throws UserError if the source has fewer than T + 1 tokens.
  WindowOrder(uint64_t seed, int64_t num_tokens, int64_t context, const std::string& name);

  int64_t windows() const { return windows_; }  ///< windows per epoch
  /// Returns the position in the source at which sample `index` begins. Indices continue from epoch
  /// to epoch. The sample has the T + 1 tokens at positions begin to begin + T.
  int64_t begin(uint64_t index) const;

 private:
  uint64_t seed_;
  int64_t context_, windows_, offsets_;  ///< `offsets_` is the number of possible offsets
};

}  // namespace dovetail::data
