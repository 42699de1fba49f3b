#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail {

/// In place of a delimiter: blanks between the fields.
constexpr char kBlanks = '\0';

/// Delimiter of a text by its first lines: it must cut each of them into the same number of fields,
/// two at least. If several do, `expected` comes first unless another one makes more of the fields
/// numbers. `expected` if none does. A first line sep=; of Excel names it.
char find_delimiter(std::string_view text, char expected, char decimal);

/// True if the first line has quotes on both sides of a tab. Python and R quote names of columns
/// where they quote between tabs; other programs write no quotes there.
bool has_quotes_between_tabs(std::string_view text);

/// Delimiter that a line sep=; names, in quotes or without, as Excel writes it. 0 for another line.
char named_delimiter(std::string_view line);

/// "a tab", "blanks", "`;`"
std::string delimiter_name(char delimiter);

/// Throws UserError for JSON, HTML and XML, which are texts but no tables.
void require_table(std::string_view text, const std::filesystem::path& path);

}  // namespace dovetail
