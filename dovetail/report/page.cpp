#include "dovetail/report/page.h"

#include <fmt/format.h>

namespace dovetail::report {

std::string page_head(const std::string& title) {
  return fmt::format(
      "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n<title>{} · "
      "Dovetail</title>\n"
      "<style>{}</style>\n</head>\n<body>\n<main>\n",
      escape_html(title), kReportStyle);
}

std::string escape_html(const std::string& text) {
  std::string html;
  html.reserve(text.size());
  for (const char c : text) {
    switch (c) {
      case '&':
        html += "&amp;";
        break;
      case '<':
        html += "&lt;";
        break;
      case '>':
        html += "&gt;";
        break;
      case '"':
        html += "&quot;";
        break;
      case '\'':
        html += "&#39;";
        break;
      default:
        html += c;
    }
  }
  return html;
}

std::string tiles_html(const std::vector<Tile>& tiles) {
  constexpr size_t kShort = 8;
  std::string html = "<div class=\"tiles\">\n";
  for (const Tile& tile : tiles)
    html += fmt::format(
        "<div class=\"tile\"><div class=\"label\">{}</div><div class=\"value{}\">{}</div><div "
        "class=\"note\">{}</div></div>\n",
        escape_html(tile.label), tile.value.size() > kShort ? " long" : "", escape_html(tile.value),
        escape_html(tile.note));
  return html + "</div>\n";
}

std::string chart_box(ChartWidth width, const std::string& title,
                      const std::vector<LegendItem>& legend, const std::string& body) {
  std::string html =
      fmt::format("<div class=\"chart{}\"><div class=\"top\"><h3>{}</h3><span class=\"legend\">",
                  width == ChartWidth::kFull ? " wide" : "", escape_html(title));
  for (const LegendItem& item : legend)
    html +=
        fmt::format("<span style=\"--mark:{}\">{}</span> ", item.colour, escape_html(item.words));
  return html + "</span></div>" + body + "</div>\n";
}

}  // namespace dovetail::report
