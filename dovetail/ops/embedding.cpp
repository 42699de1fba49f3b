#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/threads.h"
#include "dovetail/base/trace.h"
#include "dovetail/ops/functions.h"
#include "dovetail/ops/meta.h"
#include "dovetail/ops/simd_level.h"

namespace dovetail::ops {

namespace {

/// Token positions grouped by id, in order within an id. Id i has positions[starts[i]] ..
/// positions[starts[i + 1] - 1].
struct PositionsOfIds {
  std::vector<int64_t> starts, positions;
};

PositionsOfIds group_positions(const at::Tensor& ids, int64_t vocab) {
  const int64_t* id = ids.const_data_ptr<int64_t>();
  PositionsOfIds groups{std::vector<int64_t>(static_cast<size_t>(vocab) + 1),
                        std::vector<int64_t>(static_cast<size_t>(ids.numel()))};
  for (int64_t t = 0; t < ids.numel(); ++t) ++groups.starts[static_cast<size_t>(id[t]) + 1];
  for (size_t i = 1; i < groups.starts.size(); ++i) groups.starts[i] += groups.starts[i - 1];
  std::vector<int64_t> next(groups.starts.begin(), groups.starts.end() - 1);
  for (int64_t t = 0; t < ids.numel(); ++t)
    groups.positions[static_cast<size_t>(next[static_cast<size_t>(id[t])]++)] = t;
  return groups;
}

template <class T>
void add_row(const T* __restrict from, int64_t width, float* __restrict to) {
#pragma omp simd
  for (int64_t i = 0; i < width; ++i) to[i] += static_cast<float>(from[i]);
}

/// Computes dweight[id] = sum of dy[t] over the positions t of id, in order and in float32.
template <class T>
void sum_rows(const PositionsOfIds& groups, const at::Tensor& dy, const at::Tensor& dweight) {
  const int64_t vocab = dweight.size(0), width = dweight.size(1);
  const T* from = dy.const_data_ptr<T>();
  T* to = dweight.mutable_data_ptr<T>();
  parallel_pieces(vocab, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
    std::vector<float> sum(static_cast<size_t>(width));
    for (int64_t id = begin; id < end; ++id) {
      const int64_t first = groups.starts[static_cast<size_t>(id)],
                    last = groups.starts[static_cast<size_t>(id) + 1];
      if (first == last) {
        std::fill_n(to + id * width, width, T(0));
        continue;
      }
      std::fill(sum.begin(), sum.end(), 0.0f);
      for (int64_t i = first; i < last; ++i)
        add_row(from + groups.positions[static_cast<size_t>(i)] * width, width, sum.data());
      std::transform(sum.begin(), sum.end(), to + id * width, [](float value) { return T(value); });
    }
  });
}

void check_ids(const at::Tensor& ids, int64_t vocab) {
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const auto [least, most] = std::minmax_element(id, id + ids.numel());
  user_check(*least >= 0 && *most < vocab, "embedding: id {} is outside of the vocabulary of {}",
             *least < 0 ? *least : *most, vocab);
}

/// Returns rows of weight for ids; both are contiguous.
at::Tensor look_up(const at::Tensor& weight, const at::Tensor& ids) {
  const TraceSpan span("dovetail::embedding");
  check_ids(ids, weight.size(0));
  auto sizes = ids.sizes().vec();
  sizes.push_back(weight.size(1));
  at::Tensor y = at::empty(sizes, weight.options());
  const size_t bytes = static_cast<size_t>(weight.size(1)) * weight.element_size();
  const int64_t* id = ids.const_data_ptr<int64_t>();
  const char* from = static_cast<const char*>(weight.const_data_ptr());
  char* to = static_cast<char*>(y.mutable_data_ptr());
  parallel_pieces(ids.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t)
      std::memcpy(to + static_cast<size_t>(t) * bytes, from + static_cast<size_t>(id[t]) * bytes,
                  bytes);
  });
  return y;
}

/// Returns the gradient of the weight; dy must be contiguous.
at::Tensor weight_gradient(const at::Tensor& ids, const at::Tensor& dy, int64_t vocab) {
  const TraceSpan span("dovetail::embedding");
  at::Tensor dweight = at::empty({vocab, dy.size(-1)}, dy.options());
  const PositionsOfIds groups = group_positions(ids, vocab);
  if (dy.scalar_type() == at::kFloat) {
    sum_rows<float>(groups, dy, dweight);
  } else {
    sum_rows<at::BFloat16>(groups, dy, dweight);
  }
  return dweight;
}

class EmbeddingFunction : public torch::autograd::Function<EmbeddingFunction> {
 public:
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& weight_in,
                            const at::Tensor& ids_in) {
    const at::Tensor weight = weight_in.contiguous(), ids = ids_in.contiguous();
    context->save_for_backward({ids});
    context->saved_data["vocab"] = weight.size(0);
    return operation("dovetail::embedding", {.reads = {weight, ids}}, [](const Operands& inputs) {
      return std::vector{look_up(inputs.reads[0], inputs.reads[1])};
    })[0];
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const int64_t vocab = context->saved_data["vocab"].toInt();
    const at::Tensor dweight =
        operation("dovetail::embedding_gradient",
                  {.reads = {context->get_saved_variables()[0], gradients[0].contiguous()}},
                  [vocab](const Operands& inputs) {
                    return std::vector{weight_gradient(inputs.reads[0], inputs.reads[1], vocab)};
                  })[0];
    return {dweight, at::Tensor()};
  }
};

}  // namespace

at::Tensor embedding(const at::Tensor& weight, const at::Tensor& ids) {
  user_check(weight.dim() == 2 && at::isFloatingType(weight.scalar_type()),
             "embedding: weight must be floating and (vocab, width), but is {}", describe(weight));
  user_check(ids.scalar_type() == at::kLong && ids.device() == weight.device(),
             "embedding: ids must be int64 on the device of weight {}, but are {}",
             describe(weight), describe(ids));
  if (weight.is_meta()) {
    auto sizes = ids.sizes().vec();
    sizes.push_back(weight.size(1));
    return empty_on_meta({weight}, sizes, weight.scalar_type());
  }
  if (!use_kernel(Kernel::kEmbedding, weight) || ids.numel() == 0 || weight.numel() == 0)
    return at::embedding(weight, ids);
  return EmbeddingFunction::apply(weight, ids);
}

}  // namespace dovetail::ops
