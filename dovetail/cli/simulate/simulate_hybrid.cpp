#include "dovetail/cli/simulate/simulate_hybrid.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/table.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/simulate/hybrid_studies.h"
#include "dovetail/report/page.h"

namespace dovetail::cli {
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

/// Results of all studies of the command.
struct Studies {
  std::string source;
  std::vector<std::string> assumptions;
  std::vector<ReadingResult> readings;
  std::vector<ScaleCase> scale;
  std::optional<FaultsCase> faults;
};

struct Table {
  std::string title;
  Rows rows;
};

std::string seconds(double s) { return fmt::format("{:.3f}", s); }

Table table_of_node(const ReadingResult& result) {
  Table table{"One node",
              {{"devices", "s", "variance", "least s", "in the paper", "s", "variance"}}};
  for (const NodeCase& one : result.one_node)
    table.rows.push_back({one.devices, seconds(one.seconds), fmt::format("{:.4f}", one.variance),
                          seconds(one.best_s), one.paper ? one.paper->program : "-",
                          one.paper ? fmt::format("{}", one.paper->seconds) : "-",
                          one.paper ? fmt::format("{}", one.paper->variance) : "-"});
  return table;
}

Table table_of_nodes(const ReadingResult& result) {
  Table table{"By number of nodes",
              {{"nodes", "GPUs a node", "CPU cores s", "GPUs s", "both s", "least s",
                "speed-up of cores", "of GPUs", "of both", "both over the faster kind"}}};
  for (const NodesCase& one : result.nodes)
    table.rows.push_back({fmt::format("{}", one.nodes), fmt::format("{}", one.gpus),
                          seconds(one.cpu_s), seconds(one.gpu_s), seconds(one.hybrid_s),
                          seconds(one.least_s), fmt::format("{:.1f}x", one.serial_s / one.cpu_s),
                          fmt::format("{:.1f}x", one.serial_s / one.gpu_s),
                          fmt::format("{:.1f}x", one.speed_up()),
                          fmt::format("{:.3f}x", std::min(one.cpu_s, one.gpu_s) / one.hybrid_s)});
  return table;
}

Table table_of_tasks(const ReadingResult& result) {
  Table table{"Time per gradient task",
              {{"nodes", "GPUs a node", "iteration of both s", "a core's task s", "a GPU's task s",
                "a GPU's task with GPUs alone s"}}};
  for (const NodesCase& one : result.nodes)
    table.rows.push_back(
        {fmt::format("{}", one.nodes), fmt::format("{}", one.gpus),
         fmt::format("{:.4f}", one.iteration_s), fmt::format("{:.4f}", one.core_task_s),
         fmt::format("{:.4f}", one.gpu_task_s), fmt::format("{:.4f}", one.gpu_alone_task_s)});
  return table;
}

Table table_of_scale(const std::vector<ScaleCase>& cases) {
  Table table{"Rows in proportion to the nodes, an iteration after the first",
              {{"nodes", "devices", "rows", "merged along a tree s", "one after another s",
                "work alone s", "efficiency (tree)", "events", "simulated in s", "events/s"}}};
  for (const ScaleCase& one : cases)
    table.rows.push_back({format_grouped(one.nodes), format_grouped(one.devices),
                          format_grouped(one.rows), fmt::format("{:.4f}", one.tree_s),
                          fmt::format("{:.4f}", one.ranks_s), fmt::format("{:.4f}", one.minimum_s),
                          fmt::format("{:.3f}", one.minimum_s / one.tree_s),
                          format_grouped(one.events), seconds(one.wall_s),
                          format_count(static_cast<double>(one.events) / one.wall_s)});
  return table;
}

Rows claims_of(const ReadingResult& result) {
  Rows rows = {{"the paper says", "", "simulated"}};
  for (const Claim& claim : result.claims)
    rows.push_back({claim.text, claim.confirmed ? "confirmed" : "not confirmed", claim.found});
  return rows;
}

std::string faults_text(const FaultsCase& faults) {
  std::string text =
      fmt::format("The cluster as it is takes {:.3f} s, with its faults {:.3f} s; {} restarts.\n",
                  faults.without_s, faults.with_s, faults.restarts);
  for (const std::string& reason : faults.left_out) text += "  left out: " + reason + "\n";
  return text;
}

Json to_json(const ReadingResult& result) {
  Json json = {{"reading", result.name}, {"one_node", Json::array()}, {"nodes", Json::array()}};
  for (const NodeCase& one : result.one_node) {
    json["one_node"].push_back({{"devices", one.devices},
                                {"seconds", one.seconds},
                                {"variance", one.variance},
                                {"least_s", one.best_s}});
    if (one.paper)
      json["one_node"].back()["paper"] = {{"program", one.paper->program},
                                          {"seconds", one.paper->seconds},
                                          {"variance", one.paper->variance}};
  }
  for (const NodesCase& one : result.nodes)
    json["nodes"].push_back({{"nodes", one.nodes},
                             {"gpus", one.gpus},
                             {"cpu_s", one.cpu_s},
                             {"gpu_s", one.gpu_s},
                             {"hybrid_s", one.hybrid_s},
                             {"least_s", one.least_s},
                             {"serial_s", one.serial_s},
                             {"speed_up", one.speed_up()},
                             {"core_task_s", one.core_task_s},
                             {"gpu_task_s", one.gpu_task_s},
                             {"gpu_alone_task_s", one.gpu_alone_task_s}});
  json["claims"] = Json::array();
  for (const Claim& claim : result.claims)
    json["claims"].push_back(
        {{"claim", claim.text}, {"found", claim.found}, {"confirmed", claim.confirmed}});
  return json;
}

Json to_json(const Studies& studies) {
  Json json = {{"simulated_from", studies.source},
               {"assumptions", studies.assumptions},
               {"readings", Json::array()}};
  for (const ReadingResult& result : studies.readings) json["readings"].push_back(to_json(result));
  json["scale"] = Json::array();
  for (const ScaleCase& one : studies.scale)
    json["scale"].push_back({{"nodes", one.nodes},
                             {"devices", one.devices},
                             {"rows", one.rows},
                             {"tree_s", one.tree_s},
                             {"ranks_s", one.ranks_s},
                             {"least_s", one.minimum_s},
                             {"events", one.events},
                             {"wall_s", one.wall_s}});
  if (studies.faults)
    json["faults"] = {{"without_s", studies.faults->without_s},
                      {"with_s", studies.faults->with_s},
                      {"restarts", studies.faults->restarts},
                      {"left_out", studies.faults->left_out}};
  return json;
}

void print_text(const Studies& studies) {
  print(fmt::format("Simulated, not measured; the figures are: {}\n", studies.source));
  for (const std::string& line : studies.assumptions) print("  assumed: " + line + "\n");
  for (const ReadingResult& result : studies.readings) {
    print(fmt::format("\n== {} ==\n", result.name));
    for (const Table& table :
         {table_of_node(result), table_of_nodes(result), table_of_tasks(result)})
      print(fmt::format("\n{}\n\n{}", table.title, format_table(table.rows, Heading::kFirstRow)));
    print("\n" + format_table(claims_of(result), Heading::kFirstRow));
  }
  const Table table = table_of_scale(studies.scale);
  print(fmt::format("\n== {} ==\n\n{}", table.title, format_table(table.rows, Heading::kFirstRow)));
  if (studies.faults) print("\n" + faults_text(*studies.faults));
}

std::string html_table(const Rows& rows) {
  std::string html = "<table>\n";
  for (size_t i = 0; i < rows.size(); ++i) {
    html += "<tr>";
    const char* tag = i == 0 ? "th" : "td";
    for (const std::string& cell : rows[i])
      html += fmt::format("<{0}>{1}</{0}>", tag, report::escape_html(cell));
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::string html_card(const std::string& title, const Rows& rows) {
  return fmt::format("<h3>{}</h3>\n<div class=\"card\">{}</div>\n", report::escape_html(title),
                     html_table(rows));
}

std::string html_chart(const report::LineChart& chart) {
  return fmt::format("<div class=\"chart wide\">{}</div>\n", report::line_chart_svg(chart));
}

std::string page(const Studies& studies, const std::string& command) {
  std::string html = report::page_head("Simulated: CPU cores and GPUs sharing one job");
  html += fmt::format(
      "<header><div>\n<div class=\"brand\"><b>Dovetail</b> simulation</div>\n<h1>CPU cores and "
      "GPUs sharing one job</h1>\n<p class=\"verdict\">Simulated, not measured; the figures are: "
      "{}.</p>\n</div></header>\n",
      report::escape_html(studies.source));
  if (!studies.assumptions.empty()) {
    html += "<h2>Assumed</h2>\n<ul>\n";
    for (const std::string& line : studies.assumptions)
      html += fmt::format("<li>{}</li>\n", report::escape_html(line));
    html += "</ul>\n";
  }
  for (const ReadingResult& result : studies.readings) {
    html += fmt::format("<h2>{}</h2>\n", report::escape_html(result.name));
    html += html_card("What the paper says", claims_of(result));
    html += "<div class=\"charts\">\n" + html_chart(chart_of_nodes(result)) + "</div>\n";
    for (const Table& table :
         {table_of_node(result), table_of_nodes(result), table_of_tasks(result)})
      html += html_card(table.title, table.rows);
  }
  html += "<h2>Speed-up and scale</h2>\n<div class=\"charts\">\n" +
          html_chart(chart_of_speed_up(studies.readings[0])) +
          html_chart(chart_of_scale(studies.scale)) + "</div>\n";
  const Table scale = table_of_scale(studies.scale);
  html += html_card(scale.title, scale.rows);
  if (studies.faults)
    html += fmt::format("<h2>Faults</h2>\n<pre>{}</pre>\n",
                        report::escape_html(faults_text(*studies.faults)));
  html += fmt::format("<h2>Reproduce</h2>\n<div class=\"command\"><pre>{}</pre></div>\n",
                      report::escape_html(command));
  return html + "</main>\n</body>\n</html>\n";
}

}  // namespace

void SimulateHybrid::declare(Arguments& arguments) {
  arguments
      .option(
          "--cluster", "FILE", &cluster_,
          "Cluster and job (TOML), as in configs/clusters/hybrid_uneven.toml (the paper's cluster)")
      .completes(Completion::kFile);
  arguments.option(
      "--set", "KEY=VALUE", &overrides_,
      "Override a key of the cluster, such as job.grain=4096 or network.merge=ranks; repeatable");
  arguments.option("--nodes", "N", &nodes_, "Maximum number of nodes in the studies (6)")
      .range(1, 256);
  arguments
      .option("--most-nodes", "N", &most_nodes_,
              "Maximum number of nodes to scale to, with rows in proportion (1024)")
      .range(1, 1 << 16);
  arguments.option("--runs", "N", &runs_, "Runs of each case, for their variance (200)")
      .range(2, 1e6);
  arguments.option("--seed", "N", &seed_, "Seed of the noise (0)").range(0, 9e15);
  arguments
      .option("--report", "FILE", &report_, "Write tables, pictures and verdicts as a page (HTML)")
      .completes(Completion::kFile);
}

void SimulateHybrid::run(const std::string& plot, bool json) const {
  const StudyOptions options{.nodes = nodes_,
                             .most_nodes = most_nodes_,
                             .runs = runs_,
                             .seed = seed_,
                             .paper = cluster_.empty()};
  Studies studies;
  std::vector<Reading> readings;
  if (cluster_.empty()) {
    readings = paper_readings(overrides_);
    studies.assumptions = paper_assumptions(readings[0].cluster);
  } else {
    readings = {{cluster_, read_hybrid_cluster(cluster_, overrides_)}};
  }
  const HybridCluster& first = readings[0].cluster;
  studies.source = first.source;
  for (const Reading& reading : readings) studies.readings.push_back(study(reading, options));
  studies.scale = study_scale(first, options);
  if (!first.fault.empty()) studies.faults = study_faults(first, static_cast<uint64_t>(seed_));

  std::string command =
      fmt::format("dovetail simulate hybrid --nodes {} --most-nodes {} --runs {} --seed {}", nodes_,
                  most_nodes_, runs_, seed_);
  if (!cluster_.empty()) command += " --cluster " + cluster_;
  for (const std::string& one : overrides_) command += " --set " + one;
  if (!plot.empty())
    write_file_atomically(plot, report::line_chart_svg(chart_of_nodes(studies.readings[0])));
  if (!report_.empty()) write_file_atomically(report_, page(studies, command));
  if (json) {
    print_json(to_json(studies));
  } else {
    print_text(studies);
  }
}

}  // namespace dovetail::cli
