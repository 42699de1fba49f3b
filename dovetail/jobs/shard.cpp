#include "dovetail/jobs/shard.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::jobs {
namespace {

struct Entry {
  std::vector<PlacedRows> tensors;
  int64_t first_row;
  std::vector<at::Tensor> whole;
};

struct Store {
  std::optional<Entry> look(int64_t id) {
    const std::lock_guard lock(mutex);
    const auto found = data.find(id);
    return found != data.end() ? std::optional(found->second) : std::nullopt;
  }
  Entry find(int64_t id) {
    auto entry = look(id);
    DOVETAIL_CHECK(entry, "no resident data {}", id);
    return *std::move(entry);
  }
  void put(int64_t id, size_t index, PlacedRows rows) {
    const std::lock_guard lock(mutex);
    if (const auto found = data.find(id); found != data.end())
      std::swap(found->second.tensors.at(index), rows);
  }
  /// Returns rows of a tensor, on the device of its data.
  at::Tensor gather(const Shards& shards, size_t index) {
    const std::lock_guard lock(mutex);
    const auto found = data.find(shards.data);
    DOVETAIL_CHECK(found != data.end(), "no resident data {}", shards.data);
    PlacedRows& rows = found->second.tensors.at(index);
    if (!rows.pieces.empty()) rows = {rows.gathered()};
    return rows.base.narrow(0, shards.begin - found->second.first_row, shards.size);
  }

  std::mutex mutex;
  std::map<int64_t, Entry> data;
  int64_t next = 1;
};

Store& store() {
  static Store the_store;
  return the_store;
}

}  // namespace

ResidentData::ResidentData(std::vector<at::Tensor> tensors, int64_t first_row,
                           std::vector<at::Tensor> whole)
    : first_row_(first_row), rows_(tensors.at(0).size(0)), location_(tensors.at(0).device()) {
  for (const at::Tensor& tensor : tensors)
    DOVETAIL_CHECK(tensor.size(0) == rows_ && tensor.device() == location_,
                   "{} rows on {} beside {} on {}", tensor.size(0), tensor.device().str(), rows_,
                   location_.str());
  std::vector<PlacedRows> placed;
  placed.reserve(tensors.size());
  for (at::Tensor& tensor : tensors) placed.push_back({std::move(tensor)});
  const std::lock_guard lock(store().mutex);
  id_ = store().next++;
  store().data.emplace(id_, Entry{std::move(placed), first_row, std::move(whole)});
}

ResidentData::~ResidentData() {
  const std::lock_guard lock(store().mutex);
  store().data.erase(id_);
}

Shards ResidentData::shards(int64_t grain) const {
  DOVETAIL_CHECK(grain > 0, "shards of {} rows", grain);
  Shards shards = all();
  shards.grain = grain;
  return shards;
}

Shards Shards::part(int64_t first, int64_t num) const {
  DOVETAIL_CHECK(first >= 0 && num >= 0 && first + num <= count(), "shards [{}, {}) of {}", first,
                 first + num, count());
  Shards out = *this;
  out.begin = begin + first * grain;
  out.size = std::clamp<int64_t>(size - first * grain, 0, num * grain);
  return out;
}

PlacedRows PlacedRows::narrow(int64_t begin, int64_t size) const {
  PlacedRows part{base.narrow(0, begin, size)};
  for (const Piece& piece : pieces) {
    const int64_t first = std::max(begin, piece.begin);
    const int64_t last = std::min(begin + size, piece.begin + piece.rows.size(0));
    if (first < last)
      part.pieces.push_back(
          {first - begin, piece.rows.narrow(0, first - piece.begin, last - first)});
  }
  return part;
}

at::Tensor PlacedRows::gathered() const {
  if (pieces.empty()) return base;
  at::Tensor all = base.clone();
  for (const Piece& piece : pieces)
    all.narrow(0, piece.begin, piece.rows.size(0)).copy_(piece.rows);
  return all;
}

std::vector<at::Tensor> rows_of(const Shards& shards) {
  std::vector<at::Tensor> rows;
  const size_t count = store().find(shards.data).tensors.size();
  rows.reserve(count);
  while (rows.size() < count) rows.push_back(rows_of(shards, rows.size()));
  return rows;
}

at::Tensor rows_of(const Shards& shards, size_t index) { return store().gather(shards, index); }

std::vector<PlacedRows> placed_rows(const Shards& shards) {
  Entry entry = store().find(shards.data);
  for (PlacedRows& rows : entry.tensors)
    rows = rows.narrow(shards.begin - entry.first_row, shards.size);
  return std::move(entry.tensors);
}

std::vector<at::Tensor> whole_tensors(const Shards& shards) {
  return store().find(shards.data).whole;
}

void put_rows(const Shards& shards, size_t index, PlacedRows rows) {
  const auto entry = store().look(shards.data);
  if (!entry) return;
  const at::Tensor &before = entry->tensors.at(index).base, &base = rows.base;
  DOVETAIL_CHECK(base.size(0) == shards.size && base.sizes().slice(1) == before.sizes().slice(1) &&
                     base.dtype() == before.dtype() && base.device() == before.device(),
                 "{} as {} rows of {}", ops::describe(base), shards.size, ops::describe(before));
  if (shards.size < before.size(0)) {
    const at::Tensor all = entry->tensors.at(index).gathered().clone();
    all.narrow(0, shards.begin - entry->first_row, shards.size).copy_(rows.gathered());
    rows = {all};
  }
  store().put(shards.data, index, std::move(rows));
}

}  // namespace dovetail::jobs
