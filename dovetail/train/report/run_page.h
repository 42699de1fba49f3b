#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dovetail::train {

/// Returns the HTML page of a run's report. `data` is the result of report_data. All texts in it
/// are escaped: a sample that contains `</script>` remains a sample.
std::string report_page(const nlohmann::ordered_json& data);

}  // namespace dovetail::train
