#include "dovetail/jobs/shard_book.h"

#include <algorithm>

#include "dovetail/base/error.h"

namespace dovetail::jobs {

void ShardBook::begin(const std::vector<int64_t>& rows, int64_t iteration, int64_t verify_every) {
  shards_.assign(rows.size(), {});
  num_done_ = 0;
  rows_ = rows.front();
  last_rows_ = rows.back();
  for (int64_t i = 0; i < size(); ++i)
    at(i).verified = verify_every > 0 && (i + iteration) % verify_every == 0;
}

int64_t ShardBook::rows(int64_t begin, int64_t count) const {
  const bool has_last = count > 0 && begin + count == size();
  return count * rows_ + (has_last ? last_rows_ - rows_ : 0);
}

int64_t ShardBook::failed(int64_t shard, size_t device, bool alone) {
  at(shard).failed_by.push_back(device);
  return at(shard).failed_alone += alone ? 1 : 0;
}

bool ShardBook::has_failed(int64_t shard, size_t device) const {
  return std::ranges::count(at(shard).failed_by, device) > 0;
}

bool ShardBook::has_voted(int64_t shard, size_t device) const {
  return std::ranges::count(at(shard).votes, device, &Vote::device) > 0;
}

std::vector<size_t> ShardBook::voters(int64_t shard) const {
  std::vector<size_t> devices;
  for (const Vote& vote : at(shard).votes) devices.push_back(vote.device);
  return devices;
}

void ShardBook::finish(Shard& shard) {
  shard.done = true;
  ++num_done_;
}

ShardBook::Result ShardBook::deliver(int64_t begin, int64_t count, size_t device, uint64_t digest) {
  for (int64_t i = begin; i < begin + count; ++i) {
    DOVETAIL_CHECK(count == 1 || !at(i).verified, "shard {} was not computed alone", i);
    if (at(i).done || has_voted(i, device)) return {Outcome::kDropped};
  }
  Shard& shard = at(begin);
  if (!shard.verified) {
    for (int64_t i = begin; i < begin + count; ++i) finish(at(i));
    return {Outcome::kCounts, device};
  }
  const auto same = std::ranges::find(shard.votes, digest, &Vote::digest);
  if (same == shard.votes.end()) {
    shard.votes.push_back({device, digest});
    return {Outcome::kOpen};
  }
  Result result{Outcome::kCounts, same->device};
  for (const Vote& vote : shard.votes)
    if (vote.digest != digest) result.wrong.push_back(vote.device);
  finish(shard);
  return result;
}

bool ShardBook::accept_unverified(int64_t index, size_t& device) {
  Shard& shard = at(index);
  if (shard.votes.size() != 1) return false;
  device = shard.votes[0].device;
  finish(shard);
  return true;
}

}  // namespace dovetail::jobs
