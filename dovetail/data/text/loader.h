#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "dovetail/data/text/data_config.h"
#include "dovetail/data/text/token_store.h"

namespace dovetail::data {

struct LoaderOptions {
  uint64_t seed = 0;
  int64_t batch = 1;        ///< samples of a step, summed over all ranks
  int64_t context = 128;    ///< T; a sample has T + 1 tokens
  int64_t total_steps = 1;  ///< steps of the run; a phase begins at a fraction of them
  int rank = 0, world = 1;  ///< rank r gets samples [r * batch / world, (r + 1) * batch / world)
};

/// Loads training samples. Sample i of step s depends on (seed, s, i) alone. The weights of the
/// phase of step s determine its source. A permutation of that source's windows determines its
/// window. Each epoch visits each window once, in a new order and with a new offset. A run can
/// therefore resume exactly at any step and with another world size. A separate thread prefetches
/// the next steps.
class Loader {
 public:
  Loader(const DataConfig& config, const LoaderOptions& options);
  ~Loader();

  /// Returns this rank's tokens of `step`: (samples of this rank, T + 1) int64 on the CPU. Fast if
  /// steps are requested in order.
  at::Tensor step(int64_t step);

  /// Gives this rank samples [begin, end) of each step, from the next call of `step` on. Discards
  /// prefetched steps and prefetches them again.
  void set_part(int64_t begin, int64_t end);

  /// Store of the first source: tokenizer and validation data.
  const TokenStore& first_store() const;
  /// Returns one line per source for the log: path, tokens, weight, epochs over the run.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::data
