#include "dovetail/jobs/job.h"

#include <ATen/ops/copy.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"

namespace dovetail::jobs {
namespace {

/// Mixes words of eight bytes one after another, as SplitMix64 does (Steele, Lea, Flood 2014).
uint64_t mix(uint64_t state, uint64_t word) {
  uint64_t z = (state ^ word) + 0x9e3779b97f4a7c15U;
  z = (z ^ (z >> 30U)) * 0xbf58476d1ce4e5b9U;
  z = (z ^ (z >> 27U)) * 0x94d049bb133111ebU;
  return z ^ (z >> 31U);
}

uint64_t mix(uint64_t state, const at::Tensor& tensor) {
  const at::Tensor flat = tensor.cpu().contiguous();
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

Job::Job(const std::string& task, Parameters parameters, const Shards& shards, int64_t place)
    : task_(task), parameters_(std::move(parameters)), shards_(shards), place_(place) {
  DOVETAIL_CHECK(shards.size > 0, "task {} on no shards", task);
  writes_ = find_task(task, shards_.location.type()).writes;
  for (at::Tensor& parameter : parameters_) parameter = parameter.clone();
  data_ = placed_rows(shards_);
  whole_ = whole_tensors(shards_);
  for (const size_t index : writes_) written_.push_back({at::empty_like(data_[index].base)});
}

std::vector<BlockSum> Job::take() {
  std::vector<BlockSum> blocks = sum_.take(place_, shards_.count());
  for (size_t i = 0; i < written_.size(); ++i) {
    std::ranges::sort(written_[i].pieces, {}, &PlacedRows::Piece::begin);
    put_rows(shards_, writes_[i], std::move(written_[i]));
  }
  return blocks;
}

at::Tensor Job::rows_on(DeviceCopies& copies, size_t index, int64_t begin, int64_t size) const {
  const PlacedRows part = data_[index].narrow(begin, size);
  const bool is_written = std::ranges::find(writes_, index) != writes_.end();
  // Rows that the task writes have a new tensor in each job: a copy would not be read again.
  const auto from_base = [&](int64_t first, int64_t count) {
    return is_written ? part.base.narrow(0, first, count)
                      : copies.rows(data_[index].base, begin + first, count);
  };
  if (part.pieces.empty() && !is_written) return from_base(0, size);
  if (part.pieces.size() == 1 && !is_written && part.pieces[0].rows.size(0) == size &&
      part.pieces[0].rows.device() == copies.device())
    return part.pieces[0].rows;
  at::Tensor rows = at::empty_like(part.base, part.base.options().device(copies.device()));
  int64_t next = 0;
  const auto fill = [&](int64_t first, const at::Tensor& from) {
    rows.narrow(0, first, from.size(0)).copy_(from);
  };
  for (const auto& [first, values] : part.pieces) {
    if (next < first) fill(next, from_base(next, first - next));
    fill(first, values);
    next = first + values.size(0);
  }
  if (next < size) fill(next, from_base(next, size - next));
  return rows;
}

std::vector<int64_t> Job::shard_rows() const {
  std::vector<int64_t> rows(static_cast<size_t>(shards_.count()), shards_.grain);
  rows.back() = shards_.part(shards_.count() - 1, 1).size;
  return rows;
}

ShardResult Job::compute(int64_t first, int64_t count, DeviceCopies& copies) const {
  const c10::Device here = shards_.location, there = copies.device();
  std::vector<at::Tensor> rows, whole;
  Parameters parameters;
  Shards shards = shards_.part(first, count);
  const double begin_s = now_seconds();
  for (size_t i = 0; i < data_.size(); ++i)
    rows.push_back(rows_on(copies, i, shards.begin - shards_.begin, shards.size));
  for (const at::Tensor& tensor : whole_) whole.push_back(copies.of(tensor));
  for (const at::Tensor& parameter : parameters_) parameters.push_back(copies.of(parameter));
  const ResidentData copy(rows, shards.begin, std::move(whole));
  shards.data = copy.id();
  shards.location = there;
  ShardResult result{.copy_s = now_seconds() - begin_s};
  result.blocks = call_task(find_task(task_, there.type()), parameters, shards, place_ + first);
  // A GPU has not finished yet. Its time is no time of a copy.
  if (!there.is_cpu()) c10::impl::VirtualGuardImpl(there.type()).synchronizeDevice(there.index());
  const double computed_s = now_seconds();
  for (BlockSum& block : result.blocks) {
    for (at::Tensor& tensor : block.partial.tensors) tensor = tensor.to(here);
    if (at::Tensor& rows = block.partial.of_shards; rows.defined()) rows = rows.to(here);
  }
  for (const size_t written : writes_) result.rows.push_back(rows[written]);
  result.copy_s += now_seconds() - computed_s;
  return result;
}

uint64_t Job::digest(const ShardResult& result) {
  uint64_t state = digest_of(result.rows);
  for (const auto& [first, count, partial] : result.blocks) {
    state = mix(mix(state, std::bit_cast<uint64_t>(partial.weight)), digest_of(partial.tensors));
    if (partial.of_shards.defined()) state = mix(state, partial.of_shards);
  }
  return state;
}

void Job::accept(int64_t first, int64_t count, ShardResult result) {
  const Shards shards = shards_.part(first, count);
  const int64_t begin = shards.begin - shards_.begin;
  for (size_t i = 0; i < result.rows.size(); ++i) {
    if (result.rows[i].device() == shards_.location) {
      written_[i].base.narrow(0, begin, shards.size).copy_(result.rows[i]);
    } else {
      const std::lock_guard lock(pieces_mutex_);
      written_[i].pieces.push_back({begin, std::move(result.rows[i])});
    }
  }
  for (BlockSum& block : result.blocks) sum_.add(std::move(block));
}

std::string job_key(const std::string& task, const Parameters& parameters, const Shards& shards) {
  std::string key = task;
  for (const at::Tensor& parameter : parameters) key += " " + text_of(parameter, 0);
  key += " on";
  for (const PlacedRows& rows : placed_rows(shards)) key += " " + text_of(rows.base, 1);
  for (const at::Tensor& tensor : whole_tensors(shards)) key += " of " + text_of(tensor, 1);
  return key + fmt::format(", 2^{} rows", std::bit_width(static_cast<uint64_t>(shards.size)) - 1);
}

uint64_t digest_of(const std::vector<at::Tensor>& tensors) {
  uint64_t state = 0;
  for (const at::Tensor& tensor : tensors) state = mix(state, tensor);
  return state;
}

}  // namespace dovetail::jobs
