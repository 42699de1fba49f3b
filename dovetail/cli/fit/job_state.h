#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail::cli {

/// Saved progress of an iterative job such as k-means. It is the file `state.safetensors` in the
/// job's folder, and exists until the job is done. After a job was stopped, a job with the same
/// options resumes from this file. So does a job that torchrun restarts because a node died.
///
/// Node 0 reads and writes the file and sends its contents to the other nodes (processes of the
/// job). All nodes call the same members in the same order.
class JobState {
 public:
  /// Reads the state in `folder`, if any. `words` is a text of all options and inputs on which the
  /// result depends. Throws UserError if the folder holds a state that was saved with other
  /// `words`. If `fresh`, ignores and removes the state, unless torchrun restarted the job.
  JobState(comm::Group& group, const std::filesystem::path& folder, const std::string& words,
           bool fresh);

  /// Returns the tensors with which the job resumes: the last ones that `add` saved before it was
  /// stopped. Empty if the job starts from the beginning.
  const std::vector<at::Tensor>& stopped() const { return stopped_; }
  /// Returns the figures of each iteration so far, including the ones before the job was stopped.
  /// Element [i][j] is figure j of iteration i.
  const std::vector<std::vector<double>>& lines() const { return lines_; }

  /// Adds the figures of an iteration to lines(). Saves them in the file with `state`, the tensors
  /// with which the job can resume. An empty `state` marks the last iteration: nothing is saved in
  /// that case. Saving takes at most 5 % of the time: if iterations are short, only some of them
  /// are saved. A failed write only logs a warning.
  void add(std::vector<double> line, const std::vector<at::Tensor>& state);
  /// Removes the file. Call it after the job has written its results.
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
