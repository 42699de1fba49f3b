#include "dovetail/data/text/sampling.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "dovetail/base/error.h"
#include "dovetail/base/rng.h"

namespace dovetail::data {
namespace {

constexpr int kShareBits = 32;

uint64_t scaled(uint64_t samples, uint64_t share) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(samples) * share >> kShareBits);
}

}  // namespace

MixtureOrder::MixtureOrder(const std::vector<double>& weights) {
  double left = 0;
  for (const double weight : weights) left += weight;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double share = i + 1 == weights.size() ? 1.0 : std::clamp(weights[i] / left, 0.0, 1.0);
    shares_.push_back(static_cast<uint64_t>(std::llround(std::ldexp(share, kShareBits))));
    left -= weights[i];
  }
}

size_t MixtureOrder::source_of(uint64_t sample) const {
  size_t source = 0;
  for (; source + 1 < shares_.size(); ++source) {
    const uint64_t before = scaled(sample, shares_[source]);
    if (scaled(sample + 1, shares_[source]) > before) break;
    sample -= before;
  }
  return source;
}

uint64_t MixtureOrder::count(size_t source, uint64_t samples) const {
  for (size_t i = 0; i < source; ++i) samples -= scaled(samples, shares_[i]);
  return scaled(samples, shares_[source]);
}

WindowOrder::WindowOrder(uint64_t seed, int64_t num_tokens, int64_t context,
                         const std::string& name)
    : seed_(seed), context_(context) {
  if (num_tokens < context + 1)
    throw UserError(fmt::format("{} has {} training tokens, a sample of context {} needs {}", name,
                                num_tokens, context, context + 1),
                    "prepare more text, or lower the context");
  // As many windows as fit at any offset below the context. A source with hardly one window has
  // fewer offsets.
  windows_ = std::max<int64_t>(1, (num_tokens - context) / context);
  offsets_ = std::min(context, num_tokens - windows_ * context);
}

int64_t WindowOrder::begin(uint64_t index) const {
  const auto windows = static_cast<uint64_t>(windows_);
  const uint64_t epoch = index / windows;
  const uint64_t window = permuted_index(mix_seed(seed_, epoch), index % windows, windows);
  const uint64_t offset =
      random_below(seed_, RandomStream::kShuffle, epoch, static_cast<uint64_t>(offsets_));
  return static_cast<int64_t>(offset) + static_cast<int64_t>(window) * context_;
}

}  // namespace dovetail::data
