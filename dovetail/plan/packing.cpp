#include "dovetail/plan/packing.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

namespace dovetail::plan {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

bool meet(const Block& a, const Block& b) {
  for (size_t i = 0, j = 0; i < a.spans.size() && j < b.spans.size();) {
    if (a.spans[i].second <= b.spans[j].first)
      ++i;
    else if (b.spans[j].second <= a.spans[i].first)
      ++j;
    else
      return true;
  }
  return false;
}

Packing first_fit(const std::vector<Block>& blocks, const std::vector<int>& order) {
  Packing out{.offsets = std::vector<int64_t>(blocks.size())};
  std::vector<int> placed;  // by offset
  for (const int b : order) {
    const Block& block = blocks[b];
    int64_t at = 0;
    for (const int other : placed) {
      if (out.offsets[other] >= at + block.bytes) break;
      const int64_t end = out.offsets[other] + blocks[other].bytes;
      if (end > at && meet(block, blocks[other])) at = round_up(end, alignment_of(block.bytes));
    }
    out.offsets[b] = at;
    out.bytes = std::max(out.bytes, at + block.bytes);
    placed.insert(std::upper_bound(placed.begin(), placed.end(), at,
                                   [&](int64_t offset, int other) { return offset < out.offsets[other]; }),
                  b);
  }
  return out;
}

}  // namespace

int64_t alignment_of(int64_t bytes) { return bytes >= kPagedBytes ? kPage : kAlignment; }

int64_t planned_bytes(int64_t bytes) { return round_up(bytes, alignment_of(bytes)); }

Packing pack(const std::vector<Block>& blocks) {
  const auto length = [&](int b) { return blocks[b].spans.back().second - blocks[b].spans.front().first; };
  const auto begin = [&](int b) { return blocks[b].spans.front().first; };
  const std::vector<std::function<bool(int, int)>> orders = {
      [&](int a, int b) { return std::pair(-blocks[a].bytes, begin(a)) < std::pair(-blocks[b].bytes, begin(b)); },
      [&](int a, int b) { return std::pair(-length(a), -blocks[a].bytes) < std::pair(-length(b), -blocks[b].bytes); },
      [&](int a, int b) {
        return static_cast<double>(blocks[a].bytes) * length(a) > static_cast<double>(blocks[b].bytes) * length(b);
      },
      [&](int a, int b) { return begin(a) < begin(b); }};
  Packing best;
  for (const auto& before : orders) {
    std::vector<int> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), before);
    Packing made = first_fit(blocks, order);
    if (best.offsets.empty() || made.bytes < best.bytes) best = std::move(made);
  }
  return best;
}

}  // namespace dovetail::plan
