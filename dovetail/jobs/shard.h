#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace dovetail::jobs {

/// Rows [begin, begin + size) of resident data, the input of one run of a task. This is only a
/// descriptor: the rows are not copied.
struct Shard {
  int64_t data = 0;  ///< ResidentData::id of its data
  int64_t begin = 0, size = 0;
  c10::Device location = c10::kCPU;
};

/// Returns one shard with all rows of these shards. They must be consecutive and have the same
/// data; throws InternalError otherwise.
Shard all_of(const std::vector<Shard>& shards);

/// Returns the shard's rows of each tensor of its data, or of tensor `index`. They are views.
/// Thread-safe.
std::vector<at::Tensor> rows_of(const Shard& shard);
at::Tensor rows_of(const Shard& shard, size_t index);
/// Returns the tensors of its data that every shard may read as a whole (`whole` of ResidentData).
std::vector<at::Tensor> whole_of(const Shard& shard);

/// Replaces tensor `index` of the data by a new one, with `rows` in place of the shard's rows.
/// Other rows keep their values. Does nothing if the data no longer exists. One caller at a time
/// per data.
void put_rows(const Shard& shard, size_t index, at::Tensor rows);

/// Tensors of this process, registered under an id while this object lives. Their meaning is agreed
/// between a task and the code that creates them. So is the list of tensors in which a task writes
/// the rows of its shard.
///
/// If executors of a runtime share the data, nobody may write into a tensor. A thread that is late
/// may still read it. A changed tensor replaces the old one, which lives as long as somebody holds
/// it.
class ResidentData {
 public:
  /// The first dimension of all tensors is the rows, and all are on one device. Row numbers begin
  /// with `first_row`, which serves copies of some rows of other data. Every shard may read all of
  /// `whole`. An example is the table to which a list of row numbers refers.
  explicit ResidentData(std::vector<at::Tensor> tensors, int64_t first_row = 0,
                        std::vector<at::Tensor> whole = {});
  ~ResidentData();
  ResidentData(const ResidentData&) = delete;
  ResidentData& operator=(const ResidentData&) = delete;

  int64_t id() const { return id_; }
  /// Returns tensor `index` with all rows, in its current version.
  at::Tensor tensor(size_t index) const { return rows_of(all(), index); }
  /// Replaces tensor `index` by another one of the same shape, dtype and device.
  void put(size_t index, at::Tensor tensor) { put_rows(all(), index, std::move(tensor)); }

  /// Returns all rows in shards of `grain` rows; the last one may be shorter. The task determines
  /// the grain, never the number of threads or devices. So the partials and the bits of their sum
  /// depend on the data alone.
  std::vector<Shard> shards(int64_t grain) const;

 private:
  Shard all() const {
    return {.data = id_, .begin = first_row_, .size = rows_, .location = location_};
  }

  int64_t id_, first_row_, rows_;
  c10::Device location_;
};

}  // namespace dovetail::jobs
