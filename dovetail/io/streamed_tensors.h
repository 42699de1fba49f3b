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

namespace dovetail {

struct StreamedTensor {
  std::string name;
  at::ScalarType dtype;
  std::vector<int64_t> shape;
  /// The tensor with the numbers of these rows (see CheckpointManifest::rows_of); empty: all rows.
  std::string rows = {};
};

/// Tensors of a checkpoint that go to the disk block by block while it is saved, each into a file
/// of its own: what is in memory is a block. After a failure nothing more is written, and `finish`
/// throws it: who hands out blocks with other ranks goes on to the end.
class StreamedTensors {
 public:
  /// Files in `folder`, of the checkpoint of `step`.
  StreamedTensors(std::filesystem::path folder, int64_t step);

  /// Tensors whose rows come next, side by side; those before are complete.
  void begin(const std::vector<StreamedTensor>& tensors);
  /// The next rows of each, on the CPU. A NaN or an infinity is a failure that names the tensor.
  void append(const std::vector<at::Tensor>& rows);

  /// Waits until all is on the disk, and adds it to `manifest`.
  void finish(CheckpointManifest& manifest);
  /// Throws what cannot be saved, a NaN or an infinity; `finish` throws what the disk did not take.
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
  std::future<std::vector<ManifestFile>> closing_;  ///< to the disk while the next ones are written
  std::vector<ManifestFile> files_;
  std::map<std::string, std::string> rows_of_;
  size_t count_ = 0;
  std::exception_ptr failure_;
};

/// UserError naming the tensor if it has a NaN or an infinity.
void check_finite(const std::string& name, const at::Tensor& tensor, int64_t step);

}  // namespace dovetail
