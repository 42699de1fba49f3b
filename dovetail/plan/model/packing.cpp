#include "dovetail/plan/model/packing.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
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

/// Order of placement with its packing.
struct Ordered {
  std::vector<int> order;  ///< blocks, first placed first
  std::vector<int> rank;   ///< per block: its position in `order`
  Packing packing;
};

/// Offset of a block that is not placed yet.
constexpr int64_t kNowhere = std::numeric_limits<int64_t>::max() / 2;

/// Packs the same blocks by first fit in many different orders.
class Packer {
 public:
  explicit Packer(const std::vector<Block>& blocks) : blocks_(blocks), meets_(blocks.size()) {
    for (const Block& block : blocks) bytes_.push_back(block.bytes);
    for (size_t a = 0; a < blocks.size(); ++a)
      for (size_t b = 0; b < a; ++b)
        if (are_held_at_one_time(blocks[a], blocks[b])) {
          meets_[a].push_back(static_cast<int>(b));
          meets_[b].push_back(static_cast<int>(a));
        }
  }

  Ordered first_fit(std::vector<int> order) {
    Ordered out{.order = std::move(order),
                .rank = std::vector<int>(blocks_.size()),
                .packing = {.offsets = std::vector<int64_t>(blocks_.size(), kNowhere)}};
    for (size_t i = 0; i < out.order.size(); ++i) {
      const int b = out.order[i];
      out.rank[b] = static_cast<int>(i);
      place(b, out.packing);
    }
    return out;
  }

  /// Moves the block at position `from` forward to position `to`. Returns false if the packing
  /// would grow; `now` then keeps its order. A block's offset depends only on earlier blocks held
  /// at the same time. So only blocks beside a changed offset are placed again.
  bool move_forward(Ordered& now, int from, int to) {
    const int moved = now.order[from];
    Packing& made = made_;
    made.bytes = 0;
    made.offsets.assign(blocks_.size(), kNowhere);
    for (int i = 0; i < to; ++i) keep_offset(now.order[i], now.packing, made);
    changed_.assign(blocks_.size(), 0);
    changed_[moved] = 1;
    for (int i = to; i < static_cast<int>(now.order.size()); ++i) {
      // The order after the move: the moved block, then the blocks that it overtakes.
      const int b = i == to ? moved : i <= from ? now.order[i - 1] : now.order[i];
      if (!changed_[b]) {
        keep_offset(b, now.packing, made);
        continue;
      }
      place(b, made);
      if (made.bytes > now.packing.bytes) return false;
      if (b == moved || made.offsets[b] != now.packing.offsets[b])
        for (const int other : meets_[b]) changed_[other] = 1;
    }
    const auto begin = now.order.begin();
    std::rotate(begin + to, begin + from, begin + from + 1);
    for (int i = to; i <= from; ++i) now.rank[now.order[i]] = i;
    std::swap(now.packing, made);
    return true;
  }

  int64_t compared() const { return compared_; }  ///< pairs of blocks compared so far

  /// Returns the blocks held at the same time as `b` that are placed before it.
  std::vector<int> earlier_beside(const Ordered& now, int b) const {
    std::vector<int> out;
    for (const int other : meets_[b])
      if (now.rank[other] < now.rank[b]) out.push_back(other);
    return out;
  }

  /// Returns the blocks whose end is the end of the packing.
  std::vector<int> highest(const Packing& packing) const {
    std::vector<int> out;
    for (size_t b = 0; b < blocks_.size(); ++b)
      if (packing.offsets[b] + blocks_[b].bytes == packing.bytes)
        out.push_back(static_cast<int>(b));
    return out;
  }

 private:
  /// Bytes of a placed block.
  struct Taken {
    int64_t offset, end;
  };

  /// Places block `b` at the lowest free offset. This offset is at least the end of each block that
  /// is in the way. So blocks may be visited in any order. Blocks that end below `at` need no
  /// second visit.
  void place(int b, Packing& packing) {
    compared_ += static_cast<int64_t>(meets_[b].size());
    const int64_t bytes = bytes_[b], mask = (blocks_[b].anywhere ? 1 : alignment_of(bytes)) - 1;
    int64_t at = 0;
    taken_.resize(meets_[b].size());
    Taken* const taken = taken_.data();
    size_t above = 0;  // number of blocks in `taken`, which end above `at`
    for (const int other : meets_[b]) {
      const int64_t offset = packing.offsets[other], end = offset + bytes_[other];
      if (offset < at + bytes && end > at) {
        at = (end + mask) & ~mask;
        continue;
      }
      taken[above] = {offset, end};
      above += end > at && offset != kNowhere;
    }
    for (int i = 0; i < kFewVisits; ++i) {
      const int64_t before = at;
      size_t left = 0;
      for (size_t j = 0; j < above; ++j) {
        const auto [offset, end] = taken[j];
        if (offset < at + bytes && end > at) {
          at = (end + mask) & ~mask;
          continue;
        }
        taken[left] = {offset, end};
        left += end > at;
      }
      above = left;
      if (at == before) return set_offset(b, at, packing);
    }
    const auto is_higher = [](const Taken& x, const Taken& y) { return x.offset > y.offset; };
    Taken* last = taken + above;
    std::make_heap(taken, last, is_higher);
    for (; last != taken && taken->offset < at + bytes; --last) {
      if (taken->end > at) at = (taken->end + mask) & ~mask;
      std::pop_heap(taken, last, is_higher);
    }
    set_offset(b, at, packing);
  }

  void keep_offset(int b, const Packing& from, Packing& to) { set_offset(b, from.offsets[b], to); }

  void set_offset(int b, int64_t offset, Packing& packing) {
    packing.offsets[b] = offset;
    packing.bytes = std::max(packing.bytes, offset + bytes_[b]);
  }

  /// Visits to all other blocks that take less time than their order by offset.
  static constexpr int kFewVisits = 4;

  const std::vector<Block>& blocks_;
  std::vector<int64_t> bytes_;           // per block
  std::vector<std::vector<int>> meets_;  // per block: blocks held at the same time
  int64_t compared_ = 0;
  // Scratch of a placement and of a move.
  std::vector<Taken> taken_;
  std::vector<char> changed_;
  Packing made_;
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

/// Maximum number of compared pairs of blocks: about half a second.
constexpr int64_t kWork = 24'000'000;

/// Way in which `improve` changes an order.
enum class Move {
  kHighest,  ///< moves a block that ends highest forward, by any number of blocks
  kBeside    ///< moves it, or a block held at the same time, directly before another block
             ///< held at that time
};

/// Chooses a block of `now` and an earlier position for it. Returns both positions, or nothing if
/// no block can move.
std::optional<std::pair<int, int>> choose_move(const Packer& packer, const Ordered& now, Move move,
                                               std::minstd_rand& random) {
  const std::vector<int> highest = packer.highest(now.packing);
  int block = highest[random() % highest.size()];
  if (move == Move::kHighest) {
    const int from = now.rank[block];
    if (from == 0) return std::nullopt;
    return std::pair(from, static_cast<int>(random() % static_cast<unsigned>(from)));
  }
  std::vector<int> beside = packer.earlier_beside(now, block);
  if (!beside.empty() && random() % 2 == 0) {
    block = beside[random() % beside.size()];
    beside = packer.earlier_beside(now, block);
  }
  if (beside.empty()) return std::nullopt;
  return std::pair(now.rank[block], now.rank[beside[random() % beside.size()]]);
}

/// Moves blocks forward while the packing does not grow, until many tries in a row do not shrink
/// it. Compares at most `work` pairs.
Packing improve(Packer& packer, Ordered now, Move move, int64_t least, int64_t work) {
  std::minstd_rand random(1);
  const int64_t until = packer.compared() + work;
  const int64_t patience = 500 + 20 * static_cast<int64_t>(now.order.size());
  for (int64_t tries = 0;
       now.packing.bytes > least && packer.compared() < until && tries < patience; ++tries) {
    const auto positions = choose_move(packer, now, move, random);
    if (!positions) continue;
    const int64_t before = now.packing.bytes;
    if (packer.move_forward(now, positions->first, positions->second) && now.packing.bytes < before)
      tries = 0;
  }
  return std::move(now.packing);
}

}  // namespace

int64_t alignment_of(int64_t bytes) { return bytes >= kPagedBytes ? kPage : kAlignment; }

int64_t planned_bytes(int64_t bytes) { return round_up(bytes, alignment_of(bytes)); }

Packing pack(const std::vector<Block>& blocks, int64_t enough, int64_t too_many) {
  if (blocks.empty()) return {};
  const std::vector<int64_t> beside = peak_bytes_with(blocks);
  const int64_t bound = *std::max_element(beside.begin(), beside.end());
  const int64_t least = std::max(bound, enough);
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
    starts.push_back(packer.first_fit(std::move(order)));
  }
  std::ranges::stable_sort(starts, {}, [](const Ordered& start) { return start.packing.bytes; });
  Packing best = starts.front().packing;
  if (bound >= too_many) return best;
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
