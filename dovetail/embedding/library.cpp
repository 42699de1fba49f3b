#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/embedding/ranks/lookup_function.h"

/// Implements torch.classes.dovetail.EmbeddingTables and torch.ops.dovetail.embedding_*.
namespace dovetail::embedding {

namespace {

using Tables = c10::intrusive_ptr<TrainedTables>;

UpdateTime parse_update_time(const std::string& name) {
  if (name == "backward") return UpdateTime::kInBackward;
  user_check(name == "apply", "embedding: no time of update is named \"{}\"; use backward or apply",
             name);
  return UpdateTime::kOnApply;
}

constexpr size_t kNumbers = 6;

OptimizerSpec optimizer_from(const std::string& name, const double* numbers) {
  return {.kind = parse_optimizer(name),
          .lr = numbers[0],
          .momentum = numbers[1],
          .beta1 = numbers[2],
          .beta2 = numbers[3],
          .eps = numbers[4],
          .weight_decay = numbers[5]};
}

/// Makes tables. `optimizers` has the general optimizer first, then one for each table. `numbers`
/// has kNumbers for each.
Tables make_tables(const std::vector<std::string>& names, const std::vector<int64_t>& rows,
                   const std::vector<int64_t>& dims, const std::vector<std::string>& poolings,
                   const std::vector<int64_t>& feature_table,
                   const std::vector<std::string>& optimizers, const std::vector<double>& numbers,
                   const std::string& update, int64_t seed, const std::string& row_dtype,
                   at::Device device) {
  user_check(
      rows.size() == names.size() && dims.size() == names.size() && poolings.size() == names.size(),
      "embedding: {} names of tables, {} rows, {} dims, {} poolings; there must be one of each",
      names.size(), rows.size(), dims.size(), poolings.size());
  user_check(
      optimizers.size() == names.size() + 1 && numbers.size() == kNumbers * optimizers.size(),
      "embedding: {} optimizers with {} numbers for {} tables, but there must be the general one "
      "and one for each table. The numbers of each are lr, momentum, beta1, beta2, eps, "
      "weight_decay",
      optimizers.size(), numbers.size(), names.size());
  PackSpec spec{.feature_table = feature_table,
                .optimizer = optimizer_from(optimizers[0], numbers.data()),
                .seed = static_cast<uint64_t>(seed),
                .row_dtype = parse_row_dtype(row_dtype)};
  for (size_t t = 0; t < names.size(); ++t)
    spec.tables.push_back(
        {.name = names[t],
         .rows = rows[t],
         .dim = dims[t],
         .pooling = parse_pooling(poolings[t]),
         .optimizer = optimizer_from(optimizers[t + 1], numbers.data() + kNumbers * (t + 1))});
  return c10::make_intrusive<TrainedTables>(spec, parse_update_time(update), device);
}

/// Converts int32 ids or offsets to int64, which the tables require.
at::Tensor as_int64(const at::Tensor& numbers) {
  return numbers.scalar_type() == at::kInt ? numbers.to(at::kLong) : numbers;
}

at::Tensor library_lookup(const Tables& tables, const at::Tensor& values, const at::Tensor& offsets,
                          const std::optional<at::Tensor>& weights) {
  const auto features = std::ssize(tables->spec().feature_table);
  user_check(offsets.dim() == 1 && offsets.numel() >= 1 && features > 0 &&
                 (offsets.numel() - 1) % features == 0,
             "embedding: offsets must be ({} features * samples + 1), but has {} elements",
             features, offsets.numel());
  return lookup(tables, {.values = as_int64(values),
                         .offsets = as_int64(offsets),
                         .weights = weights.value_or(at::Tensor()),
                         .features = features,
                         .samples = (offsets.numel() - 1) / features});
}

c10::Dict<std::string, at::Tensor> library_state(const Tables& tables, int64_t table) {
  c10::Dict<std::string, at::Tensor> state;
  for (auto& [name, tensor] : tables->state(table)) state.insert(name, tensor);
  return state;
}

}  // namespace

}  // namespace dovetail::embedding

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  using dovetail::embedding::Tables;
  m.class_<dovetail::embedding::TrainedTables>("EmbeddingTables");
  dovetail::define<"embedding_tables", dovetail::embedding::make_tables>(m);
  dovetail::define<"embedding_lookup", dovetail::embedding::library_lookup>(m);
  dovetail::define<"embedding_apply", [](const Tables& tables) { tables->apply(); }>(m);
  dovetail::define<"embedding_set_lr", [](const Tables& tables, double lr) { tables->set_lr(lr); }>(
      m);
  dovetail::define<"embedding_weight",
                   [](const Tables& tables, int64_t table) { return tables->stored(table); }>(m);
  dovetail::define<"embedding_state", dovetail::embedding::library_state>(m);
  dovetail::define<"embedding_waiting", [](const Tables& tables) { return tables->waiting(); }>(m);
  dovetail::define<"embedding_steps", [](const Tables& tables) { return tables->steps(); }>(m);
  dovetail::define<"embedding_set_steps",
                   [](const Tables& tables, int64_t steps) { tables->set_steps(steps); }>(m);
}
