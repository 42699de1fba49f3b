#include "dovetail/train/report/run_page.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "dovetail/report/page.h"

namespace dovetail::train {
namespace {

using Json = nlohmann::ordered_json;

std::string escaped(const Json& object, const char* key) {
  return report::escape_html(object.at(key).get<std::string>());
}

/// JSON for use inside a <script>. Without '<' it contains no end tag and no comment.
std::string script_json(const Json& json) {
  std::string text;
  for (const char c : json.dump(-1, ' ', false, Json::error_handler_t::replace)) {
    text += c == '<' ? std::string("\\u003c") : std::string(1, c);
  }
  return text;
}

std::string header(const Json& data) {
  const bool finished = data.at("finished");
  std::string where = escaped(data, "where");
  if (!where.empty()) where = " on " + where;
  return fmt::format(
      "<header><div>\n<div class=\"brand\"><b>Dovetail</b> training report</div>\n"
      "<h1>{}<span class=\"state{}\">{}</span></h1>\n<p class=\"verdict\">{}</p>\n<p "
      "class=\"where\">model {}{}</p>\n</div>\n"
      "<button id=\"theme\" title=\"light or dark\">◐</button>\n</header>\n",
      escaped(data, "name"), finished ? " finished" : "", finished ? "finished" : "not finished",
      escaped(data, "verdict"), escaped(data, "model"), where);
}

std::string tiles(const Json& data) {
  std::vector<report::Tile> tiles;
  for (const Json& tile : data.at("tiles"))
    tiles.push_back(
        {.label = tile.at("label"), .value = tile.at("value"), .note = tile.at("note")});
  return report::tiles_html(tiles);
}

constexpr const char* kAxes = R"(<div class="bar">
<span class="group"><button data-axis="0" aria-pressed="true">steps</button><button data-axis="1" aria-pressed="false">{}s</button><button
 data-axis="2" aria-pressed="false">time</button></span>
)";

constexpr const char* kControls =
    R"(<label>smoothing <input id="smoothing" type="range" min="0" max="0.99" step="0.01" value="0.8"><output>0.8</output></label>
<button id="reset">reset zoom</button>
<span class="hint">drag to zoom all charts, double-click to reset</span>
</div>
<div class="charts" id="charts"></div>
<noscript><p>The plots are drawn by a script inside this page; it loads nothing.</p></noscript>
)";

std::string samples(const Json& data) {
  if (data.at("samples").empty()) return "";
  std::string html = "<h2>Samples</h2>\n";
  for (const Json& sample : data.at("samples")) {
    html += fmt::format("<pre class=\"sample\"><b>{}</b>{}</pre>\n", escaped(sample, "prompt"),
                        escaped(sample, "continuation"));
  }
  return html;
}

std::string quantization(const Json& data) {
  const Json& panel = data.at("quantization");
  if (panel.is_null()) return "";
  std::string html = fmt::format(
      "<h2>Quantization</h2>\n<p>Step {}, the tensors with the most noise first. <i>Underflow</i>: "
      "elements that became zero; <i>saturation</i>: elements beyond the format's largest "
      "number.</p>\n<div class=\"card\"><table>\n",
      panel.at("step").dump());
  html += "<tr>";
  for (const char* column :
       {"layer", "tensor", "format", "signal to noise", "underflow", "saturation",
        "blocks that saturate", "that would under floor", "largest", "scales"}) {
    html += fmt::format("<th>{}</th>", column);
  }
  html += "</tr>\n";
  for (const Json& row : panel.at("rows")) {
    html += "<tr>";
    for (const Json& cell : row)
      html += fmt::format("<td>{}</td>", report::escape_html(cell.get<std::string>()));
    html += "</tr>\n";
  }
  return html + "</table></div>\n";
}

std::string experts(const Json& data) {
  const Json& panel = data.at("experts");
  if (panel.is_null()) return "";
  std::string html = fmt::format(
      "<h2>Experts</h2>\n<p>Load of each expert from step {} to {}, an expert a row, the first on "
      "top; 1 is an even share.</p>\n<p class=\"legend\">",
      panel.at("first").dump(), panel.at("last").dump());
  for (const Json& band : panel.at("bands"))
    html += fmt::format("<span style=\"--mark:{}\">{}</span> ", escaped(band, "colour"),
                        escaped(band, "words"));
  html += "</p>\n<div class=\"charts\">\n";
  for (const Json& layer : panel.at("layers"))
    html += fmt::format(
        "<div class=\"chart\"><div class=\"top\"><h3>{}</h3><span "
        "class=\"legend\">{}</span></div>{}</div>\n",
        escaped(layer, "layer"), escaped(layer, "plan"), layer.at("map").get<std::string>());
  return html + "</div>\n";
}

std::string table(const Json& rows, std::initializer_list<const char*> heads) {
  std::string html = "<table>\n<tr>";
  for (const char* head : heads) html += fmt::format("<th>{}</th>", head);
  html += "</tr>\n";
  for (const Json& row : rows) {
    html += "<tr>";
    for (const Json& cell : row)
      html += fmt::format("<td>{}</td>", report::escape_html(cell.get<std::string>()));
    html += "</tr>\n";
  }
  return html + "</table>\n";
}

std::vector<report::LegendItem> legend_of(const Json& items) {
  std::vector<report::LegendItem> legend;
  for (const Json& item : items)
    legend.push_back({.colour = item.at("colour"), .words = item.at("words")});
  return legend;
}

std::string memory(const Json& data) {
  const Json& panel = data.at("memory");
  if (panel.is_null()) return "";
  using report::ChartWidth;
  const auto chart = [&](ChartWidth width, const char* title,
                         const std::vector<report::LegendItem>& legend, const char* name) {
    return report::chart_box(width, title, legend, panel.at(name).get<std::string>());
  };
  std::string html = fmt::format("<h2>Memory plan</h2>\n<p>{}</p>\n<div class=\"charts\">\n",
                                 escaped(panel, "words"));
  html += chart(ChartWidth::kFull, "Memory over one step, simulated by purpose",
                legend_of(panel.at("legend")), "chart");
  html += chart(ChartWidth::kFull, "Streams of the step",
                {{"var(--c0)", "computing"},
                 {"var(--c1)", "recomputed"},
                 {"var(--c2)", "to the slow tier"},
                 {"var(--c3)", "and back"}},
                "streams");
  if (!panel.at("curve").get<std::string>().empty())
    html += chart(ChartWidth::kHalf, "Time against memory", {}, "curve");
  html += "<div class=\"chart\"><div class=\"top\"><h3>Predicted and measured</h3></div>" +
          table(panel.at("compared"), {"", "everything kept", "predicted", "measured", ""}) +
          "<div class=\"top\"><h3>Decisions</h3></div>" +
          table(panel.at("decisions"), {"", "storages", "bytes", "cost in time"}) +
          "</div>\n</div>\n";
  return html +
         "<details><summary>what was decided in each layer, and why</summary>\n<div "
         "class=\"card\">" +
         table(panel.at("layers"), {"layer", "decision", "storages", "bytes", "why"}) +
         "</div></details>\n";
}

std::string decisions(const Json& data) {
  if (data.at("decisions").empty()) return "";
  std::string html =
      "<h2>Decisions</h2>\n<div "
      "class=\"card\"><table>\n<tr><th>what</th><th>asked</th><th>chosen</th><th>why</th></tr>\n";
  for (const Json& d : data.at("decisions")) {
    html += fmt::format(
        "<tr><td class=\"key\"><code>{}</code></td><td>{}</td><td>{}</td><td>{}</td></tr>\n",
        escaped(d, "what"), escaped(d, "asked"), escaped(d, "chosen"), escaped(d, "reason"));
  }
  return html + "</table></div>\n";
}

std::string machine_panel(const Json& data) {
  if (data.at("machine").empty()) return "";
  std::string html = "<h2>Machine and data</h2>\n<div class=\"card\"><table>\n";
  for (const Json& row : data.at("machine")) {
    html += fmt::format("<tr><td class=\"key\">{}</td><td>{}</td></tr>\n",
                        report::escape_html(row.at(0).get<std::string>()),
                        report::escape_html(row.at(1).get<std::string>()));
  }
  return html + "</table></div>\n";
}

std::string commands(const Json& data) {
  std::string html = "<h2>Reproduce</h2>\n";
  for (const Json& command : data.at("commands")) {
    html += fmt::format("<div class=\"command\"><pre>{}</pre><button>copy</button></div>\n",
                        report::escape_html(command.get<std::string>()));
  }
  return html;
}

}  // namespace

std::string report_page(const Json& data) {
  std::string html = report::page_head(data.at("name").get<std::string>());
  html += header(data) + tiles(data) + fmt::format(kAxes, escaped(data, "unit")) + kControls +
          samples(data) + memory(data) + experts(data) + quantization(data) + decisions(data) +
          machine_panel(data) + commands(data);
  html += fmt::format(
      "<h2>Config</h2>\n<details><summary>the resolved config, every "
      "key</summary>\n<pre>{}</pre></details>\n",
      escaped(data, "config"));
  html +=
      "<footer>Made by <code>dovetail report</code> from the files of the run. Files: "
      "metrics.jsonl, timings.jsonl, quantization.jsonl, experts.jsonl, balance.jsonl, "
      "memory_plan.json, machine.json.</footer>\n</main>\n";
  const Json plotted = {{"unit", data.at("unit")},
                        {"charts", data.at("charts")},
                        {"skipped_steps", data.at("skipped_steps")}};
  html += "<script type=\"application/json\" id=\"data\">" + script_json(plotted) +
          "</script>\n<script>";
  html += report::kReportScript;
  return html + "</script>\n</body>\n</html>\n";
}

}  // namespace dovetail::train
