#include "dovetail/plan/model/actions.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/plan/model/json_fields.h"

namespace dovetail::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 8> kOpNames = {
    "compute", "offload", "prefetch", "free", "free_host", "compress", "decompress", "free_packed"};

class PlanReader {
 public:
  PlanReader(const Graph& graph, std::string where) : graph_(graph), where_(std::move(where)) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      node_of_[graph.nodes[n].name] = static_cast<int>(n);
    for (size_t t = 0; t < graph.tensors.size(); ++t)
      tensor_of_[graph.tensors[t].id] = static_cast<int>(t);
  }

  Plan read(const nlohmann::json& json) {
    const Fields fields(json, where_, {"version", "starts_on_host", "actions", "claims"});
    fields.version_1();
    Plan plan;
    if (fields.has("starts_on_host"))
      for (const auto& id : fields.list("starts_on_host")) {
        user_check(id.is_string(), "{}: starts_on_host: {} is not a string", where_, id.dump());
        plan.starts_on_host.push_back(
            look_up(tensor_of_, id.get<std::string>(), where_ + ": starts_on_host", "tensor"));
      }
    for (const auto& action : fields.list("actions"))
      plan.actions.push_back(read_action(action, plan.actions.size()));
    if (fields.has("claims")) {
      const Fields claims(fields.at("claims"), where_ + ": claims", {"peak_bytes", "makespan"});
      if (claims.has("peak_bytes")) plan.claimed_peak_bytes = claims.bytes("peak_bytes");
      if (claims.has("makespan")) plan.claimed_makespan_s = claims.number("makespan");
    }
    return plan;
  }

 private:
  Action read_action(const nlohmann::json& json, size_t position) {
    const auto at = fmt::format("{}: action {}", where_, position);
    const Fields fields(json, at, {"id", "op", "node", "algo", "tensor", "codec", "deps"});
    const std::string op = fields.text("op");
    const auto found = std::find(kOpNames.begin(), kOpNames.end(), op);
    user_check(found != kOpNames.end(), "{}: unknown op \"{}\"; valid are {}", at, op,
               fmt::join(kOpNames, ", "));
    Action action{.op = static_cast<Op>(found - kOpNames.begin())};
    if (action.op == Op::kCompute) {
      action.node = look_up(node_of_, fields.text("node"), at, "node");
      if (fields.has("algo")) action.algorithm = algorithm(action.node, fields.text("algo"), at);
    } else {
      action.tensor = look_up(tensor_of_, fields.text("tensor"), at, "tensor");
    }
    if (action.op == Op::kCompress) action.codec = codec(fields.text("codec"), at);
    if (fields.has("deps"))
      for (const auto& id : fields.list("deps")) {
        const auto earlier = position_of_.find(id.dump());
        user_check(earlier != position_of_.end(), "{}: dep {} is not issued earlier", at,
                   id.dump());
        action.waits.push_back(earlier->second);
      }
    const std::string id = fields.has("id") ? fields.at("id").dump() : std::to_string(position);
    user_check(position_of_.emplace(id, static_cast<int>(position)).second, "{}: duplicate id {}",
               at, id);
    return action;
  }

  static int look_up(const std::map<std::string, int>& names, const std::string& name,
                     const std::string& at, const char* what) {
    const auto found = names.find(name);
    user_check(found != names.end(), "{}: unknown {} \"{}\"", at, what, name);
    return found->second;
  }

  int algorithm(int node, const std::string& name, const std::string& at) const {
    const auto& algorithms = graph_.nodes[node].algorithms;
    const auto found = std::find_if(algorithms.begin(), algorithms.end(),
                                    [&](const auto& a) { return a.name == name; });
    user_check(found != algorithms.end(), "{}: {} has no algorithm \"{}\"", at,
               graph_.nodes[node].name, name);
    return static_cast<int>(found - algorithms.begin());
  }

  int codec(const std::string& name, const std::string& at) const {
    const auto found = std::find_if(graph_.codecs.begin(), graph_.codecs.end(),
                                    [&](const auto& c) { return c.name == name; });
    user_check(found != graph_.codecs.end(), "{}: unknown codec \"{}\"", at, name);
    return static_cast<int>(found - graph_.codecs.begin());
  }

  const Graph& graph_;
  std::string where_;
  std::map<std::string, int> node_of_, tensor_of_, position_of_;
};

}  // namespace

std::string_view name(Op op) { return kOpNames[static_cast<size_t>(op)]; }

nlohmann::ordered_json to_json(const Plan& plan, const Graph& graph) {
  Json json = {{"version", 1}};
  for (const int t : plan.starts_on_host) json["starts_on_host"].push_back(graph.tensors[t].id);
  json["actions"] = Json::array();
  for (size_t i = 0; i < plan.actions.size(); ++i) {
    const Action& action = plan.actions[i];
    Json one = {{"id", i}, {"op", name(action.op)}};
    if (action.op == Op::kCompute) {
      const GraphNode& node = graph.nodes[action.node];
      one["node"] = node.name;
      one["algo"] = node.algorithms[action.algorithm].name;
    } else {
      one["tensor"] = graph.tensors[action.tensor].id;
    }
    if (action.op == Op::kCompress) one["codec"] = graph.codecs[action.codec].name;
    if (!action.waits.empty()) one["deps"] = action.waits;
    json["actions"].push_back(std::move(one));
  }
  if (plan.claimed_peak_bytes) json["claims"]["peak_bytes"] = *plan.claimed_peak_bytes;
  if (plan.claimed_makespan_s) json["claims"]["makespan"] = *plan.claimed_makespan_s;
  return json;
}

Plan parse_plan(const nlohmann::json& json, const Graph& graph, const std::string& where) {
  return PlanReader(graph, where).read(json);
}

Plan read_plan(const std::filesystem::path& path, const Graph& graph) {
  return parse_plan(read_json(path), graph, path.string());
}

}  // namespace dovetail::plan
