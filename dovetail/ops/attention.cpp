#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/attention_simd.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/meta.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

void check_rotary(int64_t head_dim, AttentionOptions options) {
  user_check(
      options.rotary_dim >= 0 && options.rotary_dim % 2 == 0 && options.rotary_dim <= head_dim,
      "attention: rotary_dim is {} but must be even and at most the head size {}",
      options.rotary_dim, head_dim);
  user_check(options.theta > 0, "attention: theta is {} but must be positive", options.theta);
}

void check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     AttentionOptions options) {
  user_check(
      q.dim() == 4 && k.dim() == 4 && v.dim() == 4,
      "attention: q, k and v must be (batch, length, heads, head size); q is {}, k is {}, v is {}",
      describe(q), describe(k), describe(v));
  user_check(k.sizes() == v.sizes(), "attention: k and v must have one shape; k is {}, v is {}",
             describe(k), describe(v));
  user_check(q.size(0) == k.size(0) && q.size(3) == k.size(3),
             "attention: q and k must agree in batch and head size; q is {}, k is {}", describe(q),
             describe(k));
  user_check(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
             "attention: the {} heads of q must be a multiple of the {} heads of k", q.size(2),
             k.size(2));
  user_check(k.size(1) >= q.size(1),
             "attention: {} queries need at least as many keys, there are {}", q.size(1),
             k.size(1));
  user_check(
      q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() &&
          q.device() == k.device() && q.device() == v.device() &&
          at::isFloatingType(q.scalar_type()),
      "attention: q, k and v must share a floating dtype and device; q is {}, k is {}, v is {}",
      describe(q), describe(k), describe(v));
  check_rotary(q.size(3), options);
}

/// Cosine and sine (positions, rotary_dim / 2) in float32, of angles computed in float64. The
/// previous table is cached, since a model uses one table.
struct RotaryTable {
  int64_t rotary_dim = 0, positions = 0;
  double theta = 0;
  std::vector<float> cosine, sine;
};

std::shared_ptr<const RotaryTable> rotary_table(int64_t positions, AttentionOptions options) {
  static std::mutex mutex;
  static std::shared_ptr<const RotaryTable> last;
  const std::lock_guard lock(mutex);
  if (last && last->rotary_dim == options.rotary_dim && last->theta == options.theta &&
      last->positions >= positions)
    return last;
  auto table = std::make_shared<RotaryTable>();
  table->rotary_dim = options.rotary_dim;
  table->theta = options.theta;
  table->positions = positions;
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t i = 0; i < options.rotary_dim / 2; ++i) {
      const double exponent =
          -2.0 * static_cast<double>(i) / static_cast<double>(options.rotary_dim);
      const double angle =
          static_cast<double>(position) * std::exp(exponent * std::log(options.theta));
      table->cosine.push_back(static_cast<float>(std::cos(angle)));
      table->sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return last = table;
}

HeadsView view(const at::Tensor& x) {
  return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}
MutableHeadsView mutable_view(const at::Tensor& x) {
  return {x.mutable_data_ptr(), x.stride(0), x.stride(1), x.stride(2)};
}

at::Tensor rows_contiguous(const at::Tensor& x) { return x.stride(3) == 1 ? x : x.contiguous(); }

AttentionShape shape_of(const at::Tensor& q, const at::Tensor& k, const RotaryTable& table) {
  return {.batch = q.size(0),
          .queries = q.size(1),
          .keys = k.size(1),
          .heads = q.size(2),
          .kv_heads = k.size(2),
          .head_dim = q.size(3),
          .storage = storage_of(q),
          .rotary_dim = table.rotary_dim,
          .cosine = table.cosine.data(),
          .sine = table.sine.data()};
}

/// Queries, keys and values, or their gradients. Each is (batch, length, heads, head size), with a
/// contiguous last dimension.
struct Heads {
  at::Tensor q, k, v;
};

/// Returns views of the result of one joint projection: qkv (batch, length, (heads + 2 kv_heads) *
/// head size), contiguous.
Heads split_heads(const at::Tensor& qkv, int64_t heads, int64_t kv_heads) {
  // One split replaces three narrows: its backward is one concatenation.
  const auto parts = qkv.view({qkv.size(0), qkv.size(1), heads + 2 * kv_heads,
                               qkv.size(2) / (heads + 2 * kv_heads)})
                         .split_with_sizes({heads, kv_heads, kv_heads}, /*dim=*/2);
  return {parts[0], parts[1], parts[2]};
}

/// Returns the output, and the log-sum-exp of each row of scores, which backward needs.
std::vector<at::Tensor> forward_heads(const Heads& x, AttentionOptions options) {
  const TraceSpan span("dovetail::attention");
  const auto table = rotary_table(x.k.size(1), options);
  const at::Tensor out = at::empty(x.q.sizes(), x.q.options());
  const at::Tensor logsumexp =
      at::empty({x.q.size(0), x.q.size(2), x.q.size(1)}, x.q.options().dtype(at::kFloat));
  attention_forward(shape_of(x.q, x.k, *table), view(x.q), view(x.k), view(x.v), mutable_view(out),
                    logsumexp.mutable_data_ptr<float>());
  return {out, logsumexp};
}

void backward_heads(const Heads& x, const at::Tensor& out, const at::Tensor& logsumexp,
                    const at::Tensor& gradient, const Heads& dx, AttentionOptions options) {
  const TraceSpan span("dovetail::attention");
  const auto table = rotary_table(x.k.size(1), options);
  const at::Tensor dout = rows_contiguous(gradient);
  attention_backward(shape_of(x.q, x.k, *table), view(x.q), view(x.k), view(x.v),
                     {.out = view(out),
                      .dout = view(dout),
                      .logsumexp = logsumexp.const_data_ptr<float>(),
                      .dq = mutable_view(dx.q),
                      .dk = mutable_view(dx.k),
                      .dv = mutable_view(dx.v)});
}

void save_options(torch::autograd::AutogradContext* context, AttentionOptions options) {
  context->saved_data["rotary_dim"] = options.rotary_dim;
  context->saved_data["theta"] = options.theta;
}
AttentionOptions saved_options(torch::autograd::AutogradContext* context) {
  return {.rotary_dim = context->saved_data["rotary_dim"].toInt(),
          .theta = context->saved_data["theta"].toDouble()};
}

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q,
                            const at::Tensor& k, const at::Tensor& v, AttentionOptions options) {
    const Heads x = {rows_contiguous(q), rows_contiguous(k), rows_contiguous(v)};
    const auto made = operation("dovetail::attention", {.reads = {x.q, x.k, x.v}},
                                [options](const Operands& inputs) {
                                  const auto [q, k, v] = inputs.read<3>();
                                  return forward_heads({q, k, v}, options);
                                });
    context->save_for_backward({x.q, x.k, x.v, made[0], made[1]});
    save_options(context, options);
    return made[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    Operands saved{.reads = context->get_saved_variables()};
    saved.reads.push_back(gradients[0]);
    const auto made = operation("dovetail::attention_gradient", std::move(saved),
                                [options = saved_options(context)](const Operands& inputs) {
                                  const auto [q, k, v, y, statistics, dy] = inputs.read<6>();
                                  const Heads x = {q, k, v};
                                  const Heads dx = {at::empty(x.q.sizes(), x.q.options()),
                                                    at::empty(x.k.sizes(), x.k.options()),
                                                    at::empty(x.v.sizes(), x.v.options())};
                                  backward_heads(x, y, statistics, dy, dx, options);
                                  return std::vector{dx.q, dx.k, dx.v};
                                });
    return {made[0], made[1], made[2], at::Tensor()};
  }
};

class JoinedAttentionFunction : public torch::autograd::Function<JoinedAttentionFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& qkv_in,
                            int64_t heads, int64_t kv_heads, AttentionOptions options) {
    const at::Tensor qkv = qkv_in.contiguous();
    const auto made =
        operation("dovetail::attention", {.reads = {qkv}}, [=](const Operands& inputs) {
          return forward_heads(split_heads(inputs.reads[0], heads, kv_heads), options);
        });
    context->save_for_backward({qkv, made[0], made[1]});
    context->saved_data["heads"] = heads;
    context->saved_data["kv_heads"] = kv_heads;
    save_options(context, options);
    return made[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const int64_t heads = context->saved_data["heads"].toInt(),
                  kv_heads = context->saved_data["kv_heads"].toInt();
    Operands saved{.reads = context->get_saved_variables()};
    saved.reads.push_back(gradients[0]);
    const auto made =
        operation("dovetail::attention_gradient", std::move(saved),
                  [heads, kv_heads, options = saved_options(context)](const Operands& inputs) {
                    const auto [qkv, y, statistics, dy] = inputs.read<4>();
                    const at::Tensor dqkv = at::empty(qkv.sizes(), qkv.options());
                    backward_heads(split_heads(qkv, heads, kv_heads), y, statistics, dy,
                                   split_heads(dqkv, heads, kv_heads), options);
                    return std::vector{dqkv};
                  });
    return {made[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

// On a GPU, ATen computes the products and the softmax: it has cuDNN and flash attention. Our
// kernel rotates.

/// Returns cosines, then sines, (2, rows, rotary_dim / 2) float32 on `device`, with at least
/// `positions` rows. The latest table of each device is cached. Its length is a power of two, so
/// that generation does not compute a table per token.
at::Tensor gpu_rotary_table(int64_t positions, c10::Device device, AttentionOptions options) {
  struct Made {
    c10::Device device;
    int64_t rotary_dim;
    double theta;
    at::Tensor table;
  };
  static std::mutex mutex;
  static auto& last =
      *new std::vector<Made>;  // never destroyed: the driver may be gone when the process ends
  const std::lock_guard lock(mutex);
  const auto same_device = [&](const Made& made) { return made.device == device; };
  auto at = std::find_if(last.begin(), last.end(), same_device);
  if (at != last.end() && at->rotary_dim == options.rotary_dim && at->theta == options.theta &&
      at->table.size(1) >= positions)
    return at->table;
  const UnrecordedAllocations kept_beyond_this_operation;
  constexpr uint64_t kFewest = 1024;
  const auto rows =
      static_cast<int64_t>(std::bit_ceil(std::max(kFewest, static_cast<uint64_t>(positions))));
  const auto values = rotary_table(rows, options);
  const int64_t half = options.rotary_dim / 2;
  const at::Tensor host = at::empty({2, rows, half}, at::kFloat);
  std::copy_n(values->cosine.data(), rows * half, host.mutable_data_ptr<float>());
  std::copy_n(values->sine.data(), rows * half, host.mutable_data_ptr<float>() + rows * half);
  if (at == last.end()) at = last.insert(at, Made{device, 0, 0, {}});
  *at = {device, options.rotary_dim, options.theta, host.to(device)};
  return at->table;
}

struct RotatedHeads {
  at::Tensor from, to;
  bool rotated = true;
};

/// Rotates parts (B, T, heads, D). They have the same batch, length, head size and dtype, and a
/// contiguous last dimension. Their first position is `position`.
void rotate_on_gpu(std::initializer_list<RotatedHeads> heads, int64_t position,
                   AttentionOptions options, bool inverse) {
  const TraceSpan span("dovetail::rotate");
  const at::Tensor& x = heads.begin()->from;
  RotaryProblem problem = {.storage = storage_of(x),
                           .batch = x.size(0),
                           .length = x.size(1),
                           .head_dim = x.size(3),
                           .rotary_dim = options.rotary_dim,
                           .cosine = nullptr,
                           .sine = nullptr,
                           .inverse = inverse};
  at::Tensor table;
  if (options.rotary_dim > 0) {
    table = gpu_rotary_table(position + x.size(1), x.device(), options);
    problem.cosine = table.const_data_ptr<float>() + position * table.size(2);
    problem.sine = problem.cosine + table.size(1) * table.size(2);
  }
  std::vector<RotaryPart> parts;
  for (const auto& [from, to, rotated] : heads)
    parts.push_back(
        {.heads = from.size(2), .rotated = rotated, .from = view(from), .to = mutable_view(to)});
  cuda_kernels()->rotate(problem, parts);
}

/// Returns one tensor of heads, rotated, or its gradient, rotated back.
at::Tensor rotated_on_gpu(const at::Tensor& x_in, int64_t position, AttentionOptions options,
                          bool inverse) {
  return operation("dovetail::rotate", {.reads = {rows_contiguous(x_in)}},
                   [=](const Operands& inputs) {
                     const at::Tensor& x = inputs.reads[0];
                     const at::Tensor to = at::empty(x.sizes(), x.options());
                     rotate_on_gpu({{x, to}}, position, options, inverse);
                     return std::vector{to};
                   })[0];
}

class RotateFunction : public torch::autograd::Function<RotateFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            int64_t position, AttentionOptions options) {
    context->saved_data["position"] = position;
    save_options(context, options);
    return rotated_on_gpu(x, position, options, /*inverse=*/false);
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor dx = rotated_on_gpu(gradients[0], context->saved_data["position"].toInt(),
                                         saved_options(context),
                                         /*inverse=*/true);
    return {dx, at::Tensor(), at::Tensor()};
  }
};

/// Returns queries, keys and values of qkv, rotated. Backward writes one gradient in one pass.
class JoinedHeadsFunction : public torch::autograd::Function<JoinedHeadsFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& qkv_in, int64_t heads,
                                                int64_t kv_heads, AttentionOptions options) {
    save_options(context, options);
    const at::Tensor qkv = qkv_in.detach().contiguous();
    if (options.rotary_dim == 0) {
      const Heads x = split_heads(qkv, heads, kv_heads);
      return {x.q, x.k, x.v};
    }
    // Values are copied, so that attention does not keep both qkv and its rotated copy in memory.
    return operation("dovetail::rotate", {.reads = {qkv}}, [=](const Operands& inputs) {
      const Heads x = split_heads(inputs.reads[0], heads, kv_heads);
      const Heads y = {at::empty(x.q.sizes(), x.q.options()), at::empty(x.k.sizes(), x.k.options()),
                       at::empty(x.v.sizes(), x.v.options())};
      rotate_on_gpu({{x.q, y.q}, {x.k, y.k}, {x.v, y.v, false}}, /*position=*/0, options,
                    /*inverse=*/false);
      return std::vector{y.q, y.k, y.v};
    });
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const Operands parts = {.reads = {rows_contiguous(gradients[0]), rows_contiguous(gradients[1]),
                                      rows_contiguous(gradients[2])}};
    const auto made = operation(
        "dovetail::rotate", parts, [options = saved_options(context)](const Operands& inputs) {
          const auto [dq, dk, dv] = inputs.read<3>();
          const int64_t heads = dq.size(2), kv_heads = dk.size(2);
          const at::Tensor dqkv = at::empty(
              {dq.size(0), dq.size(1), (heads + 2 * kv_heads) * dq.size(3)}, dq.options());
          const Heads to = split_heads(dqkv, heads, kv_heads);
          rotate_on_gpu({{dq, to.q}, {dk, to.k}, {dv, to.v, false}}, /*position=*/0, options,
                        /*inverse=*/true);
          return std::vector{dqkv};
        });
    return {made[0], at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor rotate_by_kernel(const at::Tensor& x, int64_t position, AttentionOptions options) {
  return options.rotary_dim == 0 || x.numel() == 0 ? x
                                                   : RotateFunction::apply(x, position, options);
}

at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                  AttentionOptions options, bool by_kernel) {
  const TraceSpan span("dovetail::attention");
  return composed::attention(q, k, v, options, by_kernel ? rotate_by_kernel : composed::rotate);
}

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     AttentionOptions options) {
  check_attention(q, k, v, options);
  if (q.is_meta()) return empty_on_meta({q, k, v}, q.sizes(), q.scalar_type());
  const bool by_kernel = use_kernel(Kernel::kAttention, q) && q.numel() > 0;
  if (by_kernel && q.is_cpu()) return AttentionFunction::apply(q, k, v, options);
  return attend(q, k, v, options, by_kernel);
}

at::Tensor attention(const at::Tensor& qkv, int64_t heads, int64_t kv_heads,
                     AttentionOptions options) {
  user_check(qkv.dim() == 3 && heads > 0 && kv_heads > 0 && heads % kv_heads == 0 &&
                 qkv.size(2) > 0 && qkv.size(2) % (heads + 2 * kv_heads) == 0 &&
                 at::isFloatingType(qkv.scalar_type()),
             "attention: qkv must be floating and (batch, length, (heads + 2 kv_heads) * head "
             "size). Heads must be a multiple of kv_heads. It is {} for {} heads and {} kv_heads",
             describe(qkv), heads, kv_heads);
  check_rotary(qkv.size(2) / (heads + 2 * kv_heads), options);
  if (use_kernel(Kernel::kAttention, qkv) && qkv.numel() > 0) {
    if (qkv.is_cpu()) return JoinedAttentionFunction::apply(qkv, heads, kv_heads, options);
    const auto x = JoinedHeadsFunction::apply(qkv, heads, kv_heads, options);
    return attend(x[0], x[1], x[2], /*options=*/{}, /*by_kernel=*/true);
  }
  const Heads x = split_heads(qkv.contiguous(), heads, kv_heads);
  return attention(x.q, x.k, x.v, options);
}

at::Tensor rotate(const at::Tensor& x, int64_t position, AttentionOptions options) {
  user_check(x.dim() == 4, "rotate: x must be (batch, length, heads, head size), but is {}",
             describe(x));
  check_rotary(x.size(3), options);
  if (x.is_meta()) return at::empty_like(x);
  const at::NoGradGuard no_grad;
  if (x.is_cuda() && use_kernel(Kernel::kAttention, x))
    return rotate_by_kernel(x, position, options);
  return composed::rotate(x, position, options);
}

}  // namespace dovetail::ops
