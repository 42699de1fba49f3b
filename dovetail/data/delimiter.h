#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// In place of a delimiter: blanks between the fields.
constexpr char kBlanks = '\0';

/// Delimiter of a text by its first lines: it must cut each of them into the same number of fields, two at least. If
/// several do, `expected` comes first unless another one makes more of the fields numbers. `expected` if none does.
char find_delimiter(std::string_view text, char expected, char decimal);

/// "a tab", "blanks", "`;`"
std::string delimiter_name(char delimiter);

/// Throws UserError for JSON, HTML and XML, which are texts but no tables.
void require_table(std::string_view text, const std::filesystem::path& path);

}  // namespace dovetail
