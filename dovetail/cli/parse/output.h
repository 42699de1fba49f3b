#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <string_view>

namespace dovetail::cli {

/// Writes `text` to standard output immediately, without a buffer. If the reader has closed the
/// pipe (`| head`), the process exits with 0, because the reader has what it wanted. In a torchrun
/// job, only rank 0 prints.
void print(std::string_view text);
/// Like `print`, for a JSON value with indentation and a line break.
void print_json(const nlohmann::ordered_json& json);

/// Returns `text` as a field of a CSV line. It is quoted if it contains a comma, a quote or a line
/// break.
std::string csv_field(const std::string& text);

/// Returns the rank that torchrun gave to this process; 0 without torchrun.
int rank_from_environment();

}  // namespace dovetail::cli
