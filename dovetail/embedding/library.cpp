#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <optional>
#include <string>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/embedding/lookup_function.h"

/// torch.classes.dovetail.EmbeddingTables and torch.ops.dovetail.embedding_*.
namespace dovetail::embedding {

namespace {

using Tables = c10::intrusive_ptr<TrainedTables>;

UpdateTime parse_update_time(const std::string& name) {
  if (name == "backward") return UpdateTime::kInBackward;
  user_check(name == "apply", "embedding: no time of update is named \"{}\"; use backward or apply", name);
  return UpdateTime::kOnApply;
}

Tables make_tables(const std::vector<std::string>& names, const std::vector<int64_t>& rows,
                   const std::vector<int64_t>& dims, const std::vector<std::string>& poolings,
                   const std::vector<int64_t>& feature_table, const std::string& optimizer,
                   const std::vector<double>& numbers, const std::string& update, int64_t seed,
                   const std::string& row_dtype, at::Device device) {
  user_check(rows.size() == names.size() && dims.size() == names.size() && poolings.size() == names.size(),
             "embedding: {} names of tables, {} rows, {} dims, {} poolings; there must be one of each", names.size(),
             rows.size(), dims.size(), poolings.size());
  user_check(numbers.size() == 6,
             "embedding: the optimizer's numbers are lr, momentum, beta1, beta2, eps, weight_decay, but are {}",
             numbers.size());
  PackSpec spec{.feature_table = feature_table,
                .optimizer = {.kind = parse_optimizer(optimizer),
                              .lr = numbers[0],
                              .momentum = numbers[1],
                              .beta1 = numbers[2],
                              .beta2 = numbers[3],
                              .eps = numbers[4],
                              .weight_decay = numbers[5]},
                .seed = static_cast<uint64_t>(seed),
                .row_dtype = parse_row_dtype(row_dtype)};
  for (size_t t = 0; t < names.size(); ++t)
    spec.tables.push_back({.name = names[t], .rows = rows[t], .dim = dims[t], .pooling = parse_pooling(poolings[t])});
  return c10::make_intrusive<TrainedTables>(std::move(spec), parse_update_time(update), device);
}

at::Tensor library_lookup(const Tables& tables, const at::Tensor& values, const at::Tensor& offsets,
                          const std::optional<at::Tensor>& weights) {
  const auto features = static_cast<int64_t>(tables->tables().features().size());
  user_check(offsets.dim() == 1 && offsets.numel() >= 1 && features > 0 && (offsets.numel() - 1) % features == 0,
             "embedding: offsets must be ({} features * samples + 1), but has {} elements", features, offsets.numel());
  return lookup(tables, {.values = values,
                         .offsets = offsets,
                         .weights = weights.value_or(at::Tensor()),
                         .features = features,
                         .samples = (offsets.numel() - 1) / features});
}

c10::Dict<std::string, at::Tensor> library_state(const Tables& tables, int64_t table) {
  c10::Dict<std::string, at::Tensor> state;
  for (auto& [name, tensor] : tables->tables().state(table)) state.insert(name, tensor);
  return state;
}

}  // namespace

}  // namespace dovetail::embedding

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  using dovetail::embedding::Tables;
  m.class_<dovetail::embedding::TrainedTables>("EmbeddingTables");
  m.def("embedding_tables", dovetail::embedding::make_tables);
  m.def("embedding_lookup", dovetail::embedding::library_lookup);
  m.def("embedding_apply", [](const Tables& tables) { tables->apply(); });
  m.def("embedding_set_lr", [](const Tables& tables, double lr) { tables->tables().set_lr(lr); });
  m.def("embedding_weight", [](const Tables& tables, int64_t table) { return tables->tables().stored(table); });
  m.def("embedding_state", dovetail::embedding::library_state);
  m.def("embedding_steps", [](const Tables& tables) { return tables->tables().steps(); });
  m.def("embedding_set_steps", [](const Tables& tables, int64_t steps) { tables->tables().set_steps(steps); });
}
