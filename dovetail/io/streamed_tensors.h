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

namespace dovetail::io {

struct StreamedTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  /// Name of the tensor that numbers these rows (see CheckpointManifest::rows_of); empty: all rows.
  std::string rows = {};
};

/// Tensors of a checkpoint that are written to disk block by block during the save, each into a
/// file of its own. Only one block is in memory. After a failure nothing more is written, and
/// `finish` throws the failure. So a caller that exchanges blocks with other ranks can continue to
/// the end.
class StreamedTensors {
 public:
  /// Writes files of the checkpoint of `step` into `folder`.
  StreamedTensors(std::filesystem::path folder, int64_t step);

  /// Begins tensors whose rows are appended in parallel. Tensors begun before are complete.
  void begin(const std::vector<StreamedTensor>& tensors);
  /// Appends the next rows of each, on the CPU. A NaN or an infinity is a failure that names the
  /// tensor.
  void append(const std::vector<at::Tensor>& rows);

  /// Waits until all files are on disk, and adds them to `manifest`.
  void finish(CheckpointManifest& manifest);
  /// Throws what cannot be saved: a NaN or an infinity. `finish` throws errors of the disk.
  void check() const;

 private:
  struct Open {
    std::string name, file;
    std::unique_ptr<SafetensorsStream> stream;
  };
  void close();
  bool failed() const { return failure_ != nullptr; }

  std::filesystem::path folder_;
  int64_t step_;
  std::vector<Open> open_;
  /// Previous files, synced while the next ones are written.
  std::future<std::vector<ManifestFile>> closing_;
  std::vector<ManifestFile> files_;
  std::map<std::string, std::string> rows_of_;
  size_t count_ = 0;
  std::exception_ptr failure_;
};

/// Throws UserError that names the tensor if it has a NaN or an infinity.
void check_finite(const std::string& name, const at::Tensor& tensor, int64_t step);

}  // namespace dovetail::io
