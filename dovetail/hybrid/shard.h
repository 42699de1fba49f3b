#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <vector>

namespace dovetail::hybrid {

/// Rows [begin, begin + size) of resident data: what one run of a task works on. A descriptor; the rows stay where they
/// are.
struct Shard {
  int64_t data = 0;  ///< as ResidentData::id
  int64_t begin = 0, size = 0;
  c10::Device location = c10::kCPU;
};

/// Tensors that lie in this process under an id while this lives. What they are, and which of them a task writes (each
/// shard its own rows), is between the task and whoever makes them.
class ResidentData {
 public:
  /// The first dimension of all tensors is the rows, and they are on one device. The rows count from `first_row`: for
  /// copies of some rows of other data.
  explicit ResidentData(std::vector<at::Tensor> tensors, int64_t first_row = 0);
  ~ResidentData();
  ResidentData(const ResidentData&) = delete;
  ResidentData& operator=(const ResidentData&) = delete;

  int64_t id() const { return id_; }

  /// All rows in shards of `grain`, the last one shorter. The grain is fixed by the task, never by the number of
  /// threads or devices: partials, and with them the sum's bits, then depend on the data alone.
  std::vector<Shard> shards(int64_t grain) const;

 private:
  int64_t id_, first_row_, rows_;
  c10::Device location_;
};

/// The rows of a shard of each tensor of its data: views. Safe from several threads.
std::vector<at::Tensor> rows_of(const Shard& shard);

}  // namespace dovetail::hybrid
