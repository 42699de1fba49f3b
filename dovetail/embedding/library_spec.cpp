#include "dovetail/embedding/library_spec.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

namespace dovetail::embedding {

namespace {

OptimizerSpec optimizer_from_json(const nlohmann::json& description) {
  return {.kind = parse_optimizer(description.at("name").get<std::string>()),
          .lr = description.at("lr"),
          .momentum = description.at("momentum"),
          .beta1 = description.at("betas").at(0),
          .beta2 = description.at("betas").at(1),
          .eps = description.at("eps"),
          .weight_decay = description.at("weight_decay"),
          .l1 = description.at("l1"),
          .l2 = description.at("l2"),
          .beta = description.at("beta")};
}

}  // namespace

PackSpec spec_from_json(const nlohmann::json& description) {
  PackSpec spec{.tables = {},
                .feature_table = description.at("features"),
                .optimizer = optimizer_from_json(description.at("optimizer")),
                .seed = static_cast<uint64_t>(description.at("seed").get<int64_t>()),
                .row_dtype = parse_row_dtype(description.at("row_dtype").get<std::string>())};
  for (const nlohmann::json& table : description.at("tables"))
    spec.tables.push_back({.name = table.at("name"),
                           .rows = table.at("rows"),
                           .dim = table.at("dim"),
                           .pooling = parse_pooling(table.at("pooling").get<std::string>()),
                           .hashed = table.at("dynamic"),
                           .max_bytes = table.at("max_bytes"),
                           .optimizer = optimizer_from_json(table.at("optimizer")),
                           .initial_range = table.at("initial_range")});
  return spec;
}

}  // namespace dovetail::embedding
