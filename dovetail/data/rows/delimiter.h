#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace dovetail::data {

/// Special value of a delimiter: the fields have blanks (spaces and tabs) between them.
constexpr char kBlanks = '\0';

/// Returns the delimiter between the fields of `text`, found from its first lines (at most 32 lines
/// and 64 KiB):
///
/// 1. If the first line names a delimiter (named_delimiter), returns it.
/// 2. The candidates are `expected`, comma, semicolon, tab and |, in this order. `decimal`, the
///    mark before the fraction of a number, is not a candidate.
/// 3. A candidate must split all lines into the same number of fields, at least two.
/// 4. If several candidates do so, returns the one that yields the largest share of numeric fields.
///    In a tie, the earlier candidate wins.
/// 5. If no candidate does so, returns `expected`.
char find_delimiter(std::string_view text, char expected, char decimal);

/// Returns true if the first line has quotes on both sides of a tab. The fields of the text are
/// then quoted. Python and R quote the names of columns if they quote fields between tabs. Other
/// programs write no quotes there.
bool has_quotes_between_tabs(std::string_view text);

/// Returns the delimiter that a line names in the form of Excel: ';' for "sep=;", also if the line
/// is in quotes. Returns 0 for any other line.
char named_delimiter(std::string_view line);

/// Returns the name of a delimiter for messages: "a tab", "blanks" or "`;`".
std::string delimiter_name(char delimiter);

/// Throws UserError, naming `path`, if `text` begins like JSON, HTML or XML, which are not tables.
void require_table(std::string_view text, const std::filesystem::path& path);

}  // namespace dovetail::data
