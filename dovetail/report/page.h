#pragma once

#include <string>
#include <string_view>

namespace dovetail::report {

/// The style sheet and the script of report.html, which are embedded in every page.
extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

/// A page up to its content, which `</main>` ends: its head with the style sheet.
std::string page_head(const std::string& title);

/// Text as it may stand in an element or an attribute.
std::string escape_html(const std::string& text);

}  // namespace dovetail::report
