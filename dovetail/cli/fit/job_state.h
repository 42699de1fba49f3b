#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::cli {

/// Saved progress of an iterative job: `state.safetensors` in its folder, until the job is done. A
/// job whose options match the saved ones resumes from this file. The saved job was stopped, or
/// torchrun restarted it after a node died.
///
/// Node 0 reads and writes the file and sends its contents to all others. All nodes call the same
/// members in the same order.
class JobState {
 public:
  /// `words`: text of all options and inputs on which the result depends. With `fresh` the job
  /// starts over, unless torchrun restarted it. Throws UserError if the folder holds the state of a
  /// job with other words.
  JobState(comm::Group& group, const std::filesystem::path& folder, const std::string& words,
           bool fresh);

  /// Returns the last saved state of the stopped job; empty if there is none.
  const std::vector<at::Tensor>& stopped() const { return stopped_; }
  /// Returns the figures of each iteration so far, (iterations, figures) float64.
  const std::vector<std::vector<double>>& lines() const { return lines_; }

  /// Adds the figures of an iteration, and saves the state to resume from. An empty state means the
  /// last iteration; it is not saved. Saving takes at most 5 % of the time. So if iterations are
  /// short, only some of them are saved. A failed write only logs a warning.
  void add(std::vector<double> line, const std::vector<at::Tensor>& state);
  /// Removes the file. The results have been written.
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
