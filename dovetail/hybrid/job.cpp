#include "dovetail/hybrid/job.h"

#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bit>
#include <cstring>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::hybrid {
namespace {

int64_t total_rows(const std::vector<Shard>& shards) {
  int64_t rows = 0;
  for (const Shard& shard : shards) {
    DOVETAIL_CHECK(shard.data == shards[0].data && shard.begin == shards[0].begin + rows,
                   "shards that do not follow one another");
    rows += shard.size;
  }
  return rows;
}

/// Words of eight bytes mixed one after another, as SplitMix64 does (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t state, uint64_t word) {
  uint64_t z = (state ^ word) + 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

uint64_t mix(uint64_t state, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.contiguous();
  const auto* bytes = static_cast<const char*>(flat.const_data_ptr());
  for (size_t left = flat.nbytes(); left > 0;) {
    uint64_t word = 0;
    const size_t size = std::min(left, sizeof(word));
    std::memcpy(&word, bytes, size);
    state = mix(state, word);
    bytes += size;
    left -= size;
  }
  return state;
}

std::string text_of(const at::Tensor& tensor, int64_t from) {
  return fmt::format("{}[{}]", c10::toString(tensor.scalar_type()),
                     fmt::join(tensor.sizes().begin() + from, tensor.sizes().end(), ","));
}

}  // namespace

Job::Job(const std::string& task, c10::DeviceType device, Parameters parameters, std::vector<Shard> shards)
    : name_(task), task_(find_task(task, device)), parameters_(std::move(parameters)), shards_(std::move(shards)) {
  DOVETAIL_CHECK(!shards_.empty(), "task {} on no shards", task);
  DOVETAIL_CHECK(shards_[0].location.type() == device, "task {} on {} for data on {}", task,
                 c10::DeviceTypeName(device, true), shards_[0].location.str());
  for (at::Tensor& parameter : parameters_) parameter = parameter.clone();
  data_ = rows_of(all());
  whole_ = whole_of(shards_[0]);
  for (const size_t index : task_.writes) written_.push_back(at::empty_like(data_[index]));
}

Shard Job::all() const {
  Shard all = shards_[0];
  all.size = total_rows(shards_);
  return all;
}

Partial Job::take() {
  Partial sum = sum_.take(std::ssize(shards_));
  for (size_t i = 0; i < written_.size(); ++i) put_rows(all(), task_.writes[i], written_[i]);
  return sum;
}

std::vector<int64_t> Job::shard_rows() const {
  std::vector<int64_t> rows;
  for (const Shard& shard : shards_) rows.push_back(shard.size);
  return rows;
}

std::string Job::key() const {
  std::string key = name_;
  for (const at::Tensor& parameter : parameters_) key += " " + text_of(parameter, 0);
  key += " on";
  for (const at::Tensor& tensor : data_) key += " " + text_of(tensor, 1);
  for (const at::Tensor& tensor : whole_) key += " of " + text_of(tensor, 1);
  return key + fmt::format(", 2^{} rows", std::bit_width(static_cast<uint64_t>(data_[0].size(0))) - 1);
}

at::Tensor Job::narrow(const at::Tensor& all, int64_t index) const {
  const Shard& shard = shards_.at(static_cast<size_t>(index));
  return all.narrow(0, shard.begin - shards_[0].begin, shard.size);
}

ShardResult Job::compute(int64_t index) const {
  std::vector<at::Tensor> rows;
  for (const at::Tensor& tensor : data_) rows.push_back(narrow(tensor, index));
  ShardResult result;
  for (const size_t written : task_.writes) result.rows.push_back(rows[written] = rows[written].clone());
  Shard shard = shards_[static_cast<size_t>(index)];
  const ResidentData copy(std::move(rows), shard.begin, whole_);
  shard.data = copy.id();
  result.partial = task_.run(parameters_, shard);
  return result;
}

uint64_t Job::digest(const ShardResult& result) {
  uint64_t state = std::bit_cast<uint64_t>(result.partial.weight);
  for (const at::Tensor& tensor : result.partial.tensors) state = mix(state, tensor);
  for (const at::Tensor& tensor : result.rows) state = mix(state, tensor);
  return state;
}

void Job::accept(int64_t index, ShardResult result) {
  for (size_t i = 0; i < result.rows.size(); ++i) narrow(written_[i], index).copy_(result.rows[i]);
  sum_.add(index, std::move(result.partial));
}

}  // namespace dovetail::hybrid
