#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <memory>
#include <mutex>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/attention_simd.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/dispatch.h"
#include "dovetail/ops/functions.h"

namespace dovetail {

namespace {

void check_rotary(int64_t head_dim, AttentionOptions options) {
  user_check(options.rotary_dim >= 0 && options.rotary_dim % 2 == 0 && options.rotary_dim <= head_dim,
             "attention: rotary_dim is {} but must be even and at most the head size {}", options.rotary_dim, head_dim);
  user_check(options.theta > 0, "attention: theta is {} but must be positive", options.theta);
}

void check_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionOptions options) {
  user_check(q.dim() == 4 && k.dim() == 4 && v.dim() == 4,
             "attention: q, k and v must be (batch, length, heads, head size); q is {}, k is {}, v is {}", describe(q),
             describe(k), describe(v));
  user_check(k.sizes() == v.sizes(), "attention: k and v must have one shape; k is {}, v is {}", describe(k),
             describe(v));
  user_check(q.size(0) == k.size(0) && q.size(3) == k.size(3),
             "attention: q and k must agree in batch and head size; q is {}, k is {}", describe(q), describe(k));
  user_check(k.size(2) > 0 && q.size(2) % k.size(2) == 0,
             "attention: the {} heads of q must be a multiple of the {} heads of k", q.size(2), k.size(2));
  user_check(k.size(1) >= q.size(1), "attention: {} queries need at least as many keys, there are {}", q.size(1),
             k.size(1));
  user_check(q.scalar_type() == k.scalar_type() && q.scalar_type() == v.scalar_type() && q.device() == k.device() &&
                 q.device() == v.device() && at::isFloatingType(q.scalar_type()),
             "attention: q, k and v must share a floating dtype and device; q is {}, k is {}, v is {}", describe(q),
             describe(k), describe(v));
  check_rotary(q.size(3), options);
}

/// cos and sin (positions, rotary_dim / 2) in float32 of angles computed in float64. The last table is kept: a model
/// uses one.
struct RotaryTable {
  int64_t rotary_dim = 0, positions = 0;
  double theta = 0;
  std::vector<float> cosine, sine;
};

std::shared_ptr<const RotaryTable> rotary_table(int64_t positions, AttentionOptions options) {
  static std::mutex mutex;
  static std::shared_ptr<const RotaryTable> last;
  const std::lock_guard lock(mutex);
  if (last && last->rotary_dim == options.rotary_dim && last->theta == options.theta && last->positions >= positions)
    return last;
  auto table = std::make_shared<RotaryTable>();
  table->rotary_dim = options.rotary_dim;
  table->theta = options.theta;
  table->positions = positions;
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t i = 0; i < options.rotary_dim / 2; ++i) {
      const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(options.rotary_dim);
      const double angle = static_cast<double>(position) * std::exp(exponent * std::log(options.theta));
      table->cosine.push_back(static_cast<float>(std::cos(angle)));
      table->sine.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return last = table;
}

HeadsView view(const at::Tensor& x) { return {x.const_data_ptr(), x.stride(0), x.stride(1), x.stride(2)}; }
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

class AttentionFunction : public torch::autograd::Function<AttentionFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& q_in, const at::Tensor& k_in,
                            const at::Tensor& v_in, int64_t rotary_dim, double theta) {
    const TraceSpan span("dovetail::attention");
    const at::Tensor q = rows_contiguous(q_in), k = rows_contiguous(k_in), v = rows_contiguous(v_in);
    const auto table = rotary_table(k.size(1), {.rotary_dim = rotary_dim, .theta = theta});
    const at::Tensor out = at::empty(q.sizes(), q.options());
    const at::Tensor logsumexp = at::empty({q.size(0), q.size(2), q.size(1)}, q.options().dtype(at::kFloat));
    attention_forward(shape_of(q, k, *table), view(q), view(k), view(v), mutable_view(out),
                      logsumexp.mutable_data_ptr<float>());
    context->save_for_backward({q, k, v, out, logsumexp});
    context->saved_data["rotary_dim"] = rotary_dim;
    context->saved_data["theta"] = theta;
    return out;
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const TraceSpan span("dovetail::attention");
    const auto saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &k = saved[1], &v = saved[2], &out = saved[3], &logsumexp = saved[4];
    const auto table = rotary_table(k.size(1), {.rotary_dim = context->saved_data["rotary_dim"].toInt(),
                                                .theta = context->saved_data["theta"].toDouble()});
    const at::Tensor dout = rows_contiguous(gradients[0]);
    const at::Tensor dq = at::empty(q.sizes(), q.options()), dk = at::empty(k.sizes(), k.options()),
                     dv = at::empty(v.sizes(), v.options());
    attention_backward(shape_of(q, k, *table), view(q), view(k), view(v),
                       {.out = view(out),
                        .dout = view(dout),
                        .logsumexp = logsumexp.const_data_ptr<float>(),
                        .dq = mutable_view(dq),
                        .dk = mutable_view(dk),
                        .dv = mutable_view(dv)});
    return {dq, dk, dv, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, AttentionOptions options) {
  check_attention(q, k, v, options);
  if (q.is_meta()) return at::empty(q.sizes(), q.options());
  if (use_kernel(Kernel::kAttention, q) && q.numel() > 0)
    return AttentionFunction::apply(q, k, v, options.rotary_dim, options.theta);
  const TraceSpan span("dovetail::attention");
  return composed::attention(q, k, v, options);
}

at::Tensor rotate(const at::Tensor& x, int64_t position, AttentionOptions options) {
  user_check(x.dim() == 4, "rotate: x must be (batch, length, heads, head size), but is {}", describe(x));
  check_rotary(x.size(3), options);
  if (x.is_meta()) return at::empty_like(x);
  const at::NoGradGuard no_grad;
  return composed::rotate(x, position, options);
}

}  // namespace dovetail
