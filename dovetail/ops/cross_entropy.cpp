#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/composed.h"
#include "dovetail/ops/cross_entropy_simd.h"
#include "dovetail/ops/cuda_kernels.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/gemm.h"
#include "dovetail/ops/meta.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

/// Bytes of logits held at a time: 8 MiB stay in the last-level cache. Each chunk reads the weight,
/// and reads and writes its gradient, once. With fewer than kLeastRows rows, memory would limit the
/// speed for a large vocabulary.
constexpr int64_t kChunkBytes = int64_t{8} << 20;
constexpr int64_t kLeastRows = 512;
/// GPU products need thousands of rows: these are 5,336 rows of GPT-2's vocabulary in bfloat16.
constexpr int64_t kGpuChunkBytes = int64_t{512} << 20;

int64_t chunk_rows(const at::Tensor& x, int64_t vocab) {
  const int64_t rows = x.size(0), row_bytes = vocab * static_cast<int64_t>(x.element_size());
  const int64_t most = (x.is_cuda() ? kGpuChunkBytes : kChunkBytes) / row_bytes;
  const int64_t chunk = std::clamp<int64_t>(most, std::min(rows, kLeastRows), rows);
  if (!x.is_cuda()) return chunk;
  const int64_t chunks = (rows + chunk - 1) / chunk;
  return (rows + chunks - 1) / chunks;
}

/// Computes CrossEntropyProblem by ATen. Returns the losses, and overwrites `logits` with their
/// gradient if `gradient`.
at::Tensor losses_composed(at::Tensor& logits, const at::Tensor& targets, bool gradient) {
  const at::Tensor kept = targets.ne(kIgnoredTarget), safe = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor wide = logits.scalar_type() == at::kDouble ? logits : logits.to(at::kFloat);
  const at::Tensor logsumexp = wide.logsumexp(1, /*keepdim=*/true);
  at::Tensor losses = at::where(kept, (logsumexp - wide.gather(1, safe)).squeeze(1), 0);
  if (gradient) {
    at::Tensor probability = (wide - logsumexp).exp_();
    probability.scatter_add_(1, safe, at::full_like(safe, -1, wide.options()));
    logits.copy_(probability.mul_(kept.unsqueeze(1)));
  }
  return losses;
}

at::Tensor losses_of(at::Tensor& logits, const at::Tensor& targets, bool gradient) {
  const TraceSpan span("dovetail::cross_entropy");
  if (!use_kernel(Kernel::kCrossEntropy, logits)) return losses_composed(logits, targets, gradient);
  at::Tensor losses = at::empty({logits.size(0)}, logits.options().dtype(at::kFloat));
  const CrossEntropyProblem problem = {.rows = logits.size(0),
                                       .vocab = logits.size(1),
                                       .storage = storage_of(logits),
                                       .logits = logits.mutable_data_ptr(),
                                       .targets = targets.const_data_ptr<int64_t>(),
                                       .losses = losses.mutable_data_ptr<float>(),
                                       .gradient = gradient};
  if (logits.is_cuda()) {
    cuda_kernels()->cross_entropy(problem);
  } else {
    cross_entropy_rows(problem);
  }
  return losses;
}

/// Checks contiguous targets on the CPU only: elsewhere a check would cost a synchronisation.
void check_targets(const at::Tensor& targets, int64_t vocab) {
  if (!targets.is_cpu()) return;
  const int64_t* target = targets.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < targets.numel(); ++i)
    user_check(target[i] == kIgnoredTarget || (target[i] >= 0 && target[i] < vocab),
               "linear_cross_entropy: target {} of token {} is outside of the vocabulary of {} "
               "(and not {}, left out)",
               target[i], i, vocab, kIgnoredTarget);
}

struct LossAndGradients {
  at::Tensor loss, dx, dweight;
};

LossAndGradients run(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& targets,
                     bool need_dx, bool need_dweight) {
  check_targets(targets, weight.size(0));
  const int64_t rows = x.size(0), vocab = weight.size(0);
  const auto loss_options =
      x.options().dtype(x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  LossAndGradients result;
  if (need_dx) result.dx = at::empty_like(x, at::MemoryFormat::Contiguous);
  if (need_dweight)
    result.dweight =
        rows == 0 ? at::zeros_like(weight) : at::empty_like(weight, at::MemoryFormat::Contiguous);
  const int64_t chunk = rows == 0 ? 0 : chunk_rows(x, vocab);
  const at::Tensor buffer = at::empty({chunk, vocab}, x.options());
  // Sums over several chunks in bfloat16 would lose digits. cuBLAS adds bfloat16 products to
  // float32.
  const bool wide_sum =
      need_dweight && x.is_cuda() && x.scalar_type() == at::kBFloat16 && chunk < rows;
  at::Tensor sum =
      wide_sum ? at::empty(weight.sizes(), x.options().dtype(at::kFloat)) : result.dweight;
  std::vector<at::Tensor> losses;
  for (int64_t row = 0; row < rows; row += chunk) {
    const int64_t count = std::min(chunk, rows - row);
    const at::Tensor x_chunk = x.narrow(0, row, count);
    at::Tensor logits = buffer.narrow(0, 0, count);
    gemm_into(logits, x_chunk, weight, {.transpose_b = true});
    losses.push_back(losses_of(logits, targets.narrow(0, row, count), need_dx || need_dweight));
    if (need_dx) {
      at::Tensor dx_chunk = result.dx.narrow(0, row, count);
      gemm_into(dx_chunk, logits, weight);
    }
    if (wide_sum) {
      at::addmm_out(sum, sum, logits.t(), x_chunk, at::kFloat, /*beta=*/row > 0 ? 1 : 0);
    } else if (need_dweight) {
      gemm_into(sum, logits, x_chunk, {.transpose_a = true, .accumulate = row > 0});
    }
  }
  if (wide_sum) result.dweight.copy_(sum);
  // The sum is float64: float32 would lose a digit or two over thousands of tokens.
  result.loss = rows == 0 ? at::zeros({}, loss_options)
                          : at::cat(losses).sum(at::kDouble).to(loss_options.dtype());
  return result;
}

class LinearCrossEntropyFunction : public torch::autograd::Function<LinearCrossEntropyFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight, const at::Tensor& targets) {
    const bool need_dx = x.requires_grad(), need_dweight = weight.requires_grad();
    const auto made = operation("dovetail::linear_cross_entropy", {.reads = {x, weight, targets}},
                                [need_dx, need_dweight](const Operands& inputs) {
                                  const auto [x, weight, targets] = inputs.read<3>();
                                  const LossAndGradients result =
                                      run(x, weight, targets, need_dx, need_dweight);
                                  return std::vector{result.loss, result.dx, result.dweight};
                                });
    context->saved_data["gradients"] = std::vector<at::Tensor>{
        made[1].defined() ? made[1] : at::empty({0}), made[2].defined() ? made[2] : at::empty({0})};
    return made[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    user_check(
        context->saved_data.count("gradients") > 0,
        "linear_cross_entropy: its gradients were handed over by the first backward and are gone");
    // Moved, not shared: autograd then keeps them as .grad without a copy.
    std::vector<at::Tensor> stored = context->saved_data["gradients"].toTensorVector();
    context->saved_data.erase("gradients");
    operation("dovetail::scale", {.reads = {gradients[0]}, .changes = stored},
              [](const Operands& inputs) {
                const at::Tensor& scale = inputs.reads[0];
                const bool is_one = scale.is_cpu() && scale.item<double>() == 1.0;
                for (const at::Tensor& gradient : inputs.changes)
                  if (!is_one) gradient.mul_(scale);
                return std::vector<at::Tensor>();
              });
    torch::autograd::variable_list result(3);
    for (size_t i = 0; i < 2; ++i)
      if (context->needs_input_grad(i)) result[i] = std::move(stored[i]);
    return result;
  }
};

void check_linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets) {
  user_check(x.dim() == 2 && weight.dim() == 2 && x.size(1) == weight.size(1) && weight.size(0) > 0,
             "linear_cross_entropy: x must be (tokens, width) and weight (vocab, width); x is {}, "
             "weight is {}",
             describe(x), describe(weight));
  user_check(x.scalar_type() == weight.scalar_type() && x.device() == weight.device() &&
                 at::isFloatingType(x.scalar_type()),
             "linear_cross_entropy: x and weight must share a floating dtype and device; x is {}, "
             "weight is {}",
             describe(x), describe(weight));
  user_check(targets.dim() == 1 && targets.size(0) == x.size(0) &&
                 targets.scalar_type() == at::kLong && targets.device() == x.device(),
             "linear_cross_entropy: targets must be int64 [{}] on the device of x, but are {}",
             x.size(0), describe(targets));
}

}  // namespace

at::Tensor linear_cross_entropy(const at::Tensor& x, const at::Tensor& weight,
                                const at::Tensor& targets) {
  check_linear_cross_entropy(x, weight, targets);
  if (x.is_meta())
    return empty_on_meta({x, weight}, {},
                         x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
  const at::Tensor contiguous = targets.contiguous();
  if (x.is_cpu() && !kernel_enabled(Kernel::kCrossEntropy)) {
    check_targets(contiguous, weight.size(0));
    return composed::linear_cross_entropy(x, weight, contiguous);
  }
  if (at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad()))
    return LinearCrossEntropyFunction::apply(x, weight, contiguous);
  return run(x, weight, contiguous, false, false).loss;
}

}  // namespace dovetail::ops
