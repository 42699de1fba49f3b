#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <filesystem>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/io/checkpoint_manifest.h"
#include "dovetail/io/safetensors.h"
#include "dovetail/io/write_queue.h"

namespace dovetail::io {

/// Description of a tensor that is written block by block. A block is a number of consecutive rows.
struct StreamedTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;  ///< (rows that will be written in all, ...)
  /// Name of the tensor with the row numbers, if only some rows are written (see
  /// CheckpointManifest::rows_of). Empty: all rows are written.
  std::string rows = {};
};

/// Writer for the tensors of a checkpoint that are too large to copy. Writes each tensor block by
/// block into a file of its own. A group is one or more tensors whose blocks are appended together.
/// For each group, call `begin` once, then `append` for each block. After the last group, call
/// `finish`.
///
/// A thread writes the blocks, so the caller goes on after it has copied them. Copies take limited
/// memory. While it is full, `append` waits for the disk.
///
/// If a write fails, `begin` and `append` do not throw, and later calls write nothing. `finish`
/// throws the error. So a caller that gathers blocks from other ranks completes the exchange with
/// them even after a failed write.
class StreamedTensors {
 public:
  /// Writes files into `folder`, the temporary folder of the checkpoint of `step`. Their names
  /// begin with `prefix`. `copied_bytes` is the maximum memory of copies. With 0, `append` writes
  /// each block before it returns.
  StreamedTensors(std::filesystem::path folder, int64_t step, int64_t copied_bytes,
                  std::string prefix = {});

  /// Begins a group of tensors. Each later call of `append` adds rows to all of them. All rows of
  /// the previous group must have been appended.
  void begin(const std::vector<StreamedTensor>& tensors);
  /// Appends the next rows of each tensor of the group. `rows` has one block per tensor, on the
  /// CPU, in the order of `begin`. A NaN or an infinity counts as a failure; its error names the
  /// tensor.
  void append(const std::vector<at::Tensor>& rows);

  /// Waits until all files are on disk. A thread that does not call `append` may call it. Adds them
  /// to `manifest.files` and sets `manifest.rows_of`. Throws the error of an earlier failure.
  void finish(CheckpointManifest& manifest);
  /// Throws UserError if an appended block had a NaN or an infinity. Does not throw for a failed
  /// write to the disk; `finish` does.
  void check() const;

 private:
  /// Tensor of the current group, and its file.
  struct Open {
    std::string name, file;
    std::unique_ptr<SafetensorsStream> stream;
  };
  void open_files(const std::vector<StreamedTensor>& tensors);
  void close();
  /// Runs `work` unless an earlier call failed. Stores its exception in `failure_`.
  template <class Work>
  void attempt(const Work& work);

  std::filesystem::path folder_;
  int64_t step_;
  std::string prefix_;
  std::vector<std::string> names_;  ///< tensors of the current group, for the caller's thread
  std::exception_ptr not_finite_;   ///< error of a block that cannot be saved
  // Only tasks of `queue_` use the members from here to `failure_`, until `finish`.
  std::vector<Open> open_;
  /// Files of the previous group. A thread syncs them while the current group is written.
  std::future<std::vector<ManifestFile>> closing_;
  std::vector<ManifestFile> files_;
  std::map<std::string, std::string> rows_of_;
  size_t count_ = 0;
  std::exception_ptr failure_;  ///< error of the disk
  WriteQueue queue_;            ///< last, since its tasks use the other members
};

/// Throws UserError, naming step and tensor, if `tensor` has a NaN or an infinity.
void check_finite(const std::string& name, const at::Tensor& tensor, int64_t step);

}  // namespace dovetail::io
