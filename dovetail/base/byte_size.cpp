#include "dovetail/base/byte_size.h"

#include <array>
#include <charconv>
#include <utility>

namespace dovetail {

std::optional<int64_t> parse_byte_size(std::string_view text) {
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
  double value = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  std::string_view unit = text.substr(static_cast<size_t>(rest - text.data()));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const auto& [name, factor] : kUnits) {
    const double bytes = value * factor;  // comparisons with NaN are false, so "nan" is rejected
    if (unit == name && bytes >= 1 && bytes < 0x1p62) return static_cast<int64_t>(bytes);
  }
  return std::nullopt;
}

}  // namespace dovetail
