#include "dovetail/moe/balanced_assignment.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/gpu.h"
#include "dovetail/base/operation.h"

namespace dovetail::moe {

namespace {

constexpr double kSinkhornTolerance = 1e-4;
constexpr int kSinkhornRounds = 1000;
constexpr double kLeastColumn = 1e-300;
constexpr double kMostScore = 1 << 14, kScoreUnit = 0x1p-32;
constexpr int64_t kUnreached = std::numeric_limits<int64_t>::max();

/// Solver of the balanced assignment. It places tokens one after another, each by the cheapest path
/// token -> expert -> ... -> expert with a free slot. Each expert on the path passes one of its
/// tokens to the next. Each expert has `floor` slots of its own and may take one of T mod E extra
/// slots. Node E of the graph stands for the extra slots: through it, an extra slot passes from one
/// expert to another.
class BalancedAssignment {
 public:
  BalancedAssignment(std::vector<int64_t> cost, int64_t tokens, int64_t experts)
      : cost_(std::move(cost)),
        experts_(experts),
        floor_(tokens / experts),
        extra_left_(tokens % experts),
        expert_of_(static_cast<size_t>(tokens), -1),
        count_(static_cast<size_t>(experts), 0),
        moves_(static_cast<size_t>(experts * experts)),
        edges_(static_cast<size_t>((experts + 1) * (experts + 1)), kUnreached) {
    for (int64_t e = 0; e < experts; ++e) refresh(e);
  }

  std::vector<int32_t> solve() {
    for (int64_t t = 0; t < static_cast<int64_t>(expert_of_.size()); ++t) place(t);
    return expert_of_;
  }

 private:
  using Move = std::pair<int64_t, int64_t>;  ///< cost of moving the token, index of the token
  using Moves = std::priority_queue<Move, std::vector<Move>, std::greater<>>;

  int64_t cost(int64_t token, int64_t expert) const {
    return cost_[static_cast<size_t>(token * experts_ + expert)];
  }
  int64_t count(int64_t expert) const { return count_[static_cast<size_t>(expert)]; }

  /// Returns the token that is cheapest to move, or {kUnreached, -1} if `from` has no token.
  Move cheapest(int64_t from, int64_t to) {
    Moves& moves = moves_[static_cast<size_t>(from * experts_ + to)];
    while (!moves.empty() && expert_of_[static_cast<size_t>(moves.top().second)] != from)
      moves.pop();
    return moves.empty() ? Move{kUnreached, -1} : moves.top();
  }

  void put(int64_t token, int64_t expert) {
    expert_of_[static_cast<size_t>(token)] = static_cast<int32_t>(expert);
    for (int64_t to = 0; to < experts_; ++to) {
      if (to != expert)
        moves_[static_cast<size_t>(expert * experts_ + to)].emplace(
            cost(token, to) - cost(token, expert), token);
    }
  }

  int64_t& edge(int64_t from, int64_t to) {
    return edges_[static_cast<size_t>(from * (experts_ + 1) + to)];
  }

  /// Updates the edges of an expert whose tokens have changed.
  void refresh(int64_t expert) {
    for (int64_t to = 0; to < experts_; ++to) {
      if (to != expert) edge(expert, to) = cheapest(expert, to).first;
    }
    edge(expert, experts_) = count(expert) == floor_ ? 0 : kUnreached;
    edge(experts_, expert) = count(expert) > floor_ ? 0 : kUnreached;
  }

  /// Finds shortest paths from `token` over the experts and the node of the extra slots
  /// (Bellman-Ford).
  void find_paths(int64_t token) {
    const auto nodes = static_cast<size_t>(experts_) + 1;
    distance_.assign(nodes, kUnreached);
    before_.assign(nodes, -1);
    for (int64_t e = 0; e < experts_; ++e) distance_[static_cast<size_t>(e)] = cost(token, e);
    for (bool changed = true; changed;) {
      changed = false;
      for (int64_t from = 0; from <= experts_; ++from) {
        const int64_t here = distance_[static_cast<size_t>(from)];
        if (here == kUnreached) continue;
        for (int64_t to = 0; to <= experts_; ++to) {
          const int64_t step = edge(from, to);
          if (step == kUnreached || here + step >= distance_[static_cast<size_t>(to)]) continue;
          distance_[static_cast<size_t>(to)] = here + step;
          before_[static_cast<size_t>(to)] = from;
          changed = true;
        }
      }
    }
  }

  void place(int64_t token) {
    find_paths(token);
    int64_t end = -1;
    for (int64_t node = 0; node <= experts_; ++node) {
      const bool free = node == experts_ ? extra_left_ > 0 : count(node) < floor_;
      const int64_t distance = distance_[static_cast<size_t>(node)];
      if (free && distance != kUnreached &&
          (end < 0 || distance < distance_[static_cast<size_t>(end)]))
        end = node;
    }
    DOVETAIL_CHECK(end >= 0, "no slot can be reached for token {}", token);
    if (end == experts_) --extra_left_;
    hand_on(token, end);
  }

  /// Moves one token along each edge of the path to `end`.
  void hand_on(int64_t token, int64_t end) {
    std::vector<std::pair<int64_t, int64_t>> moved;  // token, its new expert
    int64_t node = end;
    for (int64_t from = before_[static_cast<size_t>(node)]; from >= 0;
         from = before_[static_cast<size_t>(node)]) {
      if (from < experts_ && node < experts_) moved.emplace_back(cheapest(from, node).second, node);
      node = from;
    }
    moved.emplace_back(token, node);
    std::vector<int64_t> changed;
    for (const auto& [t, expert] : moved) {
      const int32_t old = expert_of_[static_cast<size_t>(t)];
      if (old >= 0) --count_[static_cast<size_t>(old)];
      ++count_[static_cast<size_t>(expert)];
      put(t, expert);
      changed.push_back(expert);
      if (old >= 0) changed.push_back(old);
    }
    for (const int64_t expert : changed) refresh(expert);
  }

  std::vector<int64_t> cost_;
  int64_t experts_, floor_, extra_left_;
  std::vector<int32_t> expert_of_;
  std::vector<int64_t> count_, distance_, before_;
  std::vector<Moves> moves_;    ///< (from, to); entries of tokens that left `from` are skipped
  std::vector<int64_t> edges_;  ///< (from, to), over experts and node E
};

/// Runs one round: computes the factors of the rows, then of the columns. Returns the sum of
/// changes of the column factors divided by the sum of these factors.
double scale_both(const double* mass, std::vector<double>& of_token,
                  std::vector<double>& of_expert) {
  const size_t experts = of_expert.size();
  std::vector<double> column(experts, 0.0);
  for (size_t t = 0; t < of_token.size(); ++t) {
    const double* row = mass + t * experts;
    const double sum = std::inner_product(row, row + experts, of_expert.begin(), 0.0);
    of_token[t] = 1 / (static_cast<double>(of_token.size()) * sum);
    for (size_t e = 0; e < experts; ++e) column[e] += row[e] * of_token[t];
  }
  double change = 0, total = 0;
  for (size_t e = 0; e < experts; ++e) {
    const double next = 1 / std::max(static_cast<double>(experts) * column[e], kLeastColumn);
    change += std::abs(next - of_expert[e]);
    total += next;
    of_expert[e] = next;
  }
  return change / total;
}

at::Tensor scaled_plan(const at::Tensor& scores) {
  const int64_t tokens = scores.size(0), experts = scores.size(1);
  at::Tensor x = at::nan_to_num(scores.detach().to(at::kDouble), -INFINITY, INFINITY, -INFINITY);
  if (tokens == 0) return x;
  at::Tensor plan = at::nan_to_num((x - x.amax(1, true)).exp(), 1.0).contiguous();
  auto* mass = plan.mutable_data_ptr<double>();
  std::vector<double> of_token(static_cast<size_t>(tokens)),
      of_expert(static_cast<size_t>(experts), 1.0);
  for (int round = 0;
       round < kSinkhornRounds && scale_both(mass, of_token, of_expert) > kSinkhornTolerance;
       ++round) {
  }
  for (size_t t = 0; t < of_token.size(); ++t) {
    for (size_t e = 0; e < of_expert.size(); ++e)
      mass[t * of_expert.size() + e] *= of_token[t] * of_expert[e];
  }
  return plan;
}

at::Tensor balanced(const at::Tensor& scores) {
  const int64_t tokens = scores.size(0), experts = scores.size(1);
  const at::Tensor x =
      at::nan_to_num(scores.detach().to(at::kDouble), -kMostScore).clamp(-kMostScore, kMostScore);
  const at::Tensor units = (x * (-1 / kScoreUnit)).round().to(at::kLong).contiguous();
  const auto* cost = units.const_data_ptr<int64_t>();
  const std::vector<int32_t> expert =
      BalancedAssignment({cost, cost + units.numel()}, tokens, experts).solve();
  return at::tensor(at::ArrayRef<int32_t>(expert), at::kInt);
}

}  // namespace

at::Tensor sinkhorn(const at::Tensor& scores) {
  return operation("dovetail::moe_sinkhorn", {.reads = {scores}}, [](const Operands& inputs) {
    const at::Tensor& of = inputs.reads[0];
    return std::vector{copied_to(scaled_plan(of.cpu()), of.device())};
  })[0];
}

at::Tensor assign_balanced(const at::Tensor& scores) {
  return operation("dovetail::moe_assign_balanced", {.reads = {scores}},
                   [](const Operands& inputs) {
                     const at::Tensor& of = inputs.reads[0];
                     return std::vector{copied_to(balanced(of.cpu()), of.device())};
                   })[0];
}

at::Tensor assign_in_turn(int64_t tokens, int64_t experts, int64_t k, at::Device device) {
  return at::arange(tokens * k, at::TensorOptions(at::kLong).device(device))
      .remainder(experts)
      .to(at::kInt)
      .view({tokens, k});
}

}  // namespace dovetail::moe
