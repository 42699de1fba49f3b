#include "dovetail/plan/model/packing.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <utility>

namespace dovetail::plan {
namespace {

int64_t round_up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

bool are_held_at_one_time(const Block& a, const Block& b) {
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

/// Packs the same blocks by first fit in many different orders.
class Packer {
 public:
  explicit Packer(const std::vector<Block>& blocks) : blocks_(blocks), meets_(blocks.size()) {
    for (size_t a = 0; a < blocks.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        if (are_held_at_one_time(blocks[a], blocks[b])) {
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
        if (out.offsets[other] >= 0)
          in_the_way_.emplace_back(out.offsets[other], blocks_[other].bytes);
      std::sort(in_the_way_.begin(), in_the_way_.end());
      int64_t at = 0;
      for (const auto& [offset, bytes] : in_the_way_) {
        if (offset >= at + blocks_[b].bytes) break;
        if (offset + bytes > at)
          at = blocks_[b].anywhere ? offset + bytes
                                   : round_up(offset + bytes, alignment_of(blocks_[b].bytes));
      }
      out.offsets[b] = at;
      out.bytes = std::max(out.bytes, at + blocks_[b].bytes);
    }
    return out;
  }

  int64_t compared() const { return compared_; }  ///< pairs of blocks compared so far

  bool meet(int a, int b) const { return std::ranges::binary_search(meets_[a], b); }

  /// Returns the blocks whose end is the end of the packing.
  std::vector<int> highest(const Packing& packing) const {
    std::vector<int> out;
    for (size_t b = 0; b < blocks_.size(); ++b)
      if (packing.offsets[b] + blocks_[b].bytes == packing.bytes)
        out.push_back(static_cast<int>(b));
    return out;
  }

 private:
  const std::vector<Block>& blocks_;
  std::vector<std::vector<int>> meets_;  // per block: blocks held at the same time
  std::vector<std::pair<int64_t, int64_t>> in_the_way_;
  int64_t compared_ = 0;
};

/// Returns, per block, the maximum bytes held at any time at which the block is held, including
/// itself. No packing is smaller than the largest of these.
std::vector<int64_t> peak_bytes_with(const std::vector<Block>& blocks) {
  std::map<int, int64_t> held;  // changes, then bytes from each time on
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

/// Maximum number of compared pairs of blocks: about a third of a second.
constexpr int64_t kWork = 24'000'000;

/// Way in which `improve` changes an order.
enum class Move {
  kHighest,  ///< moves a block that ends highest forward, by any number of blocks
  kBeside    ///< moves it, or a block held at the same time, directly before another block
             ///< held at that time
};

struct Ordered {
  std::vector<int> order;
  Packing packing;
};

/// Moves one block of `order` forward. Returns false if there is no block to move.
bool move_forward(const Packer& packer, const Packing& now, Move move, std::minstd_rand& random,
                  std::vector<int>& order) {
  const std::vector<int> highest = packer.highest(now);
  int block = highest[random() % highest.size()];
  const auto position = [&](int b) { return std::find(order.begin(), order.end(), b); };
  const auto earlier_beside = [&](int b) {
    std::vector<int> out;
    for (auto at = order.begin(); *at != b; ++at)
      if (packer.meet(*at, b)) out.push_back(*at);
    return out;
  };
  auto to = order.begin();
  if (move == Move::kHighest) {
    const auto from = static_cast<size_t>(position(block) - order.begin());
    if (from == 0) return false;
    to += static_cast<int64_t>(random() % from);
  } else {
    std::vector<int> beside = earlier_beside(block);
    if (!beside.empty() && random() % 2 == 0) {
      block = beside[random() % beside.size()];
      beside = earlier_beside(block);
    }
    if (beside.empty()) return false;
    to = position(beside[random() % beside.size()]);
  }
  const auto from = position(block);
  std::rotate(to, from, from + 1);
  return true;
}

/// Moves blocks forward while the packing does not grow, until many tries in a row do not shrink
/// it. Compares at most `work` pairs.
Packing improve(Packer& packer, Ordered now, Move move, int64_t least, int64_t work) {
  std::minstd_rand random(1);
  const int64_t until = packer.compared() + work;
  const int64_t patience = 500 + 20 * static_cast<int64_t>(now.order.size());
  for (int64_t tries = 0;
       now.packing.bytes > least && packer.compared() < until && tries < patience; ++tries) {
    std::vector<int> order = now.order;
    if (!move_forward(packer, now.packing, move, random, order)) continue;
    Packing made = packer.first_fit(order);
    if (made.bytes > now.packing.bytes) continue;
    if (made.bytes < now.packing.bytes) tries = 0;
    now = {.order = std::move(order), .packing = std::move(made)};
  }
  return std::move(now.packing);
}

}  // namespace

int64_t alignment_of(int64_t bytes) { return bytes >= kPagedBytes ? kPage : kAlignment; }

int64_t planned_bytes(int64_t bytes) { return round_up(bytes, alignment_of(bytes)); }

Packing pack(const std::vector<Block>& blocks, int64_t enough) {
  if (blocks.empty()) return {};
  const std::vector<int64_t> beside = peak_bytes_with(blocks);
  const int64_t least = std::max(*std::max_element(beside.begin(), beside.end()), enough);
  const auto length = [&](int b) {
    return blocks[b].spans.back().second - blocks[b].spans.front().first;
  };
  const auto begin = [&](int b) { return blocks[b].spans.front().first; };
  const std::vector<std::function<bool(int, int)>> orders = {
      [&](int a, int b) {
        return std::pair(-blocks[a].bytes, begin(a)) < std::pair(-blocks[b].bytes, begin(b));
      },
      [&](int a, int b) {
        return std::pair(-length(a), -blocks[a].bytes) < std::pair(-length(b), -blocks[b].bytes);
      },
      [&](int a, int b) {
        return static_cast<double>(blocks[a].bytes) * length(a) >
               static_cast<double>(blocks[b].bytes) * length(b);
      },
      [&](int a, int b) { return begin(a) < begin(b); },
      // Blocks held at the time of peak memory are packed without gaps, the others in the remaining
      // space.
      [&](int a, int b) {
        return std::pair(-beside[a], -blocks[a].bytes) < std::pair(-beside[b], -blocks[b].bytes);
      },
      [&](int a, int b) {
        return std::pair(-beside[a], -length(a)) < std::pair(-beside[b], -length(b));
      }};
  Packer packer(blocks);
  std::vector<Ordered> starts;
  for (const auto& before : orders) {
    std::vector<int> order(blocks.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), before);
    Packing made = packer.first_fit(order);
    starts.push_back({.order = std::move(order), .packing = std::move(made)});
  }
  std::ranges::stable_sort(starts, {}, [](const Ordered& start) { return start.packing.bytes; });
  Packing best = starts.front().packing;
  for (const Move move : {Move::kHighest, Move::kBeside})
    for (const Ordered& start : starts) {
      if (best.bytes <= least) return best;
      Packing made =
          improve(packer, start, move, least, kWork / static_cast<int64_t>(2 * starts.size()));
      if (made.bytes < best.bytes) best = std::move(made);
    }
  return best;
}

}  // namespace dovetail::plan
