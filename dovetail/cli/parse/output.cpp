#include "dovetail/cli/parse/output.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"

namespace dovetail::cli {
namespace {

// Counts code points, not bytes, so that µ and é do not shift a column.
size_t display_width(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

void print(std::string_view text) {
  if (rank_from_environment() != 0) return;
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<size_t>(written));
    } else if (errno == EPIPE) {
      std::_Exit(0);
    } else if (errno != EINTR) {
      throw UserError(fmt::format("cannot write to standard output: {}", std::strerror(errno)));
    }
  }
}

void print_json(const nlohmann::ordered_json& json) {
  print(json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

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

std::string csv_field(const std::string& text) {
  if (text.find_first_of(",\"\r\n") == std::string::npos) return text;
  std::string quoted = "\"";
  for (const char c : text) quoted += c == '"' ? "\"\"" : std::string(1, c);
  return quoted + "\"";
}

int rank_from_environment() {
  const char* rank = std::getenv("RANK");
  return rank == nullptr ? 0 : std::atoi(rank);
}

}  // namespace dovetail::cli
