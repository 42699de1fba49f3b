#pragma once

#include <functional>
#include <string>
#include <vector>

namespace dovetail::io {

/// Processes that write one checkpoint together, each its own files. All processes make the same
/// calls in the same order. One thread at a time calls.
class CheckpointWriters {
 public:
  virtual ~CheckpointWriters() = default;
  /// Index of this process, from 0. Process 0 makes, renames and removes folders.
  virtual int rank() const = 0;
  /// Runs `work` on every process. Returns the results of all processes, in rank order. Throws
  /// UserError on every process if `work` throws on one: "rank 1: <message>; rank 3: <message>".
  /// Throws an exception that is no UserError if a process has died.
  virtual std::vector<std::string> together(const std::function<std::string()>& work) = 0;
};

}  // namespace dovetail::io
