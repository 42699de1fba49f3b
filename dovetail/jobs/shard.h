#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include <cstdint>
#include <utility>
#include <vector>

namespace dovetail::jobs {

/// Descriptor of rows [begin, begin + size) of a ResidentData (below), divided into shards of
/// `grain` rows. A shard is the smallest unit of work. The descriptor holds no tensors.
struct Shards {
  int64_t data = 0;  ///< ResidentData::id of the tensors
  int64_t begin = 0, size = 0;
  int64_t grain = 1;                 ///< rows of a shard; the last shard may be shorter
  c10::Device location = c10::kCPU;  ///< device of the tensors

  int64_t count() const { return (size + grain - 1) / grain; }
  /// Returns `num` of these shards, from shard number `first` on.
  Shards part(int64_t first, int64_t num) const;
};

/// Tensor of rows. The current values of some rows may be on other devices, such as labels that a
/// GPU computed and reads again. They stay there until somebody asks for them.
struct PlacedRows {
  /// Values of consecutive rows from row `begin` of `base` on.
  struct Piece {
    int64_t begin;
    at::Tensor rows;
  };
  at::Tensor base;                 ///< all rows
  std::vector<Piece> pieces = {};  ///< disjoint, ascending; they replace the rows of `base`

  /// Returns rows [begin, begin + size). The tensors are views.
  PlacedRows narrow(int64_t begin, int64_t size) const;
  /// Returns the rows on the device of `base`: `base` itself if there are no pieces.
  at::Tensor gathered() const;
};

/// Returns a view of the rows in each tensor of their ResidentData. Thread-safe.
std::vector<at::Tensor> rows_of(const Shards& shards);
/// Returns a view of the rows in tensor `index` of their ResidentData. Thread-safe.
at::Tensor rows_of(const Shards& shards, size_t index);
/// Like rows_of, but leaves rows where they are.
std::vector<PlacedRows> placed_rows(const Shards& shards);
/// Returns the tensors passed as `whole` to the constructor of the ResidentData.
std::vector<at::Tensor> whole_tensors(const Shards& shards);

/// Replaces tensor `index` of the ResidentData by a new tensor. The new tensor has `rows` in place
/// of the rows of `shards`, and the old values in all other rows. Does nothing if the ResidentData
/// no longer exists. Two threads must not call it at the same time for the same ResidentData.
void put_rows(const Shards& shards, size_t index, PlacedRows rows);

/// Set of tensors with equal numbers of rows, on which tasks run. It is registered in this process
/// under an id while this object lives. A task and the code that creates the object must agree on
/// the meaning of each tensor. Both must also know into which tensors the task writes.
///
/// If a Runtime computes on the data, nobody may write into these tensors, since a late thread may
/// still read them. `put` and `put_rows` therefore replace a tensor by a new one. The old one lives
/// as long as somebody holds it.
class ResidentData {
 public:
  /// The first dimension of each of `tensors` is the rows. All tensors must be on one device. The
  /// first row has the number `first_row`. `first_row` is above 0 if the tensors are a copy of some
  /// rows of other data. `whole` holds further tensors that a task may read completely for any
  /// shard. Example: if the rows are row numbers, `whole` holds the table to which they refer.
  explicit ResidentData(std::vector<at::Tensor> tensors, int64_t first_row = 0,
                        std::vector<at::Tensor> whole = {});
  ~ResidentData();
  ResidentData(const ResidentData&) = delete;
  ResidentData& operator=(const ResidentData&) = delete;

  int64_t id() const { return id_; }
  /// Returns the current tensor `index`, with all rows.
  at::Tensor tensor(size_t index) const { return rows_of(all(), index); }
  /// Replaces tensor `index` by `tensor`, which must have the same shape, dtype and device.
  void put(size_t index, at::Tensor tensor) { put_rows(all(), index, {std::move(tensor)}); }

  /// Divides all rows into shards of `grain` rows. Choose the grain by the task, never by the
  /// number of threads or devices. Then the bits of a sum over all shards depend on the data alone.
  Shards shards(int64_t grain) const;

 private:
  Shards all() const {
    return {.data = id_, .begin = first_row_, .size = rows_, .grain = rows_, .location = location_};
  }

  int64_t id_, first_row_, rows_;
  c10::Device location_;
};

}  // namespace dovetail::jobs
