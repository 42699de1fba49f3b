#include "dovetail/moe/choose.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "dovetail/base/operation.h"
#include "dovetail/base/threads.h"
#include "dovetail/moe/choose_gpu.h"
#include "dovetail/moe/slot_order.h"

namespace dovetail::moe {

namespace {

constexpr int64_t kGrainTokens = 256;

/// Sort key of a score: NaN counts as -infinity.
template <class T>
T rank(T score) {
  return std::isnan(score) ? -std::numeric_limits<T>::infinity() : score;
}

/// Keeps the `size` largest values offered so far and their indices, in descending order. Among
/// equal values the earlier offer comes first. The lists are complete after `size` offers.
template <class T>
class Largest {
 public:
  explicit Largest(int64_t size)
      : values_(static_cast<size_t>(size)), indices_(static_cast<size_t>(size)) {}

  void clear() { filled_ = 0; }
  void offer(T value, int64_t index) {
    if (filled_ == values_.size()) {
      if (!(value > values_.back())) return;
    } else {
      ++filled_;
    }
    size_t place = filled_ - 1;
    for (; place > 0 && value > values_[place - 1]; --place) {
      values_[place] = values_[place - 1];
      indices_[place] = indices_[place - 1];
    }
    values_[place] = value;
    indices_[place] = static_cast<int32_t>(index);
  }

  const std::vector<T>& values() const { return values_; }
  const std::vector<int32_t>& indices() const { return indices_; }

 private:
  std::vector<T> values_;
  std::vector<int32_t> indices_;
  size_t filled_ = 0;
};

/// Chooses the experts of one token at a time.
template <class T>
class Chooser {
 public:
  Chooser(int64_t experts, const T* bias, const RoutingSpec& spec)
      : spec_(spec),
        bias_(bias),
        group_size_(experts / spec.groups),
        scores_(static_cast<size_t>(experts)),
        best_(spec.k),
        in_group_(std::min<int64_t>(group_size_, spec.group_score == GroupScore::kTop2 ? 2 : 1)),
        groups_(spec.top_groups) {}

  const std::vector<int32_t>& choose(const T* scores) {
    for (size_t e = 0; e < scores_.size(); ++e) {
      scores_[e] = rank(scores[e] + (bias_ != nullptr ? bias_[e] : T(0)));
    }
    best_.clear();
    if (spec_.top_groups == spec_.groups) {
      offer(0, static_cast<int64_t>(scores_.size()));
      return best_.indices();
    }
    groups_.clear();
    for (int64_t group = 0; group < spec_.groups; ++group) groups_.offer(score_of(group), group);
    std::vector<int32_t> chosen = groups_.indices();
    std::sort(chosen.begin(), chosen.end());  // ties then go to the lowest expert
    for (const int32_t group : chosen) offer(group * group_size_, (group + 1) * group_size_);
    return best_.indices();
  }

 private:
  void offer(int64_t begin, int64_t end) {
    for (int64_t e = begin; e < end; ++e) best_.offer(scores_[static_cast<size_t>(e)], e);
  }
  T score_of(int64_t group) {
    in_group_.clear();
    for (int64_t e = group * group_size_; e < (group + 1) * group_size_; ++e)
      in_group_.offer(scores_[static_cast<size_t>(e)], e);
    return std::accumulate(in_group_.values().begin(), in_group_.values().end(), T(0));
  }

  const RoutingSpec& spec_;
  const T* bias_;
  int64_t group_size_;
  std::vector<T> scores_;
  Largest<T> best_, in_group_, groups_;
};

/// Sets `out` for choices that are not among the `capacity` largest weights of their expert.
/// Choices that already are in `out` do not compete.
template <class T>
void drop_smallest(const at::Tensor& expert, const at::Tensor& weight, int64_t experts,
                   int64_t capacity, std::vector<char>& out) {
  const auto* e = expert.const_data_ptr<int32_t>();
  const auto* w = weight.const_data_ptr<T>();
  std::vector<std::vector<int64_t>> choices(static_cast<size_t>(experts));
  for (int64_t i = 0; i < expert.numel(); ++i) {
    if (!out[static_cast<size_t>(i)]) choices[static_cast<size_t>(e[i])].push_back(i);
  }
  for (auto& of_expert : choices) {
    const auto kept = std::min(of_expert.size(), static_cast<size_t>(capacity));
    // A token chooses an expert once, so choices in index order are tokens in index order.
    std::stable_sort(of_expert.begin(), of_expert.end(),
                     [w](int64_t a, int64_t b) { return rank(w[a]) > rank(w[b]); });
    for (size_t i = kept; i < of_expert.size(); ++i) out[static_cast<size_t>(of_expert[i])] = 1;
  }
}

at::Tensor choose_experts_on_cpu(const at::Tensor& scores, const at::Tensor& bias,
                                 const RoutingSpec& spec) {
  const int64_t tokens = scores.size(0), experts = scores.size(1);
  at::Tensor chosen =
      at::empty({tokens, spec.k}, scores.options().dtype(at::kInt).requires_grad(false));
  auto* to = chosen.mutable_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "choose_experts", [&] {
    const auto* from = scores.const_data_ptr<scalar_t>();
    const auto* biases = bias.defined() ? bias.const_data_ptr<scalar_t>() : nullptr;
    parallel_pieces(tokens, kGrainTokens, [&](int64_t begin, int64_t end) {
      Chooser<scalar_t> chooser(experts, biases, spec);
      for (int64_t t = begin; t < end; ++t) {
        const std::vector<int32_t>& best = chooser.choose(from + t * experts);
        std::copy(best.begin(), best.end(), to + t * spec.k);
      }
    });
  });
  return chosen;
}

at::Tensor assign_slots_on_cpu(const at::Tensor& expert, const at::Tensor& weight,
                               const at::Tensor& order, const at::Tensor& drawn_out,
                               int64_t experts, int64_t capacity, const RoutingSpec& spec) {
  const int64_t k = expert.size(1);
  at::Tensor slots = at::full(expert.sizes(), kDropped, expert.options());
  const auto* e = expert.const_data_ptr<int32_t>();
  auto* slot = slots.mutable_data_ptr<int32_t>();
  const bool* drawn = drawn_out.defined() ? drawn_out.const_data_ptr<bool>() : nullptr;
  const auto is_drawn = [&](int64_t token, int64_t choice) {
    return drawn != nullptr && choice == 1 && drawn[token];
  };

  std::vector<char> out(static_cast<size_t>(expert.numel()), 0);
  if (spec.draw_frees_slot) {
    for (int64_t t = 0; t < expert.size(0); ++t) {
      if (is_drawn(t, 1)) out[static_cast<size_t>(t * k + 1)] = 1;
    }
  }
  if (spec.drop == Drop::kProbability) {
    AT_DISPATCH_FLOATING_TYPES(weight.scalar_type(), "drop_smallest", [&] {
      drop_smallest<scalar_t>(expert, weight, experts, capacity, out);
    });
  }
  std::vector<int64_t> taken(static_cast<size_t>(experts), 0);
  const SlotSequence sequence{.order = order.const_data_ptr<int64_t>(),
                              .tokens = expert.size(0),
                              .k = k,
                              .by_token = spec.slot_order == SlotOrder::kToken};
  for (int64_t place = 0; place < sequence.size(); ++place) {
    const int64_t i = sequence.choice(place);
    if (out[static_cast<size_t>(i)]) continue;
    const int64_t next = taken[static_cast<size_t>(e[i])]++;
    if (is_drawn(i / k, i % k) || (spec.drop == Drop::kPosition && next >= capacity)) continue;
    slot[i] = static_cast<int32_t>(next);
  }
  return slots;
}

}  // namespace

at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias,
                          const RoutingSpec& spec) {
  return operation("dovetail::moe_choose_experts", {.reads = {scores, bias}},
                   [spec](const Operands& inputs) {
                     const auto [scores, bias] = inputs.read<2>();
                     return std::vector{scores.is_cpu() ? choose_experts_on_cpu(scores, bias, spec)
                                                        : gpu::choose_experts(scores, bias, spec)};
                   })[0];
}

at::Tensor count_choices(const at::Tensor& expert, int64_t experts) {
  return operation("dovetail::moe_count_choices", {.reads = {expert.reshape({-1})}},
                   [experts](const Operands& inputs) {
                     const at::Tensor& of = inputs.reads[0];
                     return std::vector{of.is_cpu() ? at::bincount(of, {}, experts)
                                                    : gpu::count_choices(of, experts)};
                   })[0];
}

at::Tensor visiting_order(const at::Tensor& scores, const RoutingSpec& spec) {
  if (!spec.batch_prioritized) return at::arange(scores.size(0), scores.options().dtype(at::kLong));
  return at::argsort(scores.amax(1), /*stable=*/true, /*dim=*/0, /*descending=*/true);
}

at::Tensor assign_slots(const at::Tensor& expert, const at::Tensor& weight, const at::Tensor& order,
                        const at::Tensor& drawn_out, int64_t experts, int64_t capacity,
                        const RoutingSpec& spec) {
  return operation(
      "dovetail::moe_assign_slots", {.reads = {expert, weight, order, drawn_out}},
      [=](const Operands& inputs) {
        const auto [expert, weight, order, drawn_out] = inputs.read<4>();
        const auto assign = expert.is_cpu() ? assign_slots_on_cpu : gpu::assign_slots;
        return std::vector{assign(expert, weight, order, drawn_out, experts, capacity, spec)};
      })[0];
}

at::Tensor choose_rows(const at::Tensor& scores, int64_t capacity) {
  if (!scores.is_cpu()) return gpu::choose_rows(scores, capacity);
  const int64_t tokens = scores.size(0), experts = scores.size(1);
  const at::Tensor by_expert = scores.t().contiguous();
  at::Tensor chosen =
      at::empty({experts, capacity}, scores.options().dtype(at::kInt).requires_grad(false));
  auto* to = chosen.mutable_data_ptr<int32_t>();
  AT_DISPATCH_FLOATING_TYPES(scores.scalar_type(), "choose_rows", [&] {
    const auto* from = by_expert.const_data_ptr<scalar_t>();
    parallel_pieces(experts, 1, [&](int64_t begin, int64_t end) {
      std::vector<int32_t> rows(static_cast<size_t>(tokens));
      for (int64_t e = begin; e < end; ++e) {
        const auto* of_expert = from + e * tokens;
        std::iota(rows.begin(), rows.end(), 0);
        std::partial_sort(rows.begin(), rows.begin() + capacity, rows.end(),
                          [of_expert](int32_t a, int32_t b) {
                            const auto rank_a = rank(of_expert[a]), rank_b = rank(of_expert[b]);
                            return rank_a > rank_b || (rank_a == rank_b && a < b);
                          });
        std::copy(rows.begin(), rows.begin() + capacity, to + e * capacity);
      }
    });
  });
  return chosen;
}

}  // namespace dovetail::moe
