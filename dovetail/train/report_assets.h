#pragma once

#include <string_view>

namespace dovetail {

/// The style sheet and the script of report.html, which are embedded in every page.
extern const std::string_view kReportStyle;
extern const std::string_view kReportScript;

}  // namespace dovetail
