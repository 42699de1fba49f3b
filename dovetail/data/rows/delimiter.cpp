#include "dovetail/data/rows/delimiter.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "dovetail/base/error.h"
#include "dovetail/data/rows/cell_values.h"

namespace dovetail::data {
namespace {

bool is_blank_text(std::string_view text) {
  return text.find_first_not_of(" \t\r\f\v") == std::string_view::npos;
}

/// Splits a line at delimiters outside of quotes.
std::vector<std::string_view> fields_of(std::string_view line, char delimiter) {
  std::vector<std::string_view> fields;
  size_t begin = 0;
  bool quoted = false;
  for (size_t i = 0; i <= line.size(); ++i) {
    if (i < line.size() && line[i] == '"') quoted = !quoted;
    if (i < line.size() && (quoted || line[i] != delimiter)) continue;
    fields.push_back(line.substr(begin, i - begin));
    begin = i + 1;
  }
  return fields;
}

}  // namespace

bool has_quotes_between_tabs(std::string_view text) {
  const std::string_view line = text.substr(0, text.find_first_of("\r\n"));
  return line.starts_with('"') && line.find("\"\t\"") != std::string_view::npos;
}

char named_delimiter(std::string_view line) {
  if (line.ends_with('\r')) line.remove_suffix(1);
  if (line.size() > 1 && line.front() == '"' && line.back() == '"')
    line = line.substr(1, line.size() - 2);
  return line.size() == 5 && line.starts_with("sep=") ? line[4] : '\0';
}

char find_delimiter(std::string_view text, char expected, char decimal) {
  if (const char named = named_delimiter(text.substr(0, text.find('\n'))); named != 0) return named;
  constexpr size_t kLines = 32, kBytes = size_t{64} << 10;
  std::vector<std::string_view> lines;
  text = text.substr(0, kBytes);
  for (size_t at = 0; at < text.size() && lines.size() < kLines;) {
    const size_t end = text.find('\n', at);
    // The last line is incomplete.
    if (end == std::string_view::npos && !lines.empty() && text.size() == kBytes) break;
    std::string_view line = text.substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!is_blank_text(line) && !line.starts_with('#')) lines.push_back(line);
    at = end == std::string_view::npos ? text.size() : end + 1;
  }
  char best = expected;
  double best_share = -1;
  for (const char candidate : {expected, ',', ';', '\t', '|'}) {
    size_t width = 0, numbers = 0, all = 0;
    if (candidate == kBlanks || candidate == decimal) continue;
    for (const std::string_view line : lines) {
      const auto fields = fields_of(line, candidate);
      if (width == 0) width = fields.size();
      if (fields.size() != width) width = 1;
      for (std::string_view field : fields) {
        double value = 0;
        if (field.size() > 1 && field.front() == '"' && field.back() == '"')
          field = field.substr(1, field.size() - 2);
        numbers +=
            is_missing_word(field) || is_number(field, '.', value) || is_number(field, ',', value);
        ++all;
      }
    }
    if (width < 2) continue;
    const double share = static_cast<double>(numbers) / static_cast<double>(all);
    if (share <= best_share) continue;
    best = candidate;
    best_share = share;
  }
  return best;
}

std::string delimiter_name(char delimiter) {
  if (delimiter == kBlanks) return "blanks";
  return delimiter == '\t' ? "a tab" : fmt::format("`{}`", delimiter);
}

void require_table(std::string_view text, const std::filesystem::path& path) {
  constexpr const char* kBetween = " \t\r\n";
  const size_t first = text.find_first_not_of(kBetween);
  if (first == std::string_view::npos) return;
  const size_t second = text.find_first_not_of(kBetween, first + 1);
  const char next = second == std::string_view::npos ? ' ' : text[second];
  if ((text[first] == '{' && next == '"') || (text[first] == '[' && (next == '{' || next == '[')))
    throw UserError("this is JSON, not a table",
                    "write it as Parquet, for example by pandas.read_json(file).to_parquet(other). "
                    "Add lines=True for an object a line",
                    path.string());
  if (text[first] == '<' &&
      (next == '!' || next == '?' || text.substr(first).find("</") != std::string_view::npos))
    throw UserError("this is HTML or XML, not a table",
                    "a page in place of a file comes from a wrong address. Get the file again, or "
                    "write the page's table by pandas.read_html(file)[0].to_parquet(other)",
                    path.string());
}

}  // namespace dovetail::data
