#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>
#include <vector>

namespace dovetail::cli {

/// Writes a result to standard output immediately. If the reader has closed the pipe (`| head`),
/// the process exits with 0, because the reader has what it wanted. In a torchrun job, only the
/// first rank prints.
void print(std::string_view text);
void print_json(const nlohmann::ordered_json& json);

/// Formats rows with aligned columns, two spaces between them. With `heading`, the first row is
/// underlined.
enum class Heading { kNone, kFirstRow };
std::string format_table(const std::vector<std::vector<std::string>>& rows,
                         Heading heading = Heading::kNone);

/// Returns `text` as a field of a CSV line. It is quoted if it contains a comma, a quote or a line
/// break.
std::string csv_field(const std::string& text);

/// Returns the rank that torchrun gave to this process; 0 without torchrun.
int rank_from_environment();

}  // namespace dovetail::cli
