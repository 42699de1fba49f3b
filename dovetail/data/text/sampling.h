#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dovetail::data {

/// Maps each sample of a mixture to its source and to its index within that source. Both have a
/// closed form, in O(sources).
///
/// Shares are exact at every length: the first n samples contain the share of each source to within
/// one sample. Let p be the first source's share, as a multiple of 2^-32. Sample n goes to the
/// first source iff floor((n + 1) p) > floor(n p). Otherwise, it is sample n - floor(n p) of the
/// mixture of the other sources.
class MixtureOrder {
 public:
  explicit MixtureOrder(const std::vector<double>& weights);

  size_t source_of(uint64_t sample) const;
  /// Returns how many of the first `samples` samples come from `source`.
  uint64_t count(size_t source, uint64_t samples) const;

 private:
  /// Share of each source among itself and the later sources, in units of 2^-32.
  std::vector<uint64_t> shares_;
};

/// Positions of a source's windows of T + 1 tokens. Each epoch has the same number of windows, in
/// its own order. Each epoch begins at its own offset below T, so that the windows have other
/// boundaries.
class WindowOrder {
 public:
  /// Throws UserError, with `name`, if the source has fewer than T + 1 tokens.
  WindowOrder(uint64_t seed, int64_t num_tokens, int64_t context, const std::string& name);

  int64_t windows() const { return windows_; }  ///< windows per epoch
  /// Returns the first token of the source's sample `index`. Its window is [begin, begin + T].
  int64_t begin(uint64_t index) const;

 private:
  uint64_t seed_;
  int64_t context_, windows_, offsets_;
};

}  // namespace dovetail::data
