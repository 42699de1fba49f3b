#include "dovetail/moe/experts.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/moe/dispatch_operands.h"
#include "dovetail/moe/expert_pieces.h"
#include "dovetail/moe/grouped_linear.h"
#include "dovetail/moe/remedies.h"
#include "dovetail/moe/row_weights.h"
#include "dovetail/mx/feed_forward.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/row_operation.h"
#include "dovetail/ops/rows_simd.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::moe {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Computes dweight = <y, dy> of each row. Then multiplies the rows of y and dy by their weights.
void weigh(const at::Tensor& weight, at::Tensor& y, at::Tensor& dy, const at::Tensor& dweight) {
  ops::weigh_rows({.storage = ops::storage_of(y),
                   .rows = y.size(0),
                   .width = y.size(1),
                   .weight = weight.const_data_ptr<float>(),
                   .y = y.mutable_data_ptr(),
                   .dy = dy.mutable_data_ptr(),
                   .dweight = dweight.mutable_data_ptr<float>()});
}

/// Returns the rows that end a piece. Between the products of a piece its hidden rows stay in the
/// cache, and their memory serves the next piece. One expert of 512 rows and width 1024 has 2 MB of
/// them in float32. A recorded step must allocate the same memory each time. So its pieces, which
/// depend on the loads, are whole runs.
int64_t enough_rows(const DispatchNumbers& numbers) {
  const bool recorded = numbers.offsets.empty();
  return recorded ? std::numeric_limits<int64_t>::max()
                  : expert_rows_at_once(at::get_num_threads());
}

/// Rounds `count` up to one of sixteen sizes between a power of two and the next.
int64_t usual_size(int64_t count) {
  const auto step =
      std::max<int64_t>(8, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count))) / 16);
  return (count + step - 1) / step * step;
}

/// Pads each expert's rows to the next usual size if the products run in oneDNN. The library
/// compiles code for each shape, and the row counts of experts differ in each step. Padding rows
/// read token 0. Their weight is 0, since their choice is one past the last choice. `run_padded`
/// pads with zeros instead.
DispatchedRows with_usual_sizes(const DispatchedRows& to, const at::Tensor& x,
                                const at::Tensor& weight) {
  if (x.scalar_type() != at::kBFloat16 || ops::multiplies_bfloat16_rows()) return to;
  DispatchedRows out{.offsets = {0}, .choice = {}, .token = {}};
  for (int64_t e = 0; e < to.experts(); ++e)
    out.offsets.push_back(out.offsets.back() + usual_size(to.count(e)));
  out.choice = at::full({out.size()}, weight.numel(), to.choice.options());
  out.token = at::zeros({out.size()}, to.token.options());
  for (int64_t e = 0; e < to.experts(); ++e) {
    out.of_expert(out.choice, e).narrow(0, 0, to.count(e)).copy_(to.of_expert(to.choice, e));
    out.of_expert(out.token, e).narrow(0, 0, to.count(e)).copy_(to.of_expert(to.token, e));
  }
  return out;
}

/// Positions of tensors among the function's arguments. Each gradient has the position of its
/// tensor.
struct Places {
  int64_t experts;
  bool bias;
  static constexpr size_t kX = 0, kWeight = 1;
  size_t up(int64_t e) const { return static_cast<size_t>(2 + e); }
  size_t down(int64_t e) const { return static_cast<size_t>(2 + experts + e); }
  size_t up_bias(int64_t e) const { return static_cast<size_t>(2 + 2 * experts + e); }
  size_t down_bias(int64_t e) const { return static_cast<size_t>(2 + 3 * experts + e); }
  size_t count() const { return static_cast<size_t>(2 + (bias ? 4 : 2) * experts); }
  at::TensorList downs(at::TensorList tensors) const {
    return tensors.slice(down(0), static_cast<size_t>(experts));
  }
};

/// Computes the gradients of all tensors that ExpertsFunction has read, piece by piece.
class Differentiation {
 public:
  /// saved: tensors that the function saved, then dy. kept: the dispatch without padding.
  Differentiation(const variable_list& saved, const DispatchedRows& kept, const Places& at,
                  const std::string& activation, bool wants_x)
      : saved_(saved),
        kept_(kept),
        at_(at),
        activation_(mx::activation_operation(activation)),
        x_(saved[Places::kX]),
        weight_(saved[Places::kWeight]),
        row_weight_(saved[at.count()]),
        to_(with_usual_sizes(kept, x_, weight_)),
        dy_(saved.back().to(x_.scalar_type()).contiguous()),
        runs_(runs_of_width(at.downs(saved))),
        row_dweight_(at::empty_like(row_weight_)),
        factor_(row_weight_.to(x_.scalar_type())),
        dx_(wants_x ? at::zeros(x_.sizes(), weight_.options()) : at::Tensor()),
        out_(at.count()) {}

  /// Returns the gradients in the order of the function's tensors. A piece ends at `enough` rows.
  variable_list run(int64_t enough) {
    const TraceSpan span("dovetail::experts_backward");
    for (const Piece& piece : pieces_of(to_, runs_, enough)) {
      const at::Tensor h = of_piece(to_, runs_, piece, saved_[at_.count() + 1 + piece.run]),
                       dweight = row_dweight_.narrow(0, piece.row, piece.rows);
      at::Tensor da = hidden_gradient(piece), a = activation_->apply(h);
      weigh(row_weight_.narrow(0, piece.row, piece.rows), a, da, dweight);
      if (at_.bias) dweight.add_(bias_dots(piece));
      // `a` is freed before dh and up's gradients are allocated.
      differentiate_down(piece, std::exchange(a, {}));
      const at::Tensor dh = mx::activation_gradient(*activation_, h, da);
      da.reset();
      differentiate_up(piece, dh);
    }
    if (dx_.defined()) out_[Places::kX] = dx_.to(x_.scalar_type());
    out_[Places::kWeight] = weights_gradient(row_dweight_, to_.choice, weight_);
    return std::move(out_);
  }

 private:
  at::Tensor tokens_of(int64_t e) const { return to_.of_expert(to_.token, e); }
  at::Tensor& gradient(size_t place) {
    return out_[place] = at::empty(saved_[place].sizes(), x_.options());
  }
  void run_calls() { ops::gemm_group(std::exchange(calls_, {})); }

  /// Returns the gradient of the activation's result, without the weights of the rows.
  at::Tensor hidden_gradient(const Piece& piece) {
    at::Tensor da = at::empty({piece.rows, runs_[piece.run].width}, x_.options());
    for (int64_t e = piece.first; e < piece.end; ++e)
      calls_.push_back(
          {of_expert(to_, piece, da, e), dy_, saved_[at_.down(e)], {.a_rows = tokens_of(e)}});
    run_calls();
    return da;
  }

  /// Returns <dy, down_bias> of each row: the part of the bias in the gradient of the row's weight.
  at::Tensor bias_dots(const Piece& piece) {
    const at::Tensor dots = at::empty({piece.rows, 1}, x_.options());
    for (int64_t e = piece.first; e < piece.end; ++e)
      calls_.push_back({of_expert(to_, piece, dots, e),
                        dy_,
                        saved_[at_.down_bias(e)].unsqueeze(1),
                        {.a_rows = tokens_of(e)}});
    run_calls();
    return dots.squeeze(1);
  }

  void differentiate_down(const Piece& piece, const at::Tensor& a) {
    for (int64_t e = piece.first; e < piece.end; ++e) {
      calls_.push_back({gradient(at_.down(e)),
                        dy_,
                        of_expert(to_, piece, a, e),
                        {.transpose_a = true, .a_rows = tokens_of(e)}});
      if (at_.bias)
        calls_.push_back({gradient(at_.down_bias(e)).unsqueeze(0),
                          to_.of_expert(factor_, e).unsqueeze(0),
                          dy_,
                          {.b_rows = tokens_of(e)}});
    }
    run_calls();
  }

  void differentiate_up(const Piece& piece, const at::Tensor& dh) {
    for (int64_t e = piece.first; e < piece.end; ++e) {
      const at::Tensor dh_rows = of_expert(to_, piece, dh, e);
      if (dx_.defined())
        calls_.push_back(
            {dx_,
             dh_rows,
             saved_[at_.up(e)],
             {.accumulate = true, .c_rows = tokens_of(e).narrow(0, 0, kept_.count(e))}});
      const at::Tensor up_sums = at_.bias ? gradient(at_.up_bias(e)) : at::Tensor();
      calls_.push_back({gradient(at_.up(e)),
                        dh_rows,
                        x_,
                        {.transpose_a = true, .row_sums = up_sums, .b_rows = tokens_of(e)}});
    }
    run_calls();
  }

  const variable_list& saved_;
  const DispatchedRows& kept_;
  const Places at_;
  std::shared_ptr<const ops::RowOperation> activation_;
  const at::Tensor &x_, &weight_, &row_weight_;
  const DispatchedRows to_;  ///< with padding rows
  const at::Tensor dy_;
  const std::vector<Run> runs_;
  at::Tensor row_dweight_;  ///< gradient of each row's weight
  at::Tensor factor_;       ///< weights of the rows in x's dtype
  at::Tensor dx_;
  variable_list out_;
  std::vector<ops::GemmCall> calls_;
};

class ExpertsFunction : public torch::autograd::Function<ExpertsFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, at::TensorList tensors, const Dispatch& to,
                            const std::string& activation, bool bias) {
    auto made = operation("dovetail::experts", {.reads = with_dispatch(tensors.vec(), to)},
                          [numbers = numbers_of(to), activation, bias](const Operands& inputs) {
                            const size_t count = inputs.reads.size() - kDispatchTensors;
                            return run(at::TensorList(inputs.reads).slice(0, count),
                                       dispatch_at(inputs.reads, count, numbers).resolve(),
                                       enough_rows(numbers), activation, bias);
                          });
    variable_list saved = tensors.vec();
    saved.insert(saved.end(), made.begin() + 1, made.end());
    save_with_dispatch(context, std::move(saved), to);
    context->saved_data["activation"] = activation;
    context->saved_data["bias"] = bias;
    return made[0];
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const Dispatch to = saved_dispatch(context, saved);
    const Places at{.experts = to.experts(), .bias = context->saved_data["bias"].toBool()};
    Operands inputs{.reads = saved};
    inputs.reads.push_back(gradients[0]);
    variable_list out = differentiate_once({"moe_experts", kInFloat64}, inputs.reads, [&] {
      return operation("dovetail::experts_gradient", inputs,
                       [numbers = numbers_of(to), at,
                        activation = context->saved_data["activation"].toStringRef(),
                        wants_x = context->needs_input_grad(Places::kX)](const Operands& given) {
                         const DispatchedRows kept =
                             dispatch_at(given.reads, given.reads.size() - 1 - kDispatchTensors,
                                         numbers)
                                 .resolve();
                         return Differentiation(given.reads, kept, at, activation, wants_x)
                             .run(enough_rows(numbers));
                       });
    });
    out.resize(at.count() + 3);  // undefined gradients of `to`, `activation` and `bias`
    return out;
  }

 private:
  /// Returns y, the weight of each row, and for each run the output h of `up`.
  static variable_list run(at::TensorList tensors, const DispatchedRows& kept, int64_t enough,
                           const std::string& activation_name, bool bias) {
    const TraceSpan span("dovetail::experts");
    const Places at{.experts = kept.experts(), .bias = bias};
    const auto activation = mx::activation_operation(activation_name);
    const at::Tensor &x = tensors[Places::kX], &weight = tensors[Places::kWeight];
    const DispatchedRows to = with_usual_sizes(kept, x, weight);
    const at::Tensor row_weight = weights_of_rows(weight, to.choice);
    const auto runs = runs_of_width(at.downs(tensors));
    variable_list h;
    for (const Run& run : runs)
      h.push_back(at::empty(
          {to.first(run.end) - to.first(run.first), mx::up_width(activation_name, run.width)},
          x.options()));
    at::Tensor y = at::zeros(x.sizes(), weight.options());
    for (const Piece& piece : pieces_of(to, runs, enough)) {
      const at::Tensor h_rows = of_piece(to, runs, piece, h[piece.run]);
      std::vector<ops::GemmCall> calls;
      for (int64_t e = piece.first; e < piece.end; ++e)
        calls.push_back({of_expert(to, piece, h_rows, e),
                         x,
                         tensors[at.up(e)],
                         {.transpose_b = true,
                          .bias = bias ? tensors[at.up_bias(e)] : at::Tensor(),
                          .a_rows = to.of_expert(to.token, e)}});
      ops::gemm_group(calls);
      const at::Tensor a = activation->apply(h_rows);
      calls.clear();
      for (int64_t e = piece.first; e < piece.end; ++e)
        calls.push_back({y,
                         of_expert(to, piece, a, e),
                         tensors[at.down(e)],
                         {.transpose_b = true,
                          .accumulate = true,
                          .bias = bias ? tensors[at.down_bias(e)] : at::Tensor(),
                          .c_rows = to.of_expert(to.token, e).narrow(0, 0, kept.count(e)),
                          .c_weights = to.of_expert(row_weight, e).narrow(0, 0, kept.count(e))}});
      ops::gemm_group(calls);
    }

    variable_list made = {y, row_weight};
    made.insert(made.end(), h.begin(), h.end());
    return made;
  }
};

at::TensorList of_run(const variable_list& list, const Run& run) {
  if (list.empty()) return {};
  return at::TensorList(list).slice(static_cast<size_t>(run.first),
                                    static_cast<size_t>(run.end - run.first));
}

void refuse_if_recorded(const Dispatch& to, const char* what) {
  if (!to.is_recorded()) return;
  throw UserError(fmt::format("moe: {} have tensors of other sizes in each step without padding, "
                              "which a recorded step cannot",
                              what),
                  "pad them (model.moe.drop = \"position\", pad_to_capacity = true), or train "
                  "without memory.budget");
}

bool by_rows_on_gpu(const at::Tensor& x) {
  const bool narrow = x.scalar_type() == at::kFloat || x.scalar_type() == at::kBFloat16;
  return x.is_cuda() && narrow && ops::kernel_enabled(ops::Kernel::kExperts);
}

}  // namespace

at::Tensor feed_forward_rows(const at::Tensor& rows, const std::vector<int64_t>& count,
                             const ExpertWeights& experts) {
  const auto activation = mx::activation_operation(experts.activation);
  variable_list made;
  int64_t first = 0;
  for (const Run& run : runs_of_width(experts.down)) {
    const std::vector<int64_t> of_experts(count.begin() + run.first, count.begin() + run.end);
    const int64_t size = std::accumulate(of_experts.begin(), of_experts.end(), int64_t{0});
    const at::Tensor h = grouped_linear(rows.narrow(0, first, size), of_run(experts.up, run),
                                        of_experts, of_run(experts.up_bias, run));
    made.push_back(grouped_linear(activation->apply(h), of_run(experts.down, run), of_experts,
                                  of_run(experts.down_bias, run)));
    first += size;
  }
  return made.size() == 1 ? made[0] : at::cat(made);
}

at::Tensor feed_forward(const at::Tensor& x, const at::Tensor& weight, const Dispatch& to,
                        const ExpertWeights& experts) {
  check_experts(x, weight, experts, to.experts());
  const bool bias = !experts.up_bias.empty();
  if (by_rows_on_gpu(x)) {
    std::vector<int64_t> rows;
    for (int64_t e = 0; e < to.experts(); ++e) rows.push_back(to.rows().count(e));
    return combine_rows(feed_forward_rows(dispatch_rows(x, to), rows, experts), weight, to);
  }
  if (!ops::use_kernel(ops::Kernel::kExperts, x) || !x.is_cpu()) {
    const auto activation = mx::activation_operation(experts.activation);
    return apply_experts(x, weight, to, [&](int64_t expert, const at::Tensor& rows) {
      const auto e = static_cast<size_t>(expert);
      const auto bias_of = [&](const std::vector<at::Tensor>& biases) {
        return bias ? biases[e] : at::Tensor();
      };
      return run_padded(rows, [&](const at::Tensor& padded) {
        const at::Tensor h = ops::linear(padded, experts.up[e], bias_of(experts.up_bias));
        return ops::linear(activation->apply(h), experts.down[e], bias_of(experts.down_bias));
      });
    });
  }
  // Products in bfloat16 sum in float32 if they have many terms, that is if an expert has many
  // rows. Their memory then differs from step to step.
  if (x.scalar_type() != at::kFloat) refuse_if_recorded(to, "experts in bfloat16");
  if (!ops::use_kernel(ops::Kernel::kGemm, x)) refuse_if_recorded(to, "experts multiplied by ATen");
  variable_list tensors = {x.contiguous(), weight};
  for (const auto* list : {&experts.up, &experts.down, &experts.up_bias, &experts.down_bias})
    tensors.insert(tensors.end(), list->begin(), list->end());
  return ExpertsFunction::apply(at::TensorList(tensors), to, experts.activation, bias);
}

at::Tensor apply_experts(const at::Tensor& x, const at::Tensor& weight, const Dispatch& dispatch,
                         const std::function<at::Tensor(int64_t, const at::Tensor&)>& expert) {
  refuse_if_recorded(dispatch, "experts that are separate operations");
  const DispatchedRows& to = dispatch.rows();
  const at::Tensor weights = weight.reshape({-1, 1});
  at::Tensor y = at::zeros(x.sizes(), weights.options().requires_grad(false));
  for (int64_t e = 0; e < to.experts(); ++e) {
    const at::Tensor token = to.of_expert(to.token, e), choice = to.of_expert(to.choice, e);
    y.index_add_(0, token, expert(e, x.index_select(0, token)) * weights.index_select(0, choice));
  }
  return y;
}

at::Tensor run_padded(const at::Tensor& rows,
                      const std::function<at::Tensor(const at::Tensor&)>& expert) {
  if (rows.scalar_type() != at::kBFloat16) return expert(rows);
  const int64_t count = rows.size(0), more = usual_size(count) - count;
  return expert(at::constant_pad_nd(rows, {0, 0, 0, more})).narrow(0, 0, count);
}

}  // namespace dovetail::moe
