#pragma once

#include <exception>
#include <string>

namespace dovetail {

/// Describes in plain words why nlohmann::json threw `error`. Syntax errors include line and
/// column, for example "line 3, column 7: unexpected end of input; expected ',' or '}'".
std::string json_fault(const std::exception& error);

}  // namespace dovetail
