#include "dovetail/plan/packing.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
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

/// First fit in the order that it is given, for many orders of the same blocks.
class Packer {
 public:
  explicit Packer(const std::vector<Block>& blocks) : blocks_(blocks), meets_(blocks.size()) {
    for (size_t a = 0; a < blocks.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        if (meet(blocks[a], blocks[b])) {
          meets_[a].push_back(static_cast<int>(b));
          meets_[b].push_back(static_cast<int>(a));
        }
  }

  Packing first_fit(const std::vector<int>& order) {
    Packing out{.offsets = std::vector<int64_t>(blocks_.size(), -1)};
    for (const int b : order) {
      in_the_way_.clear();
      compared_ += static_cast<int64_t>(meets_[b].size());
      for (const int other : meets_[b])
        if (out.offsets[other] >= 0) in_the_way_.emplace_back(out.offsets[other], blocks_[other].bytes);
      std::sort(in_the_way_.begin(), in_the_way_.end());
      int64_t at = 0;
      for (const auto& [offset, bytes] : in_the_way_) {
        if (offset >= at + blocks_[b].bytes) break;
        if (offset + bytes > at)
          at = blocks_[b].anywhere ? offset + bytes : round_up(offset + bytes, alignment_of(blocks_[b].bytes));
      }
      out.offsets[b] = at;
      out.bytes = std::max(out.bytes, at + blocks_[b].bytes);
    }
    return out;
  }

  int64_t compared() const { return compared_; }  ///< pairs of blocks so far

 private:
  const std::vector<Block>& blocks_;
  std::vector<std::vector<int>> meets_;  // of each block: those held at one time with it
  std::vector<std::pair<int64_t, int64_t>> in_the_way_;
  int64_t compared_ = 0;
};

/// Of each block the most that is held at a time at which it is, itself among it. No packing is smaller than the
/// largest.
std::vector<int64_t> most_held_beside(const std::vector<Block>& blocks) {
  std::map<int, int64_t> held;  // from each time on
  for (const Block& block : blocks)
    for (const auto& [first, last] : block.spans) {
      held[first] += block.bytes;
      held[last] -= block.bytes;
    }
  int64_t now = 0;
  for (auto& [time, bytes] : held) bytes = now += bytes;
  std::vector<int64_t> out;
  for (const Block& block : blocks) {
    int64_t most = 0;
    for (const auto& [first, last] : block.spans)
      for (auto at = held.find(first); at->first < last; ++at) most = std::max(most, at->second);
    out.push_back(most);
  }
  return out;
}

/// Pairs of blocks compared: about a quarter of a second.
constexpr int64_t kWork = 20'000'000;

/// Blocks that end highest come earlier in the order, as long as that does not make it worse, and until it has not made
/// it better for long.
void improve(Packer& packer, const std::vector<Block>& blocks, std::vector<int> order, int64_t least, Packing& best) {
  std::minstd_rand random(1);
  Packing now = best;
  const int64_t patience = 500 + 20 * static_cast<int64_t>(order.size());
  for (int64_t tries = 0; best.bytes > least && packer.compared() < kWork && tries < patience; ++tries) {
    std::vector<size_t> highest;
    for (size_t i = 0; i < order.size(); ++i)
      if (now.offsets[order[i]] + blocks[order[i]].bytes == now.bytes) highest.push_back(i);
    const size_t from = highest[random() % highest.size()];
    if (from == 0) return;
    std::vector<int> changed = order;
    const auto moved = changed.begin() + static_cast<int64_t>(from);
    std::rotate(changed.begin() + static_cast<int64_t>(random() % from), moved, moved + 1);
    Packing made = packer.first_fit(changed);
    if (made.bytes > now.bytes) continue;
    order = std::move(changed);
    now = std::move(made);
    if (now.bytes >= best.bytes) continue;
    best = now;
    tries = 0;
  }
}

}  // namespace

int64_t alignment_of(int64_t bytes) { return bytes >= kPagedBytes ? kPage : kAlignment; }

int64_t planned_bytes(int64_t bytes) { return round_up(bytes, alignment_of(bytes)); }

Packing pack(const std::vector<Block>& blocks, int64_t enough) {
  if (blocks.empty()) return {};
  const std::vector<int64_t> beside = most_held_beside(blocks);
  const int64_t least = std::max(*std::max_element(beside.begin(), beside.end()), enough);
  const auto length = [&](int b) { return blocks[b].spans.back().second - blocks[b].spans.front().first; };
  const auto begin = [&](int b) { return blocks[b].spans.front().first; };
  const std::vector<std::function<bool(int, int)>> orders = {
      [&](int a, int b) { return std::pair(-blocks[a].bytes, begin(a)) < std::pair(-blocks[b].bytes, begin(b)); },
      [&](int a, int b) { return std::pair(-length(a), -blocks[a].bytes) < std::pair(-length(b), -blocks[b].bytes); },
      [&](int a, int b) {
        return static_cast<double>(blocks[a].bytes) * length(a) > static_cast<double>(blocks[b].bytes) * length(b);
      },
      [&](int a, int b) { return begin(a) < begin(b); },
      // What is held at the fullest time lies without gaps, the rest where that leaves room.
      [&](int a, int b) { return std::pair(-beside[a], -blocks[a].bytes) < std::pair(-beside[b], -blocks[b].bytes); }};
  Packer packer(blocks);
  Packing best;
  std::vector<int> best_order;
  for (const auto& before : orders) {
    std::vector<int> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), before);
    Packing made = packer.first_fit(order);
    if (!best.offsets.empty() && made.bytes >= best.bytes) continue;
    best = std::move(made);
    best_order = std::move(order);
  }
  improve(packer, blocks, std::move(best_order), least, best);
  return best;
}

}  // namespace dovetail::plan
