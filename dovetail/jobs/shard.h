#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace dovetail::jobs {

/// Rows [begin, begin + size) of resident data: what one run of a task works on. A descriptor; the
/// rows stay where they are.
struct Shard {
  int64_t data = 0;  ///< as ResidentData::id
  int64_t begin = 0, size = 0;
  c10::Device location = c10::kCPU;
};

/// All rows of shards of one data, which follow one another (InternalError otherwise).
Shard all_of(const std::vector<Shard>& shards);

/// The rows of a shard of each tensor of its data, or of one: views. Safe from several threads.
std::vector<at::Tensor> rows_of(const Shard& shard);
at::Tensor rows_of(const Shard& shard, size_t index);
/// What its data has for every shard.
std::vector<at::Tensor> whole_of(const Shard& shard);

/// The data's tensor becomes another one: these rows in place of the shard's, the others as they
/// were. Nothing happens where the data is gone. One caller at a time for one data.
void put_rows(const Shard& shard, size_t index, at::Tensor rows);

/// Tensors that lie in this process under an id while this lives. What they are, and which of them
/// a task writes (each shard its own rows), is between the task and whoever makes them.
///
/// Where executors of a runtime share it, nobody writes into a tensor, which a thread that comes
/// back late may still read: what changes is put in its place as another one, and the old one lives
/// as long as somebody holds it.
class ResidentData {
 public:
  /// The first dimension of all tensors is the rows, and they are on one device. The rows count
  /// from `first_row`: for copies of some rows of other data. Of `whole` every shard may read
  /// everything, for example the rows of a table that a list of row numbers is about.
  explicit ResidentData(std::vector<at::Tensor> tensors, int64_t first_row = 0,
                        std::vector<at::Tensor> whole = {});
  ~ResidentData();
  ResidentData(const ResidentData&) = delete;
  ResidentData& operator=(const ResidentData&) = delete;

  int64_t id() const { return id_; }
  /// All its rows, as they are now.
  at::Tensor tensor(size_t index) const { return rows_of(all(), index); }
  /// Of the same shape, dtype and device.
  void put(size_t index, at::Tensor tensor) { put_rows(all(), index, std::move(tensor)); }

  /// All rows in shards of `grain`, the last one shorter. The grain is fixed by the task, never by
  /// the number of threads or devices: partials, and with them the sum's bits, then depend on the
  /// data alone.
  std::vector<Shard> shards(int64_t grain) const;

 private:
  Shard all() const {
    return {.data = id_, .begin = first_row_, .size = rows_, .location = location_};
  }

  int64_t id_, first_row_, rows_;
  c10::Device location_;
};

}  // namespace dovetail::jobs
