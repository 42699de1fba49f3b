#include "dovetail/io/streamed_tensors.h"

#include <ATen/ops/aminmax.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::io {
namespace {

/// Returns true if no element is NaN or infinity. Both show in the minimum or the maximum, which
/// takes one pass over memory and no temporary.
bool all_finite(const at::Tensor& tensor) {
  if (!tensor.is_floating_point() || tensor.numel() == 0) return true;
  const bool narrow = tensor.element_size() < 2;  // ATen has no reductions over 8-bit floats
  const auto [low, high] = at::aminmax(narrow ? tensor.to(at::kFloat) : tensor);
  return std::isfinite(low.item<double>()) && std::isfinite(high.item<double>());
}

}  // namespace

void check_finite(const std::string& name, const at::Tensor& tensor, int64_t step) {
  if (all_finite(tensor)) return;
  throw UserError(
      fmt::format("checkpoint of step {} refused: '{}' has a NaN or an infinity", step, name),
      "the run has diverged; go on from the last checkpoint, with a lower learning rate or "
      "clipping");
}

StreamedTensors::StreamedTensors(std::filesystem::path folder, int64_t step, int64_t copied_bytes,
                                 std::string prefix)
    : folder_(std::move(folder)), step_(step), prefix_(std::move(prefix)), queue_(copied_bytes) {}

template <class Work>
void StreamedTensors::attempt(const Work& work) try {
  if (failure_ == nullptr) work();
} catch (...) {
  failure_ = std::current_exception();
}

void StreamedTensors::begin(const std::vector<StreamedTensor>& tensors) {
  names_.clear();
  for (const StreamedTensor& tensor : tensors) names_.push_back(tensor.name);
  queue_.push(0, [this, tensors] { attempt([&] { open_files(tensors); }); });
}

void StreamedTensors::open_files(const std::vector<StreamedTensor>& tensors) {
  close();
  for (const StreamedTensor& tensor : tensors) {
    const std::string file = fmt::format("{}rows-{:05}.safetensors", prefix_, ++count_);
    open_.push_back({.name = tensor.name,
                     .file = file,
                     .stream = std::make_unique<SafetensorsStream>(folder_ / file, tensor.name,
                                                                   tensor.dtype, tensor.shape)});
    if (!tensor.rows.empty()) rows_of_[tensor.name] = tensor.rows;
  }
}

void StreamedTensors::append(const std::vector<at::Tensor>& rows) {
  if (not_finite_ != nullptr) return;
  DOVETAIL_CHECK(rows.size() == names_.size(), "checkpoint: {} blocks for {} tensors", rows.size(),
                 names_.size());
  try {
    for (size_t i = 0; i < rows.size(); ++i) check_finite(names_[i], rows[i], step_);
  } catch (const UserError&) {
    not_finite_ = std::current_exception();
    return;
  }
  std::vector<at::Tensor> blocks = rows;
  int64_t bytes = 0;
  for (at::Tensor& block : blocks) {
    // A block may be a view of rows that the next step changes.
    if (queue_.beside()) block = block.clone(at::MemoryFormat::Contiguous);
    bytes += static_cast<int64_t>(block.nbytes());
  }
  if (bytes == 0) return;
  queue_.push(bytes, [this, blocks = std::move(blocks)] {
    attempt([&] {
      for (size_t i = 0; i < blocks.size(); ++i) open_[i].stream->append(blocks[i]);
    });
  });
}

/// Syncs the open files on a thread, after the previous ones. So few files are open at a time.
void StreamedTensors::close() {
  if (closing_.valid()) std::ranges::move(closing_.get(), std::back_inserter(files_));
  if (open_.empty()) return;
  closing_ = std::async(std::launch::async, [open = std::exchange(open_, {})] {
    std::vector<ManifestFile> files;
    for (const Open& tensor : open) {
      const std::string sha256 = tensor.stream->commit();
      files.push_back({tensor.file, tensor.stream->bytes_written(), sha256, {tensor.name}});
    }
    return files;
  });
}

void StreamedTensors::check() const {
  if (not_finite_ != nullptr) std::rethrow_exception(not_finite_);
}

void StreamedTensors::finish(CheckpointManifest& manifest) {
  queue_.wait();
  if (failure_ != nullptr) std::rethrow_exception(failure_);
  close();  // starts to sync the files of the last tables
  close();  // waits for them
  std::ranges::move(files_, std::back_inserter(manifest.files));
  manifest.rows_of = std::move(rows_of_);
}

}  // namespace dovetail::io
