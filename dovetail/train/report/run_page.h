#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace dovetail {

/// The page for such data. Every text in it is escaped: a sample that holds `</script>` stays a
/// sample.
std::string report_page(const nlohmann::ordered_json& data);

}  // namespace dovetail
