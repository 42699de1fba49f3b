#include "dovetail/comm/cost_model.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"

namespace dovetail::comm {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 4> kAlgorithmNames = {"linear", "2dh", "flexible",
                                                             "2dh_flexible"};

Json link_json(const Link& link) {
  return {{"latency_s", link.latency_s}, {"bytes_per_s", link.bytes_per_s}};
}

double number(const nlohmann::json& json, const char* key, const std::string& where) {
  user_check(json.contains(key), "{}: {} is missing", where, key);
  user_check(json[key].is_number(), "{}: {} is {}, not a number", where, key, json[key].dump());
  const double value = json[key].get<double>();
  user_check(std::isfinite(value) && value >= 0, "{}: {} is {}, not a positive number", where, key,
             value);
  return value;
}

double positive(const nlohmann::json& json, const char* key, const std::string& where) {
  const double value = number(json, key, where);
  user_check(value > 0, "{}: {} is 0, not a positive number", where, key);
  return value;
}

void check_keys(const nlohmann::json& json, const std::set<std::string>& known,
                const std::string& where) {
  user_check(json.is_object(), "{}: not an object", where);
  for (const auto& item : json.items())
    user_check(known.contains(item.key()), "{}: unknown key {}; valid are {}", where, item.key(),
               fmt::join(known, ", "));
}

Link parse_link(const nlohmann::json& json, const char* key, const std::string& where) {
  user_check(json.contains(key), "{}: {} is missing", where, key);
  const auto place = fmt::format("{}: {}", where, key);
  check_keys(json[key], {"latency_s", "bytes_per_s"}, place);
  return {number(json[key], "latency_s", place), positive(json[key], "bytes_per_s", place)};
}

}  // namespace

Json to_json(const CostModel& model) {
  Json json = {{"ranks_per_node", model.ranks_per_node}, {"inside", link_json(model.inside)}};
  if (model.between) json["between"] = link_json(*model.between);
  json["copy_bytes_per_s"] = model.copy_bytes_per_s;
  json["call_s"] = model.call_s;
  json["flops"] = model.flops;
  if (model.flops_alone > 0) json["flops_alone"] = model.flops_alone;
  json["overlap_share"] = model.overlap_share;
  if (model.gather) json["gather"] = link_json(*model.gather);
  if (model.reduce) json["reduce"] = link_json(*model.reduce);
  json["source"] = model.source;
  return json;
}

CostModel parse_cost_model(const nlohmann::json& json, const std::string& where) {
  check_keys(json,
             {"ranks_per_node", "inside", "between", "copy_bytes_per_s", "call_s", "flops",
              "flops_alone", "overlap_share", "gather", "reduce", "source"},
             where);
  CostModel model;
  const double ranks = positive(json, "ranks_per_node", where);
  user_check(ranks == std::floor(ranks) && ranks <= 1 << 20,
             "{}: ranks_per_node is {}, not a whole number", where, ranks);
  model.ranks_per_node = static_cast<int>(ranks);
  model.inside = parse_link(json, "inside", where);
  if (json.contains("between")) model.between = parse_link(json, "between", where);
  model.copy_bytes_per_s = positive(json, "copy_bytes_per_s", where);
  model.call_s = number(json, "call_s", where);
  model.flops = positive(json, "flops", where);
  if (json.contains("flops_alone")) model.flops_alone = positive(json, "flops_alone", where);
  if (json.contains("gather")) model.gather = parse_link(json, "gather", where);
  if (json.contains("reduce")) model.reduce = parse_link(json, "reduce", where);
  if (json.contains("overlap_share")) {
    model.overlap_share = number(json, "overlap_share", where);
    user_check(model.overlap_share <= 1, "{}: overlap_share is {}, not from 0 to 1", where,
               model.overlap_share);
  }
  user_check(json.contains("source") && json["source"].is_string(),
             "{}: source is missing; say in it where the figures come from", where);
  model.source = json["source"].get<std::string>();
  return model;
}

CostModel read_cost_model(const std::filesystem::path& path) {
  const auto json = nlohmann::json::parse(read_file(path), nullptr, /*allow_exceptions=*/false);
  user_check(!json.is_discarded(), "{}: not JSON", path.string());
  return parse_cost_model(json, path.string());
}

std::string_view name(AllToAllAlgorithm algorithm) {
  return kAlgorithmNames[static_cast<size_t>(algorithm)];
}

bool is_hierarchical(AllToAllAlgorithm algorithm) {
  return algorithm == AllToAllAlgorithm::kHierarchical ||
         algorithm == AllToAllAlgorithm::kHierarchicalFlexible;
}

bool is_flexible(AllToAllAlgorithm algorithm) {
  return algorithm == AllToAllAlgorithm::kFlexible ||
         algorithm == AllToAllAlgorithm::kHierarchicalFlexible;
}

double all_to_all_seconds(const CostModel& model, int ranks, double bytes_per_pair,
                          AllToAllAlgorithm algorithm) {
  if (ranks == 1) return 0;
  const int m = std::min(ranks, model.ranks_per_node), nodes = ranks / m;
  user_check(ranks % m == 0, "{} ranks do not fill nodes of {}", ranks, m);
  user_check(nodes == 1 || model.between.has_value(),
             "{} ranks are {} nodes of {}, but the cost model has no link between nodes", ranks,
             nodes, m);
  const Link between = model.between.value_or(Link{});
  if (!is_hierarchical(algorithm)) {
    const double inside = model.inside.seconds(m - 1, (m - 1) * bytes_per_pair);
    return inside + (nodes > 1 ? between.seconds(ranks - m, (ranks - m) * bytes_per_pair) : 0);
  }
  const double copies = 2 * ranks * bytes_per_pair / model.copy_bytes_per_s;
  const double inside = model.inside.seconds(m - 1, (m - 1) * nodes * bytes_per_pair);
  return copies + inside +
         (nodes > 1 ? between.seconds(nodes - 1, (nodes - 1) * m * bytes_per_pair) : 0);
}

Link fit_link(const std::vector<LinkSample>& samples) {
  // Normal equations of min sum ((alpha m + beta b) / t - 1)^2.
  double mm = 0, mb = 0, bb = 0, m1 = 0, b1 = 0;
  for (const auto& s : samples) {
    const double m = s.messages / s.seconds, b = s.bytes / s.seconds;
    mm += m * m, mb += m * b, bb += b * b, m1 += m, b1 += b;
  }
  const double determinant = mm * bb - mb * mb;
  DOVETAIL_CHECK(samples.size() >= 2 && determinant > 1e-12 * mm * bb,
                 "{} samples do not tell latency from bandwidth", samples.size());
  double alpha = (m1 * bb - b1 * mb) / determinant, beta = (mm * b1 - mb * m1) / determinant;
  if (alpha < 0) alpha = 0, beta = b1 / bb;
  if (beta <= 0) beta = 1e-15, alpha = m1 / mm;
  return {.latency_s = alpha, .bytes_per_s = 1 / beta};
}

}  // namespace dovetail::comm
