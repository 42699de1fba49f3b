#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace dovetail::data {

/// Functions of Python's `str`, and literals of Python. Prompts made by them equal the prompts of a
/// program in Python, byte by byte. Texts are UTF-8.

/// Returns `text` without white space at its end, as str.rstrip does.
std::string_view strip_end(std::string_view text);
/// Returns `text` without white space at its beginning and end, as str.strip does.
std::string_view strip(std::string_view text);
/// Returns `text` with its first character in title case and all others in lower case, as
/// str.capitalize does. Each character becomes one character. Python differs for letters that
/// become several ("ß" becomes "Ss") and for a sigma at the end of a word.
std::string capitalize(std::string_view text);

/// Parses a literal of lists, dictionaries, strings, integers, None, True and False, as
/// ast.literal_eval does. A dictionary has strings as keys. Throws UserError with the byte at which
/// something else stands.
nlohmann::json parse_python_literal(std::string_view text);

}  // namespace dovetail::data
