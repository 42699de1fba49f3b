#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>
#include <vector>

#include "dovetail/report/drawing.h"
#include "dovetail/train/report/memory.h"

namespace dovetail::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr double kMiB = 1 << 20, kMs = 1e-3;

using report::Drawing;
using report::Scale;

double total(const Json& point) {
  double sum = 0;
  for (size_t i = 1; i < point.size(); ++i) sum += point[i].get<double>();
  return sum;
}

/// Returns the totals over time, up to the end of the step.
std::vector<std::pair<double, double>> totals(const Json& points, double end_s) {
  std::vector<std::pair<double, double>> out;
  for (const Json& point : points) out.emplace_back(point[0].get<double>(), total(point));
  if (!out.empty()) out.emplace_back(std::max(end_s, out.back().first), out.back().second);
  return out;
}

/// Returns the end of a step as simulated, as measured or with all tensors kept; 0 if it was not
/// measured.
double end_of(const Json& record, const char* of) {
  const Json& step = record.at("step");
  if (std::string_view(of) == "kept") return step.at("keep_all_s").get<double>();
  if (std::string_view(of) == "measured")
    return step.at("measured_s").is_null() ? 0 : step.at("measured_s").get<double>();
  double end_s = 0;
  for (const auto& bars : record.at("streams").at("simulated"))
    for (const Json& bar : bars) end_s = std::max(end_s, bar[1].get<double>());
  return end_s;
}

double longest(const Json& record) {
  return std::max(
      {end_of(record, "simulated"), end_of(record, "measured"), end_of(record, "kept"), 1e-9});
}

report::Axis time_axis(const Json& record) {
  return {.scale = Scale::linear(0, longest(record)), .label = "ms", .unit = kMs, .marks = 9};
}

/// Draws one purpose of the stack: a band between the sum of the purposes below and this sum plus
/// its own.
void add_band(Drawing& to, const Json& points, double end_s, size_t purpose,
              const std::string& label) {
  double most = 0;
  std::vector<std::array<double, 3>> edges;  // time, below, above
  for (const Json& point : points) {
    double below = 0;
    for (size_t p = 0; p < purpose; ++p) below += point[p + 1].get<double>();
    edges.push_back({point[0].get<double>(), below, below + point[purpose + 1].get<double>()});
    most = std::max(most, point[purpose + 1].get<double>());
  }
  if (most == 0) return;
  edges.push_back({std::max(end_s, edges.back()[0]), edges.back()[1], edges.back()[2]});
  to.add("<path fill=\"{}\" d=\"M{:.1f} {:.1f}", purpose_colour(purpose), to.x(edges[0][0]),
         to.y(edges[0][2]));
  for (size_t i = 1; i < edges.size(); ++i)
    to.add("H{:.1f}V{:.1f}", to.x(edges[i][0]), to.y(edges[i][2]));
  to.add("V{:.1f}", to.y(edges.back()[1]));
  for (size_t i = edges.size() - 1; i > 0; --i)
    to.add("V{:.1f}H{:.1f}", to.y(edges[i - 1][1]), to.x(edges[i - 1][0]));
  to.add("Z\"><title>{}: at most {:.1f} MiB</title></path>", report::escape_html(label),
         most / kMiB);
}

struct Lane {
  const char *stream, *colour, *words;
};
constexpr std::array kLanes = {
    Lane{"compute", "var(--c0)", ""}, Lane{"again", "var(--c1)", "again: "},
    Lane{"codec", "var(--m1)", "codec: "}, Lane{"out", "var(--c2)", "to the slow tier: "},
    Lane{"in", "var(--c3)", "from the slow tier: "}};

void add_bars(Drawing& to, const Json& streams, double top) {
  constexpr double kLaneHeight = 22, kBar = 17;
  for (const Lane& lane : kLanes) {
    const double row = std::string_view(lane.stream) == "out"  ? 1
                       : std::string_view(lane.stream) == "in" ? 2
                                                               : 0;
    bool odd = false;
    for (const Json& bar : streams.at(lane.stream)) {
      const double from = bar[0].get<double>(), until = bar[1].get<double>();
      odd = !odd;
      to.add(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" "
          "opacity=\"{}\"><title>{}{}: {:.2f} to {:.2f} ms</title></rect>",
          to.x(from), top + row * kLaneHeight, std::max(to.x(until) - to.x(from), 0.4), kBar,
          lane.colour, odd ? "1" : "0.72", lane.words,
          report::escape_html(bar[2].get<std::string>()), from / kMs, until / kMs);
    }
  }
  constexpr std::array kRows = {"compute", "out", "in"};
  for (size_t row = 0; row < kRows.size(); ++row)
    to.text(to.left() - 8, top + kLaneHeight * static_cast<double>(row) + 13, "end", kRows[row]);
}

}  // namespace

std::string purpose_colour(size_t purpose) { return fmt::format("var(--m{})", purpose); }

std::string memory_chart(const Json& record) {
  const Json& memory = record.at("memory");
  double most = record.at("budget_bytes").get<double>();
  for (const char* of : {"kept", "simulated", "measured"})
    if (memory.contains(of))
      for (const Json& point : memory[of]) most = std::max(most, total(point));
  Drawing drawing(
      1110, 330, time_axis(record),
      {.scale = Scale::linear(0, 1.04 * most), .label = "MiB", .unit = kMiB, .marks = 5});
  const double end_s = end_of(record, "simulated");
  for (size_t p = 0; p < memory.at("purposes").size(); ++p)
    add_band(drawing, memory.at("simulated"), end_s, p,
             memory.at("purposes")[p].get<std::string>());
  drawing.steps(totals(memory.at("kept"), end_of(record, "kept")),
                "stroke=\"var(--soft)\" stroke-width=\"1.2\" stroke-dasharray=\"2 3\"");
  if (memory.contains("measured"))
    drawing.steps(totals(memory.at("measured"), end_of(record, "measured")),
                  "stroke=\"var(--ink)\" stroke-width=\"1.6\"");
  drawing.add(
      "<line x1=\"{}\" x2=\"{:.1f}\" y1=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"var(--bad)\" "
      "stroke-width=\"1.4\" stroke-dasharray=\"7 4\"/>",
      drawing.left(), drawing.x(longest(record)),
      drawing.y(record.at("budget_bytes").get<double>()),
      drawing.y(record.at("budget_bytes").get<double>()));
  return drawing.svg();
}

std::string streams_chart(const Json& record) {
  const Json& streams = record.at("streams");
  Drawing drawing(1110, streams.contains("measured") ? 236 : 144, time_axis(record), {.marks = 0});
  double top = Drawing::kTop;
  for (const char* of : {"simulated", "measured"}) {
    if (!streams.contains(of)) continue;
    drawing.text(drawing.left(), top - 4, "start", of);
    add_bars(drawing, streams[of], top);
    top += 92;
  }
  return drawing.svg();
}

std::string curve_chart(const Json& record) {
  const Json& curve = record.at("curve");
  if (curve.size() < 2) return "";
  double low = 1e300, high = 0, most = 0, least = 1e300;
  for (const Json& point : curve) {
    low = std::min(low, point.at("expected_s").get<double>());
    high = std::max(high, point.at("expected_s").get<double>());
    least = std::min(least, point.at("budget_bytes").get<double>());
    most = std::max(most, point.at("budget_bytes").get<double>());
  }
  const double pad_s = std::max(0.1 * (high - low), 0.02 * high), pad = 0.04 * (most - least);
  Drawing drawing(
      540, 250,
      {.scale = Scale::linear(least - pad, most + pad), .label = "MiB of memory", .unit = kMiB},
      {.scale = Scale::linear(std::max(low - pad_s, 0.0), high + pad_s),
       .label = "ms of a step",
       .unit = kMs,
       .marks = 5});
  std::string points;
  for (const Json& point : curve)
    points += fmt::format("{:.1f},{:.1f} ", drawing.x(point.at("budget_bytes").get<double>()),
                          drawing.y(point.at("expected_s").get<double>()));
  drawing.add("<polyline points=\"{}\" fill=\"none\" stroke=\"var(--c0)\" stroke-width=\"1.8\"/>",
              points);
  for (const Json& point : curve) {
    const bool asked = point.at("budget_bytes") == record.at("budget_bytes");
    const double bytes = point.at("budget_bytes").get<double>(),
                 seconds = point.at("expected_s").get<double>();
    drawing.add(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"{}\" fill=\"{}\"><title>{:.1f} MiB: {:.2f} "
        "ms</title></circle>",
        drawing.x(bytes), drawing.y(seconds), asked ? 6 : 3.5, asked ? "var(--bad)" : "var(--c0)",
        bytes / kMiB, seconds / kMs);
  }
  return drawing.svg();
}

}  // namespace dovetail::train
