#include <ATen/ATen.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/embedding/ranks/learning_tables.h"
#include "dovetail/embedding/ranks/table_placement.h"

/// Implements operators of torch.ops.dovetail.embedding_*: lookups, their backward, and the choice
/// of features. Graphs of torch.compile and torch.export can hold them. Python registers their
/// shapes (python/dovetail/embedding/_operators.py).
namespace dovetail::embedding {

namespace {

using Tensors2 = std::tuple<at::Tensor, at::Tensor>;

void check_weights(const std::optional<at::Tensor>& weights) {
  user_check(!weights || !weights->requires_grad(),
             "embedding: the weights of ids get no gradient, but they require one; detach them");
}

/// Makes a batch of these tensors. `features` is the number of features.
Jagged jagged(const at::Tensor& values, const at::Tensor& offsets,
              const std::optional<at::Tensor>& weights, int64_t features) {
  user_check(offsets.dim() == 1 && offsets.numel() >= 1 && features > 0 &&
                 (offsets.numel() - 1) % features == 0,
             "embedding: offsets must be ({} features * samples + 1), but has {} elements",
             features, offsets.numel());
  return {.values = values,
          .offsets = offsets,
          .weights = weights.value_or(at::Tensor()),
          .features = features,
          .samples = (offsets.numel() - 1) / features};
}

Jagged jagged(const LearningTables& tables, const at::Tensor& values, const at::Tensor& offsets,
              const std::optional<at::Tensor>& weights) {
  return jagged(values, offsets, weights, std::ssize(tables.spec().feature_table));
}

Tensors2 run_lookup(const std::optional<at::Tensor>& anchor, int64_t tables,
                    const at::Tensor& values, const at::Tensor& offsets,
                    const std::optional<at::Tensor>& weights) {
  const std::shared_ptr<LearningTables> found = tables_of(tables);
  const Jagged batch = jagged(*found, values, offsets, weights);
  if (!anchor) return {found->pool(batch), at::full({}, -1, at::kLong)};
  const auto [pooled, number] = found->pool_for_training(batch);
  return {pooled, at::full({}, number, at::kLong)};
}

/// Returns what the shape of a result follows from: number of features, number of columns, and 1
/// with Pooling::kNone, else 0.
std::vector<int64_t> result_sizes(int64_t tables) {
  const std::shared_ptr<LearningTables> found = tables_of(tables);
  const PackSpec& spec = found->spec();
  const bool unpooled = !spec.tables.empty() && spec.tables.front().pooling == Pooling::kNone;
  return {std::ssize(spec.feature_table),
          unpooled ? spec.tables.front().dim : whole_columns(spec).back(), unpooled ? 1 : 0};
}

at::Tensor run_update(int64_t tables, const at::Tensor& number, const at::Tensor& gradient,
                      const at::Tensor& values, const at::Tensor& offsets,
                      const std::optional<at::Tensor>& weights) {
  const std::shared_ptr<LearningTables> found = tables_of(tables);
  found->add_gradient(number.item<int64_t>(),
                      {.batch = jagged(*found, values, offsets, weights), .gradient = gradient});
  return at::zeros({}, gradient.options());
}

Tensors2 lookup_operator(const std::optional<at::Tensor>& anchor, int64_t tables,
                         const at::Tensor& values, const at::Tensor& offsets,
                         const std::optional<at::Tensor>& weights) {
  static auto op = c10::Dispatcher::singleton()
                       .findSchemaOrThrow("dovetail::embedding_lookup", "")
                       .typed<Tensors2(const std::optional<at::Tensor>&, int64_t, const at::Tensor&,
                                       const at::Tensor&, const std::optional<at::Tensor>&)>();
  return op.call(anchor, tables, values, offsets, weights);
}

at::Tensor update_operator(int64_t tables, const at::Tensor& number, const at::Tensor& gradient,
                           const at::Tensor& values, const at::Tensor& offsets,
                           const std::optional<at::Tensor>& weights) {
  static auto op =
      c10::Dispatcher::singleton()
          .findSchemaOrThrow("dovetail::embedding_update", "")
          .typed<at::Tensor(int64_t, const at::Tensor&, const at::Tensor&, const at::Tensor&,
                            const at::Tensor&, const std::optional<at::Tensor>&)>();
  return op.call(tables, number, gradient, values, offsets, weights);
}

/// Backward of a lookup. Forward and backward call operators, so that a graph of torch.compile has
/// both. The rows have no gradient: `anchor`, an input that requires one, makes autograd call
/// backward.
class LookupFunction : public torch::autograd::Function<LookupFunction> {
 public:
  static torch::autograd::variable_list forward(torch::autograd::AutogradContext* context,
                                                const at::Tensor& anchor, int64_t tables,
                                                const at::Tensor& values, const at::Tensor& offsets,
                                                const std::optional<at::Tensor>& weights) {
    const at::AutoDispatchBelowADInplaceOrView below;
    const auto [pooled, number] = lookup_operator(anchor, tables, values, offsets, weights);
    context->save_for_backward({number, values, offsets, weights.value_or(at::Tensor())});
    context->saved_data["tables"] = tables;
    context->mark_non_differentiable({number});
    return {pooled, number};
  }

  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::AutoDispatchBelowADInplaceOrView below;
    return {update_operator(context->saved_data["tables"].toInt(), saved[0], gradients[0], saved[1],
                            saved[2], saved[3].defined() ? std::optional(saved[3]) : std::nullopt),
            at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

Tensors2 differentiable_lookup(const std::optional<at::Tensor>& anchor, int64_t tables,
                               const at::Tensor& values, const at::Tensor& offsets,
                               const std::optional<at::Tensor>& weights) {
  check_weights(weights);
  if (anchor) {
    const auto made = LookupFunction::apply(*anchor, tables, values, offsets, weights);
    return {made[0], made[1]};
  }
  const at::AutoDispatchBelowADInplaceOrView below;
  return lookup_operator(anchor, tables, values, offsets, weights);
}

/// Returns a spec for lookups in tables with these rows.
PackSpec spec_of_rows(at::TensorList rows, const std::vector<int64_t>& dims,
                      const std::vector<std::string>& poolings,
                      const std::vector<int64_t>& feature_table, const std::string& row_dtype) {
  user_check(rows.size() == dims.size() && rows.size() == poolings.size(),
             "embedding: rows of {} tables, {} dims, {} poolings; there must be one of each",
             rows.size(), dims.size(), poolings.size());
  PackSpec spec{
      .tables = {}, .feature_table = feature_table, .row_dtype = parse_row_dtype(row_dtype)};
  for (size_t t = 0; t < rows.size(); ++t) {
    user_check(rows[t].dim() == 2, "embedding: rows of a table must be (rows, dim)");
    spec.tables.push_back({.name = fmt::format("{}", t),
                           .rows = rows[t].size(0),
                           .dim = dims[t],
                           .pooling = parse_pooling(poolings[t])});
  }
  return spec;
}

at::Tensor pool_rows(at::TensorList rows, const at::Tensor& values, const at::Tensor& offsets,
                     const std::optional<at::Tensor>& weights, const std::vector<int64_t>& dims,
                     const std::vector<std::string>& poolings,
                     const std::vector<int64_t>& feature_table, const std::string& row_dtype) {
  const PackedTables tables(spec_of_rows(rows, dims, poolings, feature_table, row_dtype),
                            rows.vec());
  return pool(tables, jagged(values, offsets, weights, std::ssize(feature_table)));
}

/// Returns the batch with the features `order` of its `features`, as values, offsets and, if given,
/// weights.
std::vector<at::Tensor> select_features(const at::Tensor& values, const at::Tensor& offsets,
                                        const std::optional<at::Tensor>& weights, int64_t features,
                                        const std::vector<int64_t>& order) {
  check_weights(weights);
  const Jagged batch = jagged(values, offsets, weights, features);
  check_jagged(batch, std::vector<int64_t>(static_cast<size_t>(features), kAnyKey));
  for (const int64_t f : order)
    user_check(f >= 0 && f < features, "embedding: there is no feature {} of {}", f, features);
  const Jagged selected = embedding::features_of(batch, order);
  std::vector<at::Tensor> tensors = {selected.values, selected.offsets};
  if (selected.weights.defined()) tensors.push_back(selected.weights);
  return tensors;
}

}  // namespace

}  // namespace dovetail::embedding

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  // A lookup is no function of its arguments: it may not be done again, or once for two.
  m.def(
      "embedding_lookup(Tensor? anchor, int tables, Tensor values, Tensor offsets, Tensor? "
      "weights) -> (Tensor pooled, Tensor number)",
      {at::Tag::nondeterministic_seeded});
  m.def(
      "embedding_update(int tables, Tensor number, Tensor gradient, Tensor values, Tensor offsets, "
      "Tensor? weights) -> Tensor",
      {at::Tag::nondeterministic_seeded});
  const std::string pool = std::string("embedding_pool(Tensor[] rows, ") +
                           "Tensor values, Tensor offsets, Tensor? weights, int[] dims, " +
                           "str[] poolings, int[] feature_table, str row_dtype) -> Tensor";
  m.def(pool.c_str());
  m.def(
      "embedding_select(Tensor values, Tensor offsets, Tensor? weights, int features, int[] order) "
      "-> Tensor[]");
  dovetail::define<"embedding_result_sizes", dovetail::embedding::result_sizes>(m);
}

TORCH_LIBRARY_IMPL(dovetail, CPU, m) {
  dovetail::implement<"embedding_lookup", dovetail::embedding::run_lookup>(m);
  dovetail::implement<"embedding_update", dovetail::embedding::run_update>(m);
  dovetail::implement<"embedding_pool", dovetail::embedding::pool_rows>(m);
  dovetail::implement<"embedding_select", dovetail::embedding::select_features>(m);
}
TORCH_LIBRARY_IMPL(dovetail, CUDA, m) {
  dovetail::implement<"embedding_lookup", dovetail::embedding::run_lookup>(m);
  dovetail::implement<"embedding_update", dovetail::embedding::run_update>(m);
  dovetail::implement<"embedding_pool", dovetail::embedding::pool_rows>(m);
}
TORCH_LIBRARY_IMPL(dovetail, Autograd, m) {
  m.impl("embedding_lookup", &dovetail::embedding::differentiable_lookup);
}
