#include "dovetail/moe/device_rows.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "dovetail/base/error.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/operation.h"
#include "dovetail/moe/choose.h"
#include "dovetail/moe/choose_gpu.h"
#include "dovetail/moe/cuda_kernels.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/moe/row_weights.h"
#include "dovetail/ops/rows_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr const char* kExpertsOp = "moe_experts";

/// Does as gpu::rank_by_slot for choices on the CPU.
gpu::Ranks rank_on_cpu(const at::Tensor& expert, const at::Tensor& slot, int64_t experts) {
  const at::Tensor slots = slot.view({-1}),
                   by_slot = at::argsort(slots, /*stable=*/true, /*dim=*/0);
  gpu::Ranks out = {.rank = at::full_like(slots, kDropped),
                    .count = at::zeros({experts}, slots.options().dtype(at::kLong))};
  const auto* order = by_slot.const_data_ptr<int64_t>();
  const auto* of_choice = expert.const_data_ptr<int32_t>();
  for (int64_t i = 0; i < slots.numel(); ++i) {
    const int64_t choice = order[i];
    if (slots.const_data_ptr<int32_t>()[choice] < 0) continue;
    out.rank.mutable_data_ptr<int32_t>()[choice] =
        static_cast<int32_t>(out.count.mutable_data_ptr<int64_t>()[of_choice[choice]]++);
  }
  return out;
}

int64_t round_up(int64_t count, int64_t multiple) {
  return (count + multiple - 1) / multiple * multiple;
}

/// Does as kernel `place_rows` for choices on the CPU.
void place_on_cpu(const RowsProblem& p) {
  int64_t next = 0;
  for (int64_t e = 0; e < p.experts; ++e) {
    p.begin[e] = next;
    next += p.capacity > 0 ? p.capacity : round_up(p.count[e] + p.spare, p.multiple);
    p.ends[e] = static_cast<int32_t>(next);
  }
  std::fill_n(p.choice, p.places, p.tokens * p.k);
  std::fill_n(p.token, p.places, 0);
  for (int64_t choice = 0; choice < p.tokens * p.k; ++choice) {
    int32_t& place = p.places_of_token[choice];
    place = kDropped;
    const int64_t rank = p.rank[choice];
    if (rank < 0 || (p.capacity > 0 && rank >= p.capacity)) continue;
    place = static_cast<int32_t>(p.begin[p.expert[choice]] + rank);
    p.choice[place] = choice;
    p.token[place] = static_cast<int32_t>(choice / p.k);
  }
  for (int64_t t = 0; t < p.tokens; ++t)
    std::sort(p.places_of_token + t * p.k, p.places_of_token + (t + 1) * p.k);
}

DeviceRows number_places(const at::Tensor& expert, const at::Tensor& slot, const at::Tensor& kept,
                         int64_t experts, int64_t capacity, int64_t places, int64_t multiple) {
  const auto longs = expert.options().dtype(at::kLong);
  const gpu::Ranks ranks = expert.is_cpu() && !kept.defined()
                               ? rank_on_cpu(expert, slot, experts)
                               : gpu::ranks_of(expert, slot, experts, kept);
  DeviceRows to = {.choice = at::empty({places}, longs),
                   .token = at::empty({places}, expert.options()),
                   .places_of_token = at::empty(expert.sizes(), expert.options()),
                   .ends = at::empty({experts}, expert.options())};
  if (expert.is_meta()) return to;
  at::Tensor begin = at::empty({experts}, longs);
  const RowsProblem problem = {.tokens = expert.size(0),
                               .k = expert.size(1),
                               .experts = experts,
                               .places = places,
                               .capacity = capacity,
                               .spare = 1,
                               .multiple = multiple,
                               .expert = expert.const_data_ptr<int32_t>(),
                               .rank = ranks.rank.const_data_ptr<int32_t>(),
                               .count = ranks.count.const_data_ptr<int64_t>(),
                               .begin = begin.mutable_data_ptr<int64_t>(),
                               .ends = to.ends.mutable_data_ptr<int32_t>(),
                               .choice = to.choice.mutable_data_ptr<int64_t>(),
                               .token = to.token.mutable_data_ptr<int32_t>(),
                               .places_of_token = to.places_of_token.mutable_data_ptr<int32_t>()};
  expert.is_cuda() ? cuda_kernels_for(kExpertsOp).place_rows(problem) : place_on_cpu(problem);
  return to;
}

/// Tensors that `gather` makes.
struct GatheredPlaces {
  at::Tensor rows;  ///< (P, C): weight[p] * x[token[p]]
  at::Tensor dots;  ///< (P) float32: <x[token[p]], other[p]>; undefined without `other`
};

GatheredPlaces gather_now(const at::Tensor& x, const at::Tensor& token, const at::Tensor& weight,
                          const at::Tensor& other) {
  GatheredPlaces out{.rows = at::empty({token.size(0), x.size(1)}, x.options()), .dots = {}};
  if (other.defined()) out.dots = at::zeros(weight.sizes(), weight.options());
  if (x.is_meta() || out.rows.numel() == 0) return out;
  if (x.size(0) == 0) {  // all places are spare
    out.rows.zero_();
    return out;
  }
  const ops::GatherRowsProblem problem = {
      .storage = ops::storage_of(x),
      .rows = token.size(0),
      .width = x.size(1),
      .x = x.const_data_ptr(),
      .row = token.const_data_ptr<int32_t>(),
      .weight = weight.const_data_ptr<float>(),
      .y = out.rows.mutable_data_ptr(),
      .other = other.defined() ? other.const_data_ptr() : nullptr,
      .dots = other.defined() ? out.dots.mutable_data_ptr<float>() : nullptr};
  x.is_cuda() ? cuda_kernels_for(kExpertsOp).gather_rows({.rows = problem, .place = nullptr})
              : ops::gather_rows(problem);
  return out;
}

/// Gathers the rows of all places. x (T, C) is contiguous; weight: (P) float32; other: (P, C) or
/// undefined.
GatheredPlaces gather(const at::Tensor& x, const DeviceRows& to, const at::Tensor& weight,
                      const at::Tensor& other = {}) {
  const auto made = operation("dovetail::moe_gather_places",
                              {.reads = {x, to.token, weight, other}}, [](const Operands& inputs) {
                                const auto [x, token, weight, other] = inputs.read<4>();
                                const GatheredPlaces out = gather_now(x, token, weight, other);
                                return out.dots.defined() ? std::vector{out.rows, out.dots}
                                                          : std::vector{out.rows};
                              });
  return {.rows = made[0], .dots = other.defined() ? made[1] : at::Tensor()};
}

at::Tensor sum_now(const at::Tensor& rows, const at::Tensor& weight,
                   const at::Tensor& places_of_token) {
  const int64_t tokens = places_of_token.size(0), k = places_of_token.size(1), width = rows.size(1);
  at::Tensor y = at::empty({tokens, width}, rows.options().dtype(at::kFloat));
  if (rows.is_meta() || y.numel() == 0) return y;
  if (rows.is_cuda()) {
    cuda_kernels_for(kExpertsOp)
        .sum_rows({.storage = ops::storage_of(rows),
                   .tokens = tokens,
                   .width = width,
                   .k = k,
                   .x = rows.const_data_ptr(),
                   .row = places_of_token.const_data_ptr<int32_t>(),
                   .place = nullptr,
                   .weight = ops::data_or_null(weight),
                   .y = y.mutable_data_ptr<float>()});
    return y;
  }
  const at::Tensor place = places_of_token.view({-1}), from = place.clamp_min(0);
  at::Tensor parts = rows.index_select(0, from).to(at::kFloat);
  if (weight.defined()) parts = parts * weight.index_select(0, from).unsqueeze(1);
  return at::where(place.ge(0).unsqueeze(1), parts, at::zeros({}, parts.options()))
      .view({tokens, k, width})
      .sum(1);
}

/// Returns (T, C) float32: for each token the sum of weight[p] * rows[p] over its places. weight:
/// (P) float32; undefined: 1.
at::Tensor sum_by_token(const at::Tensor& rows, const at::Tensor& weight, const DeviceRows& to) {
  return operation("dovetail::moe_sum_places", {.reads = {rows, weight, to.places_of_token}},
                   [](const Operands& inputs) {
                     const auto [rows, weight, places_of_token] = inputs.read<3>();
                     return std::vector{sum_now(rows, weight, places_of_token)};
                   })[0];
}

variable_list with_rows(variable_list tensors, const DeviceRows& to) {
  tensors.insert(tensors.end(), {to.choice, to.token, to.places_of_token, to.ends});
  return tensors;
}

/// Returns the rows that `with_rows` put at the end of `saved`.
DeviceRows rows_of(const variable_list& saved) {
  const size_t end = saved.size();
  return {saved[end - 4], saved[end - 3], saved[end - 2], saved[end - 1]};
}

class TakePlacesFunction : public torch::autograd::Function<TakePlacesFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const DeviceRows& to) {
    context->save_for_backward(with_rows({}, to));
    const int64_t choices = to.places_of_token.numel();
    return gather(x, to, to.choice.ne(choices).to(at::kFloat)).rows;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const DeviceRows to = rows_of(context->get_saved_variables());
    variable_list out = differentiate_once({kExpertsOp, kInFloat64}, gradients, [&] {
      const at::Tensor drows = gradients[0].contiguous();
      return variable_list{sum_by_token(drows, {}, to).to(drows.scalar_type())};
    });
    out.emplace_back();  // for `to`
    return out;
  }
};

class CombinePlacesFunction : public torch::autograd::Function<CombinePlacesFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows,
                            const at::Tensor& weight, const DeviceRows& to) {
    const at::Tensor of_place = weights_of_rows(weight, to.choice);
    context->save_for_backward(with_rows({rows, of_place, weight}, to));
    return sum_by_token(rows, of_place, to);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor &rows = saved[0], &of_place = saved[1], &weight = saved[2];
    const DeviceRows to = rows_of(saved);
    variable_list out =
        differentiate_once({kExpertsOp, kInFloat64}, {gradients[0], rows, weight}, [&] {
          const at::Tensor dy = gradients[0].to(rows.scalar_type()).contiguous();
          const GatheredPlaces made = gather(dy, to, of_place, rows);
          return variable_list{made.rows, weights_gradient(made.dots, to.choice, weight)};
        });
    out.emplace_back();  // for `to`
    return out;
  }
};

}  // namespace

DeviceRows device_rows(const at::Tensor& expert, const at::Tensor& slot, int64_t experts,
                       int64_t capacity, const at::Tensor& kept, bool whole, int64_t multiple) {
  capacity = round_up(capacity, multiple);
  const int64_t places =
      capacity > 0 ? experts * capacity : round_up(expert.numel(), multiple) + experts * multiple;
  user_check(places <= std::numeric_limits<int32_t>::max(),
             "experts: {} rows are more than an int32 can number; use smaller micro-batches",
             places);
  const auto made = operation(
      "dovetail::moe_device_rows", {.reads = {expert, slot, kept}}, [=](const Operands& inputs) {
        const auto [expert, slot, kept] = inputs.read<3>();
        const DeviceRows to =
            number_places(expert, slot, kept, experts, capacity, places, multiple);
        if (whole) to.ends.select(0, experts - 1).fill_(places);
        return std::vector{to.choice, to.token, to.places_of_token, to.ends};
      });
  return {made[0], made[1], made[2], made[3]};
}

at::Tensor take_rows(const at::Tensor& x, const DeviceRows& to) {
  user_check(
      x.dim() == 2 && x.size(0) == to.places_of_token.size(0) && x.device() == to.token.device(),
      "experts: x must be ({}, C) on {}, but is {}", to.places_of_token.size(0),
      to.token.device().str(), ops::describe(x));
  return TakePlacesFunction::apply(x.contiguous(), to);
}

at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& weight, const DeviceRows& to) {
  user_check(rows.dim() == 2 && rows.size(0) == to.places() &&
                 weight.sizes() == to.places_of_token.sizes() &&
                 weight.scalar_type() == at::kFloat && rows.device() == weight.device(),
             "experts: rows must be ({}, C) and weight float32, {}: rows is {}, weight is {}",
             to.places(), ops::describe(to.places_of_token), ops::describe(rows),
             ops::describe(weight));
  return CombinePlacesFunction::apply(rows.contiguous(), weight, to);
}

}  // namespace dovetail::moe
