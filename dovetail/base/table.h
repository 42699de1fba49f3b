#pragma once

#include <string>
#include <vector>

namespace dovetail {

/// Choice of the row that is the heading of a table, if any.
enum class Heading { kNone, kFirstRow };
/// Returns a text table: one line per row, aligned columns with two spaces between them. With
/// Heading::kFirstRow, the first row is underlined.
std::string format_table(const std::vector<std::vector<std::string>>& rows,
                         Heading heading = Heading::kNone);

}  // namespace dovetail
