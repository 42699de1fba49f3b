#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "dovetail/data/text/data_config.h"
#include "dovetail/data/text/token_store.h"

namespace dovetail {

struct LoaderOptions {
  uint64_t seed = 0;
  int64_t batch = 1;        ///< samples of a step over all ranks
  int64_t context = 128;    ///< T: a sample is T + 1 tokens
  int64_t total_steps = 1;  ///< for phases, which begin at a fraction of the run
  int rank = 0, world = 1;  ///< rank r gets samples [r * batch / world, (r + 1) * batch / world)
};

/// Training samples. Sample i of step s is a function of (seed, s, i) alone: the source by its
/// weight in the phase of s, the window by a permutation of that source's windows (each once an
/// epoch, a new order and a new offset every epoch). So it resumes exactly at any step and at
/// another world size. Prefetches the next steps on a thread of its own.
class Loader {
 public:
  Loader(const DataConfig& config, const LoaderOptions& options);
  ~Loader();

  /// Tokens of `step` for this rank: (batch of this rank, T + 1) int64 on CPU. Fast when steps come
  /// in order.
  at::Tensor step(int64_t step);

  /// From the next `step` on this rank gets samples [begin, end) of a step. What was prefetched is
  /// made again.
  void set_part(int64_t begin, int64_t end);

  const TokenStore& first_store() const;  ///< tokenizer and validation data of the first source
  /// One line per source for the log: path, tokens, weight, epochs over the run.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail
