#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail::data {

/// Value that stands for blanks between the fields instead of a delimiter.
constexpr char kBlanks = '\0';

/// Returns the delimiter of a text, found in its first lines. It must split each line into the same
/// number of fields, at least two. If several delimiters do so, the one with the largest
/// share of numeric fields wins; `expected` wins a tie. Returns `expected` if no delimiter does so.
/// A first line sep=; of Excel names the delimiter.
char find_delimiter(std::string_view text, char expected, char decimal);

/// Returns true if the first line has quotes on both sides of a tab. Python and R quote the names
/// of columns if they quote fields between tabs. Other programs write no quotes there.
bool has_quotes_between_tabs(std::string_view text);

/// Returns the delimiter that a line sep=; names, with or without quotes, as Excel writes it.
/// Returns 0 for another line.
char named_delimiter(std::string_view line);

/// Returns the name of a delimiter for messages: "a tab", "blanks" or "`;`".
std::string delimiter_name(char delimiter);

/// Throws UserError for JSON, HTML and XML, which are text but not tables.
void require_table(std::string_view text, const std::filesystem::path& path);

}  // namespace dovetail::data
