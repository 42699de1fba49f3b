#include "dovetail/comm/buckets.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace dovetail::comm {

at::ScalarType sum_dtype(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

int64_t Bucket::elements() const { return std::accumulate(sizes.begin(), sizes.end(), int64_t{0}); }

int64_t Bucket::share() const { return (elements() + group->size() - 1) / group->size(); }

std::vector<Bucket::Piece> Bucket::pieces(int rank) const {
  const int64_t first = rank * share(), end = first + share();
  std::vector<Piece> out;
  int64_t offset = 0;
  for (size_t i = 0; i < parameters.size(); offset += sizes[i++]) {
    const int64_t from = std::max(first, offset), to = std::min(end, offset + sizes[i]);
    if (from < to)
      out.push_back({.parameter = parameters[i], .begin = from - offset, .size = to - from});
  }
  return out;
}

std::vector<Bucket> make_buckets(const std::vector<at::Tensor>& parameters,
                                 const std::vector<std::shared_ptr<Group>>& groups,
                                 int64_t bucket_bytes) {
  struct Open {
    Bucket bucket;
    int64_t used = 0;
  };
  std::vector<Open> open;  // one per kind: group, device and sum dtype
  std::vector<Bucket> full;
  for (size_t i = parameters.size(); i-- > 0;) {
    const at::Tensor& parameter = parameters[i];
    if (groups[i]->size() == 1) continue;
    const auto dtype = sum_dtype(parameter.scalar_type());
    const auto bytes = parameter.numel() * static_cast<int64_t>(c10::elementSize(dtype));
    const auto same_kind = [&](const Open& other) {
      const at::Tensor& first = parameters[other.bucket.parameters.front()];
      return other.bucket.group == groups[i] && first.device() == parameter.device() &&
             sum_dtype(first.scalar_type()) == dtype;
    };
    auto found = std::ranges::find_if(open, same_kind);
    if (found == open.end()) {
      found = open.insert(found, Open{.bucket = {.group = groups[i]}});
    } else if (found->used + bytes > bucket_bytes) {
      full.push_back(std::exchange(found->bucket, {.group = groups[i]}));
      found->used = 0;
    }
    found->used += bytes;
    found->bucket.parameters.push_back(i);
    found->bucket.sizes.push_back(parameter.numel());
  }
  for (Open& last : open) full.push_back(std::move(last.bucket));
  return full;
}

}  // namespace dovetail::comm
