#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace dovetail {

/// Which source a sample of a mixture comes from, and which of that source's samples it is: in
/// closed form, O(sources).
///
/// Shares are exact at every length: of the first n samples, source j has its share to within one.
/// Sample n goes to the first source iff floor((n + 1) p) > floor(n p), p its share in units of
/// 2^-32; else it is sample n - floor(n p) of the mixture of the others.
class MixtureOrder {
 public:
  explicit MixtureOrder(const std::vector<double>& weights);

  size_t source_of(uint64_t sample) const;
  /// How many of the first `samples` come from `source`.
  uint64_t count(size_t source, uint64_t samples) const;

 private:
  std::vector<uint64_t> shares_;  ///< of what the sources before leave over, in units of 2^-32
};

/// Where the windows of T + 1 tokens of a source lie. Every epoch has the same number of them,
/// begins at an offset of its own below T (so that windows are cut elsewhere) and takes them in an
/// order of its own.
class WindowOrder {
 public:
  /// Throws UserError, with `name`, if there is no whole window.
  WindowOrder(uint64_t seed, int64_t num_tokens, int64_t context, const std::string& name);

  int64_t windows() const { return windows_; }  ///< an epoch
  /// First token of the source's sample `index`; the window is [begin, begin + T].
  int64_t begin(uint64_t index) const;

 private:
  uint64_t seed_;
  int64_t context_, windows_, offsets_;
};

}  // namespace dovetail
