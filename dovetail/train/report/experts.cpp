#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "dovetail/train/report/run_files.h"

namespace dovetail::train {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostColumns = 80;

/// Colour of a range of loads. 1 is an even share; bands range from no load to several times too
/// much.
struct Band {
  double below;
  const char *colour, *words;
};
constexpr std::array kBands = {
    Band{1e-9, "#20262f", "none"},        Band{0.25, "#2f5fd0", "below 1/4"},
    Band{0.5, "#6f93e6", "to 1/2"},       Band{0.8, "#b4c6ef", "to 0.8"},
    Band{1.25, "#e9e9e4", "0.8 to 1.25"}, Band{2, "#f3c49c", "to 2"},
    Band{4, "#e58a4e", "to 4"},           Band{HUGE_VAL, "#c8323c", "above 4"}};

size_t band_of(double load) {
  return static_cast<size_t>(
      std::ranges::find_if(kBands, [&](const Band& band) { return load < band.below; }) -
      kBands.begin());
}

/// Draws the load of one layer: a row per expert, a column per record.
std::string heat_map(const std::vector<std::vector<double>>& loads) {
  const size_t columns = loads.size(), rows = loads.empty() ? 0 : loads[0].size();
  std::array<std::string, kBands.size()> paths;
  for (size_t x = 0; x < columns; ++x)
    for (size_t y = 0; y < loads[x].size(); ++y)
      paths[std::min(band_of(loads[x][y]), kBands.size() - 1)] +=
          fmt::format("M{} {}h1v1h-1z", x, y);
  std::string svg = fmt::format(
      "<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" shape-rendering=\"crispEdges\" "
      "style=\"width:100%;height:{}px\">",
      columns, rows, std::clamp<size_t>(8 * rows, 40, 240));
  for (size_t band = 0; band < paths.size(); ++band)
    if (!paths[band].empty())
      svg += fmt::format("<path fill=\"{}\" d=\"{}\"/>", kBands[band].colour, paths[band]);
  return svg + "</svg>";
}

std::string plan_words(const Json& layer) {
  if (!layer.contains("r")) return "";
  std::string text =
      fmt::format("r {}, overlap {}, {}", layer.at("r").dump(), layer.at("overlap").dump(),
                  layer.at("all_to_all").get<std::string>());
  if (!layer.at("shadowed").empty())
    text += fmt::format(", shadowed {}", layer.at("shadowed").dump());
  return text;
}

}  // namespace

std::vector<Json> experts_by_step(const RunFiles& run) {
  std::vector<Json> lines;
  for (const Json& record : run.experts) {
    Json line = {{"step", record.at("step")}};
    double most = 0, dropped = 0, entropy = 1;
    for (const Json& layer : value_at(record, {"layers"})) {
      for (const Json& load : layer.at("load")) most = std::max(most, load.get<double>());
      dropped = std::max(dropped, number_of(layer, "dropped"));
      entropy = std::min(entropy, number_of(layer, "entropy"));
    }
    line["most"] = most;
    line["dropped"] = dropped;
    line["entropy"] = entropy;
    if (const Json traffic = value_at(record, {"all_to_all"}); traffic.is_object()) {
      line["bytes_sent"] = traffic.at("bytes_sent");
      line["waited_s"] = traffic.at("waited_s");
    }
    lines.push_back(std::move(line));
  }
  return lines;
}

Json make_experts(const RunFiles& run) {
  if (run.experts.empty()) return nullptr;
  std::vector<size_t> records;
  const size_t count = run.experts.size(), columns = std::min(count, kMostColumns);
  for (size_t i = 0; i < columns; ++i)
    records.push_back(columns == 1 ? 0 : i * (count - 1) / (columns - 1));
  Json layers = Json::array();
  const Json last = value_at(run.experts.back(), {"layers"});
  for (size_t l = 0; l < last.size(); ++l) {
    std::vector<std::vector<double>> loads;
    for (const size_t record : records)
      loads.push_back(run.experts[record].at("layers").at(l).at("load").get<std::vector<double>>());
    layers.push_back(
        {{"layer", last[l].at("layer")}, {"map", heat_map(loads)}, {"plan", plan_words(last[l])}});
  }
  Json bands = Json::array();
  for (const Band& band : kBands) bands.push_back({{"colour", band.colour}, {"words", band.words}});
  return {{"first", run.experts.front().at("step")},
          {"last", run.experts.back().at("step")},
          {"layers", layers},
          {"bands", bands}};
}

}  // namespace dovetail::train
