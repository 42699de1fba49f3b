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
  std::vector<at::Tensor> tensors;
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
  void put(int64_t id, size_t index, at::Tensor tensor) {
    const std::lock_guard lock(mutex);
    if (const auto found = data.find(id); found != data.end())
      std::swap(found->second.tensors.at(index), tensor);
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
  const std::lock_guard lock(store().mutex);
  id_ = store().next++;
  store().data.emplace(id_, Entry{std::move(tensors), first_row, std::move(whole)});
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

std::vector<at::Tensor> rows_of(const Shards& shards) {
  auto [rows, first_row, whole] = store().find(shards.data);
  for (at::Tensor& tensor : rows) tensor = tensor.narrow(0, shards.begin - first_row, shards.size);
  return rows;
}

at::Tensor rows_of(const Shards& shards, size_t index) {
  const Entry entry = store().find(shards.data);
  return entry.tensors.at(index).narrow(0, shards.begin - entry.first_row, shards.size);
}

std::vector<at::Tensor> whole_tensors(const Shards& shards) {
  return store().find(shards.data).whole;
}

void put_rows(const Shards& shards, size_t index, at::Tensor rows) {
  const auto entry = store().look(shards.data);
  if (!entry) return;
  const at::Tensor& before = entry->tensors.at(index);
  DOVETAIL_CHECK(rows.size(0) == shards.size && rows.sizes().slice(1) == before.sizes().slice(1) &&
                     rows.dtype() == before.dtype() && rows.device() == before.device(),
                 "{} as {} rows of {}", ops::describe(rows), shards.size, ops::describe(before));
  if (shards.size < before.size(0)) {
    const at::Tensor all = before.clone();
    all.narrow(0, shards.begin - entry->first_row, shards.size).copy_(rows);
    rows = all;
  }
  store().put(shards.data, index, std::move(rows));
}

}  // namespace dovetail::jobs
