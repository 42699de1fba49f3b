#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

#include "dovetail/data/text/data_config.h"
#include "dovetail/data/text/token_store.h"

namespace dovetail::data {

struct LoaderOptions {
  uint64_t seed = 0;        ///< seed of the order of samples
  int64_t batch = 1;        ///< samples of a step, summed over all ranks
  int64_t context = 128;    ///< T, the context length of the model; a sample has T + 1 tokens
  int64_t total_steps = 1;  ///< steps of the run; a phase begins at a fraction of them
  /// Index of this rank, and number of ranks. Rank r gets these samples of a step:
  /// [r * batch / world, (r + 1) * batch / world).
  int rank = 0, world = 1;
};

/// Loads the training samples of a language model from one or more sources (prepared folders). A
/// sample is a window: T + 1 consecutive tokens of a source.
///
/// Sample i of step s depends on (seed, s, i) alone:
///
/// 1. MixtureOrder chooses its source, by the mixture of the phase to which step s belongs.
/// 2. WindowOrder chooses its window, by a permutation of the source's windows.
///
/// In each epoch of a source, each of its windows is one sample. Each epoch has a new order and a
/// new offset of the windows. A run can therefore resume exactly at any step and with another world
/// size. A separate thread prefetches the next steps.
class Loader {
 public:
  /// Opens the sources of all mixtures of `config`. Throws UserError if two have different
  /// tokenizers or one has fewer than T + 1 training tokens.
  Loader(const DataConfig& config, const LoaderOptions& options);
  ~Loader();

  /// Returns this rank's tokens of `step`: (samples of this rank, T + 1) int64 on the CPU. Fast if
  /// steps are requested in order.
  at::Tensor step(int64_t step);

  /// Sets the part of each step that later calls of `step` return: samples [begin, end). Discards
  /// prefetched steps and prefetches them again.
  void set_part(int64_t begin, int64_t end);

  /// Returns the tokens of the first source. A run takes its tokenizer and validation data from
  /// there.
  const TokenStore& first_store() const;
  /// Returns one line per source for the log: path, number of tokens, share of the run's samples,
  /// number of epochs.
  std::string summary() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace dovetail::data
