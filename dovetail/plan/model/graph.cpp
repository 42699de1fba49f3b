#include "dovetail/plan/model/graph.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/json_fault.h"
#include "dovetail/plan/model/json_fields.h"

namespace dovetail::plan {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::array<std::string_view, 6> kKindNames = {"input",      "param", "state",
                                                        "activation", "grad",  "output"};

TensorKind parse_kind(const Fields& fields) {
  const std::string text = fields.text("kind");
  const auto found = std::find(kKindNames.begin(), kKindNames.end(), text);
  user_check(found != kKindNames.end(), "{}: kind is \"{}\"; valid are {}", fields.where(), text,
             fmt::join(kKindNames, ", "));
  return static_cast<TensorKind>(found - kKindNames.begin());
}

/// Maximum of each size and of all tensors together. It keeps sums of sizes far from the end of
/// int64.
constexpr double kMostBytes = 1LL << 50;

class GraphReader {
 public:
  GraphReader(const nlohmann::json& json, std::string where)
      : fields_(json, std::move(where),
                {"version", "budget_bytes", "bandwidth", "host_bytes", "base_bytes", "codecs",
                 "tensors", "nodes", "final"}) {}

  Graph read() {
    fields_.version_1();
    graph_.budget_bytes = fields_.bytes("budget_bytes");
    if (fields_.has("host_bytes")) graph_.host_bytes = fields_.bytes("host_bytes");
    if (fields_.has("base_bytes")) graph_.base_bytes = fields_.bytes("base_bytes", kMostBytes);
    const Fields bandwidth(fields_.at("bandwidth"), place("bandwidth"),
                           {"d2h", "h2d", "duplex", "slowdown"});
    graph_.bandwidth = {bandwidth.rate("d2h"), bandwidth.rate("h2d"),
                        bandwidth.flag("duplex", true),
                        bandwidth.has("slowdown") ? bandwidth.number("slowdown") : 0};
    read_codecs();
    read_tensors();
    int index = 0;
    for (const auto& node : fields_.list("nodes"))
      read_node(node, place(fmt::format("nodes[{}]", index++)));
    if (fields_.has("final")) graph_.final = tensors(fields_.list("final"), place("final"));
    check_order();
    check_sums();
    return std::move(graph_);
  }

 private:
  std::string place(const std::string& inside) const {
    return fmt::format("{}: {}", fields_.where(), inside);
  }

  void read_codecs() {
    if (!fields_.has("codecs")) return;
    user_check(fields_.at("codecs").is_object(), "{}: not an object", place("codecs"));
    for (const auto& item : fields_.at("codecs").items()) {
      const Fields codec(item.value(), place("codecs." + item.key()),
                         {"ratio", "enc_Bps", "dec_Bps", "max_err"});
      graph_.codecs.push_back({.name = item.key(),
                               .ratio = codec.number("ratio"),
                               .encode_bytes_per_s = codec.rate("enc_Bps"),
                               .decode_bytes_per_s = codec.rate("dec_Bps"),
                               .max_error = codec.has("max_err") ? codec.number("max_err") : 0});
    }
  }

  void read_tensors() {
    std::vector<std::string> aliases;
    for (const auto& json : fields_.list("tensors")) {
      const auto at = place(fmt::format("tensors[{}]", graph_.tensors.size()));
      const Fields tensor(json, at, {"id", "bytes", "kind", "alias_of", "lossy_ok", "codecs"});
      GraphTensor made{.id = tensor.text("id"),
                       .kind = parse_kind(tensor),
                       .lossy_ok = tensor.flag("lossy_ok", false)};
      if (tensor.has("codecs")) made.codecs = codecs(tensor.list("codecs"), at + ": codecs");
      aliases.push_back(tensor.has("alias_of") ? tensor.text("alias_of") : "");
      if (tensor.has("bytes") || aliases.back().empty())
        made.bytes = tensor.bytes("bytes", kMostBytes);
      user_check(tensor_of_.emplace(made.id, static_cast<int>(graph_.tensors.size())).second,
                 "{}: a tensor before it is named \"{}\" too", at, made.id);
      graph_.tensors.push_back(std::move(made));
    }
    for (size_t i = 0; i < aliases.size(); ++i)
      if (!aliases[i].empty()) graph_.tensors[i].alias_of = tensor(aliases[i], place("alias_of"));
    for (size_t i = 0; i < aliases.size(); ++i) {
      int at = static_cast<int>(i);
      for (size_t steps = 0; graph_.tensors[at].alias_of >= 0;
           ++steps, at = graph_.tensors[at].alias_of)
        user_check(steps <= aliases.size(), "{}: the views of \"{}\" lead back to it",
                   fields_.where(), graph_.tensors[i].id);
    }
  }

  void read_node(const nlohmann::json& json, const std::string& at) {
    const Fields node(json, at,
                      {"name", "layer", "inputs", "outputs", "mutates", "random", "recomputable",
                       "reads_unpacked", "algos"});
    GraphNode made{.name = node.text("name"),
                   .layer = node.has("layer") ? node.text("layer") : "",
                   .inputs = tensors(node.list("inputs"), at + ": inputs"),
                   .outputs = tensors(node.list("outputs"), at + ": outputs"),
                   .random = node.flag("random", false)};
    if (node.has("mutates")) made.mutates = tensors(node.list("mutates"), at + ": mutates");
    made.recomputable = node.flag("recomputable", !made.random);
    made.reads_unpacked = node.flag("reads_unpacked", false);
    for (const auto& algorithm : node.list("algos")) {
      const Fields fields(algorithm, fmt::format("{}: algos[{}]", at, made.algorithms.size()),
                          {"name", "time", "workspace", "host"});
      made.algorithms.push_back(
          {fields.text("name"), fields.number("time"), fields.bytes("workspace", kMostBytes)});
      if (!fields.has("host")) continue;
      made.algorithms.back().on_host = tensors(fields.list("host"), fields.where() + ": host");
      for (const int t : made.algorithms.back().on_host)
        user_check(graph_.tensors[t].alias_of < 0 && may_start_on_host(graph_.tensors[t].kind) &&
                       std::find(made.mutates.begin(), made.mutates.end(), t) != made.mutates.end(),
                   "{}: host names \"{}\", which is no parameter or state that the node mutates",
                   fields.where(), graph_.tensors[t].id);
    }
    user_check(!made.algorithms.empty(), "{}: algos is empty", at);
    user_check(made.algorithms[0].on_host.empty(),
               "{}: algos[0] has a host, but the first has to find all on the device", at);
    for (const GraphNode& other : graph_.nodes)
      user_check(other.name != made.name, "{}: a node before it is named \"{}\" too", at,
                 made.name);
    graph_.nodes.push_back(std::move(made));
  }

  int tensor(const std::string& id, const std::string& at) const {
    const auto found = tensor_of_.find(id);
    user_check(found != tensor_of_.end(), "{}: there is no tensor \"{}\"", at, id);
    return found->second;
  }

  std::vector<int> codecs(const nlohmann::json& list, const std::string& at) const {
    std::vector<int> out;
    for (const auto& json : list) {
      const auto found = std::find_if(graph_.codecs.begin(), graph_.codecs.end(),
                                      [&](const Codec& codec) { return json == codec.name; });
      user_check(found != graph_.codecs.end(), "{}: there is no codec {}", at, json.dump());
      out.push_back(static_cast<int>(found - graph_.codecs.begin()));
    }
    return out;
  }

  std::vector<int> tensors(const nlohmann::json& list, const std::string& at) const {
    std::vector<int> out;
    for (const auto& id : list) {
      user_check(id.is_string(), "{}: {} is not the name of a tensor", at, id.dump());
      out.push_back(tensor(id.get<std::string>(), at));
    }
    return out;
  }

  void check_order() const {
    std::vector<bool> made(graph_.tensors.size());
    std::vector<bool> produced(graph_.tensors.size());
    for (size_t t = 0; t < made.size(); ++t) made[t] = resident_at_start(graph_.tensors[t].kind);
    for (const GraphNode& node : graph_.nodes) {
      for (const auto* reads : {&node.inputs, &node.mutates})
        for (const int t : *reads)
          user_check(made[graph_.root(t)], "{}: node \"{}\" reads \"{}\" before any node made it",
                     fields_.where(), node.name, graph_.tensors[t].id);
      for (const int t : node.outputs) {
        if (graph_.root(t) != t) continue;
        user_check(!produced[t] && !made[t], "{}: tensor \"{}\" has two producers", fields_.where(),
                   graph_.tensors[t].id);
        made[t] = produced[t] = true;
      }
    }
  }

  /// Throws UserError if a sum of sizes exceeds the bound. Also if float64 does not hold a time to
  /// a nanosecond, the precision at which schedules compare times.
  void check_sums() const {
    constexpr double kLongestS = 1e6;
    double bytes = 0, seconds = 0;
    for (const GraphTensor& tensor : graph_.tensors) bytes += static_cast<double>(tensor.bytes);
    for (const GraphNode& node : graph_.nodes)
      seconds += std::ranges::max(node.algorithms, {}, &Algorithm::time_s).time_s;
    user_check(bytes <= kMostBytes, "{}: all tensors have {:.4g} bytes; up to {:.4g} are planned",
               place("tensors"), bytes, kMostBytes);
    for (const Codec& codec : graph_.codecs)
      user_check(codec.ratio * bytes <= kMostBytes,
                 "{}: a ratio of {} packs all tensors to {:.4g} bytes; up to {:.4g} are planned",
                 place("codecs." + codec.name), codec.ratio, codec.ratio * bytes, kMostBytes);
    user_check(seconds <= kLongestS,
               "{}: all operations take {:.3g} s; a step of up to {:.0e} s is planned",
               place("nodes"), seconds, kLongestS);
    for (const auto& [key, rate] :
         {std::pair("d2h", graph_.bandwidth.to_host), {"h2d", graph_.bandwidth.to_device}})
      user_check(
          bytes <= kLongestS * rate,
          "{}: {} bytes a second copy all tensors in {:.3g} s; a step of up to {:.0e} s is planned",
          place(fmt::format("bandwidth: {}", key)), rate, bytes / rate, kLongestS);
  }

  Fields fields_;
  Graph graph_;
  std::map<std::string, int> tensor_of_;
};

}  // namespace

std::string_view name(TensorKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

bool resident_at_start(TensorKind kind) {
  return kind == TensorKind::kInput || kind == TensorKind::kParam || kind == TensorKind::kState;
}

bool may_start_on_host(TensorKind kind) {
  return kind == TensorKind::kParam || kind == TensorKind::kState;
}

bool Algorithm::finds_on_host(int tensor) const {
  return std::find(on_host.begin(), on_host.end(), tensor) != on_host.end();
}

int64_t Graph::extra_bytes(const Algorithm& algorithm) const {
  int64_t out = algorithm.workspace_bytes;
  for (const int t : algorithm.on_host) out -= tensors[t].bytes;
  return out;
}

int Graph::root(int tensor) const {
  while (tensors[tensor].alias_of >= 0) tensor = tensors[tensor].alias_of;
  return tensor;
}

bool Graph::may_be_packed(int tensor, int codec) const {
  const GraphTensor& t = tensors[tensor];
  const bool holds =
      !t.codecs || std::find(t.codecs->begin(), t.codecs->end(), codec) != t.codecs->end();
  return holds && (t.lossy_ok || codecs[codec].max_error == 0);
}

int64_t Graph::packed_bytes(int tensor, int codec) const {
  return static_cast<int64_t>(
      std::ceil(static_cast<double>(tensors[tensor].bytes) * codecs[codec].ratio));
}

nlohmann::ordered_json to_json(const Graph& graph) {
  const auto ids = [&](const std::vector<int>& list) {
    Json out = Json::array();
    for (const int t : list) out.push_back(graph.tensors[t].id);
    return out;
  };
  Json json = {{"version", 1}, {"budget_bytes", graph.budget_bytes}};
  json["bandwidth"] = {{"d2h", graph.bandwidth.to_host},
                       {"h2d", graph.bandwidth.to_device},
                       {"duplex", graph.bandwidth.duplex}};
  if (graph.bandwidth.slowdown > 0) json["bandwidth"]["slowdown"] = graph.bandwidth.slowdown;
  if (graph.host_bytes) json["host_bytes"] = *graph.host_bytes;
  json["base_bytes"] = graph.base_bytes;
  for (const Codec& codec : graph.codecs)
    json["codecs"][codec.name] = {{"ratio", codec.ratio},
                                  {"enc_Bps", codec.encode_bytes_per_s},
                                  {"dec_Bps", codec.decode_bytes_per_s},
                                  {"max_err", codec.max_error}};
  json["tensors"] = Json::array();
  for (const GraphTensor& tensor : graph.tensors) {
    Json one = {{"id", tensor.id}, {"bytes", tensor.bytes}, {"kind", name(tensor.kind)}};
    if (tensor.alias_of >= 0) one["alias_of"] = graph.tensors[tensor.alias_of].id;
    if (tensor.lossy_ok) one["lossy_ok"] = true;
    if (tensor.codecs && !graph.codecs.empty()) {
      one["codecs"] = Json::array();
      for (const int codec : *tensor.codecs) one["codecs"].push_back(graph.codecs[codec].name);
    }
    json["tensors"].push_back(std::move(one));
  }
  json["nodes"] = Json::array();
  for (const GraphNode& node : graph.nodes) {
    Json one = {{"name", node.name}, {"inputs", ids(node.inputs)}, {"outputs", ids(node.outputs)}};
    if (!node.layer.empty()) one["layer"] = node.layer;
    if (!node.mutates.empty()) one["mutates"] = ids(node.mutates);
    one["random"] = node.random;
    one["recomputable"] = node.recomputable;
    if (node.reads_unpacked) one["reads_unpacked"] = true;
    for (const Algorithm& algorithm : node.algorithms) {
      one["algos"].push_back({{"name", algorithm.name},
                              {"time", algorithm.time_s},
                              {"workspace", algorithm.workspace_bytes}});
      if (!algorithm.on_host.empty()) one["algos"].back()["host"] = ids(algorithm.on_host);
    }
    json["nodes"].push_back(std::move(one));
  }
  json["final"] = ids(graph.final);
  return json;
}

Graph parse_graph(const nlohmann::json& json, const std::string& where) {
  return GraphReader(json, where).read();
}

nlohmann::json read_json(const std::filesystem::path& path) {
  try {
    return nlohmann::json::parse(read_file(path));
  } catch (const nlohmann::json::exception& error) {
    throw UserError(fmt::format("{}: not JSON: {}", path.string(), json_fault(error)));
  }
}

Graph read_graph(const std::filesystem::path& path) {
  return parse_graph(read_json(path), path.string());
}

}  // namespace dovetail::plan
