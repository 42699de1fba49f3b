#include "dovetail/base/table.h"

#include <algorithm>
#include <string_view>

namespace dovetail {
namespace {

// Counts code points, not bytes, so that µ and é do not shift a column.
size_t display_width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

std::string format_table(const std::vector<std::vector<std::string>>& rows, Heading heading) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], display_width(row[i]));
  }
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text;
    for (size_t i = 0; i < row.size(); ++i) {
      text += row[i];
      if (i + 1 < row.size()) text.append(widths[i] - display_width(row[i]) + 2, ' ');
    }
    return text + "\n";
  };
  std::string table;
  for (size_t i = 0; i < rows.size(); ++i) {
    table += line(rows[i]);
    if (i > 0 || heading == Heading::kNone) continue;
    std::vector<std::string> rule;
    rule.reserve(widths.size());
    for (const size_t width : widths) rule.emplace_back(width, '-');
    table += line(rule);
  }
  return table;
}

}  // namespace dovetail
