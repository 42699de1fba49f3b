#include <ATen/ATen.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <nlohmann/json.hpp>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/base/library.h"
#include "dovetail/embedding/library_spec.h"
#include "dovetail/embedding/ranks/trained_tables.h"

/// Implements torch.classes.dovetail.EmbeddingTables, and the operators torch.ops.dovetail.
/// embedding_* on the tables of one process. Tables are given by their handle.
namespace dovetail::embedding {

namespace {

using Owner = c10::intrusive_ptr<OwnedTables>;

UpdateTime parse_update_time(const std::string& name) {
  if (name == "backward") return UpdateTime::kInBackward;
  user_check(name == "apply", "embedding: no time of update is named \"{}\"; use backward or apply",
             name);
  return UpdateTime::kOnApply;
}

Owner make_tables(const std::string& description, const std::string& update, at::Device device) {
  return c10::make_intrusive<OwnedTables>(std::make_shared<TrainedTables>(
      spec_from_json(nlohmann::json::parse(description)), parse_update_time(update), device));
}

std::shared_ptr<TrainedTables> trained(int64_t handle) {
  auto tables = std::dynamic_pointer_cast<TrainedTables>(tables_of(handle));
  user_check(tables != nullptr, "embedding: the tables with handle {} are sharded", handle);
  return tables;
}

c10::Dict<std::string, at::Tensor> library_state(int64_t handle, int64_t table) {
  c10::Dict<std::string, at::Tensor> state;
  for (auto& [name, tensor] : trained(handle)->state(table)) state.insert(name, tensor);
  return state;
}

}  // namespace

}  // namespace dovetail::embedding

TORCH_LIBRARY_FRAGMENT(dovetail, m) {
  using dovetail::embedding::trained;
  m.class_<dovetail::embedding::OwnedTables>("EmbeddingTables")
      .def("handle", &dovetail::embedding::OwnedTables::handle);
  dovetail::define<"embedding_tables", dovetail::embedding::make_tables>(m);
  dovetail::define<"embedding_apply", [](int64_t tables) { trained(tables)->apply(); }>(m);
  dovetail::define<"embedding_set_lr",
                   [](int64_t tables, double lr) { trained(tables)->set_lr(lr); }>(m);
  dovetail::define<"embedding_weight",
                   [](int64_t tables, int64_t table) { return trained(tables)->stored(table); }>(m);
  dovetail::define<"embedding_state", dovetail::embedding::library_state>(m);
  dovetail::define<"embedding_waiting", [](int64_t tables) { return trained(tables)->waiting(); }>(
      m);
  dovetail::define<"embedding_steps", [](int64_t tables) { return trained(tables)->steps(); }>(m);
  dovetail::define<"embedding_set_steps",
                   [](int64_t tables, int64_t steps) { trained(tables)->set_steps(steps); }>(m);
}
