#pragma once

#include <string>
#include <string_view>

namespace dovetail::report {

/// Style sheet and script of report.html, the page about a training run. Pages embed them, so that
/// they need no other file.
extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

/// Returns the beginning of an HTML page, up to the open `<main>` element. It includes the style
/// sheet. The caller appends the content, then closes `main`, `body` and `html`.
std::string page_head(const std::string& title);

/// Returns `text` with special characters escaped, for use in an HTML element or attribute.
std::string escape_html(const std::string& text);

}  // namespace dovetail::report
