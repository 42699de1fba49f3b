#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::cli {

/// Where a job of iterations stands: `state.safetensors` in its folder, as long as it is not done.
/// A job of the same words that finds one goes on from there: one that torchrun started again when
/// a node died, or that was stopped.
///
/// Node 0 has the file and tells the others; all call the same members in the same order.
class JobState {
 public:
  /// `words`: all that the result depends on. With `fresh` starts over, but for a job that torchrun
  /// started again. UserError where the folder holds the state of other words.
  JobState(Group& group, const std::filesystem::path& folder, const std::string& words, bool fresh);

  /// What was saved last by the job that was stopped; empty: there is none.
  const std::vector<at::Tensor>& stopped() const { return stopped_; }
  /// Its lines (lines, ...) float64, that is what there is to say about each iteration.
  const std::vector<std::vector<double>>& lines() const { return lines_; }

  /// After an iteration: one more line, and the state to go on from. An empty state, of the last
  /// iteration, is not saved. Saving takes 5 % of the time at most: where an iteration is over
  /// sooner, not each is saved. A disk that does not take it is a warning.
  void add(std::vector<double> line, const std::vector<at::Tensor>& state);
  /// The results are written.
  void done();

 private:
  std::filesystem::path path_;
  std::string words_;
  bool saves_;
  std::vector<at::Tensor> stopped_;
  std::vector<std::vector<double>> lines_;
  double next_s_ = 0;
};

}  // namespace dovetail::cli
