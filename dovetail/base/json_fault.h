#pragma once

#include <exception>
#include <string>

namespace dovetail {

/// The reason of an exception of nlohmann::json in plain words, with line and column where a text
/// is not JSON: "line 3, column 7: unexpected end of input; expected ',' or '}'".
std::string json_fault(const std::exception& error);

}  // namespace dovetail
