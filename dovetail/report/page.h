#pragma once

#include <string>
#include <string_view>

namespace dovetail::report {

/// Style sheet and script of report.html, embedded in every page.
extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

/// Returns the beginning of a page: its head with the style sheet. The page's content follows; the
/// caller closes it by `</main>`.
std::string page_head(const std::string& title);

/// Escapes text for use in an element or an attribute.
std::string escape_html(const std::string& text);

}  // namespace dovetail::report
