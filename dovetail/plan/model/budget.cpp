#include "dovetail/plan/model/budget.h"

#include <charconv>
#include <string_view>

#include "dovetail/base/byte_size.h"
#include "dovetail/base/error.h"

namespace dovetail::plan {

int64_t parse_budget(const std::string& text, int64_t keep_all_bytes) {
  if (const auto bytes = parse_byte_size(text)) return *bytes;
  double share = 0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), share);
  std::string_view unit(rest, static_cast<size_t>(text.data() + text.size() - rest));
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  const double bytes = share * static_cast<double>(keep_all_bytes);
  if (error == std::errc() && unit == "x" && bytes >= 1 && bytes < 0x1p62)
    return static_cast<int64_t>(bytes);
  throw UserError(
      fmt::format("\"{}\" is not a memory budget", text),
      "write bytes with a unit (6GiB, 512MiB) or a share of the peak with everything kept (0.5x)");
}

}  // namespace dovetail::plan
