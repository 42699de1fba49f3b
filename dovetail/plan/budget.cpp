#include "dovetail/plan/budget.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string_view>
#include <utility>

#include "dovetail/base/error.h"

namespace dovetail::plan {

int64_t parse_budget(const std::string& text, int64_t keep_all_bytes) {
  constexpr std::array<std::pair<std::string_view, double>, 10> kUnits = {{{"", 1},
                                                                           {"B", 1},
                                                                           {"KB", 1e3},
                                                                           {"MB", 1e6},
                                                                           {"GB", 1e9},
                                                                           {"TB", 1e12},
                                                                           {"KiB", 0x1p10},
                                                                           {"MiB", 0x1p20},
                                                                           {"GiB", 0x1p30},
                                                                           {"TiB", 0x1p40}}};
  const auto refuse = [&]() -> double {
    throw UserError(fmt::format("\"{}\" is not a memory budget", text),
                    "write bytes with a unit (6GiB, 512MiB) or a share of the peak with everything kept (0.5x)");
  };
  double value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, value);
  if (error != std::errc() || !std::isfinite(value) || value <= 0) refuse();
  std::string_view unit(rest, static_cast<size_t>(end - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  double factor = unit == "x" ? static_cast<double>(keep_all_bytes) : 0;
  for (const auto& [name, bytes] : kUnits)
    if (unit == name) factor = bytes;
  if (factor == 0) refuse();
  const double bytes = value * factor;
  if (bytes < 1 || bytes >= 0x1p62) refuse();
  return static_cast<int64_t>(bytes);
}

}  // namespace dovetail::plan
