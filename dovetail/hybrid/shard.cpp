#include "dovetail/hybrid/shard.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::hybrid {
namespace {

struct Entry {
  std::vector<at::Tensor> tensors;
  int64_t first_row;
};

struct Store {
  std::mutex mutex;
  std::map<int64_t, Entry> data;
  int64_t next = 1;
};

Store& store() {
  static Store the_store;
  return the_store;
}

}  // namespace

ResidentData::ResidentData(std::vector<at::Tensor> tensors, int64_t first_row)
    : first_row_(first_row), rows_(tensors.at(0).size(0)), location_(tensors.at(0).device()) {
  for (const at::Tensor& tensor : tensors)
    DOVETAIL_CHECK(tensor.size(0) == rows_ && tensor.device() == location_, "{} rows on {} beside {} on {}",
                   tensor.size(0), tensor.device().str(), rows_, location_.str());
  const std::lock_guard lock(store().mutex);
  id_ = store().next++;
  store().data.emplace(id_, Entry{std::move(tensors), first_row});
}

ResidentData::~ResidentData() {
  const std::lock_guard lock(store().mutex);
  store().data.erase(id_);
}

std::vector<Shard> ResidentData::shards(int64_t grain) const {
  DOVETAIL_CHECK(grain > 0, "shards of {} rows", grain);
  std::vector<Shard> all;
  for (int64_t begin = 0; begin < rows_; begin += grain)
    all.push_back(
        {.data = id_, .begin = first_row_ + begin, .size = std::min(grain, rows_ - begin), .location = location_});
  return all;
}

std::vector<at::Tensor> rows_of(const Shard& shard) {
  std::vector<at::Tensor> rows;
  int64_t begin = shard.begin;
  {
    const std::lock_guard lock(store().mutex);
    const auto found = store().data.find(shard.data);
    DOVETAIL_CHECK(found != store().data.end(), "no resident data {}", shard.data);
    rows = found->second.tensors;
    begin -= found->second.first_row;
  }
  for (at::Tensor& tensor : rows) tensor = tensor.narrow(0, begin, shard.size);
  return rows;
}

}  // namespace dovetail::hybrid
