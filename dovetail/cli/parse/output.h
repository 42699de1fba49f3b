#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace dovetail::cli {

/// Write a result to standard output, at once. When the reader has gone away (`| head`), the
/// process ends with 0: it has what it wanted. Ranks other than the first of a torchrun job print
/// nothing.
void print(std::string_view text);
void print_json(const nlohmann::ordered_json& json);

/// Rows with columns aligned, two spaces between them; the first row is underlined when `heading`.
enum class Heading { kNone, kFirstRow };
std::string format_table(const std::vector<std::vector<std::string>>& rows,
                         Heading heading = Heading::kNone);

/// A field of a CSV line: `text`, in quotes if it holds a comma, a quote or a line break.
std::string csv_field(const std::string& text);

/// The rank that torchrun gave to this process; 0 when there is none.
int rank_from_environment();

}  // namespace dovetail::cli
