#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail {

/// Where a key or a value stood: line and column of the text (0: nowhere), or the override it came
/// from.
struct ConfigPlace {
  int64_t line = 0, column = 0, length = 1;
  std::string override_text;
};

/// A parsed config before anyone knows what its keys mean; from TOML, from `--set`, from JSON.
struct ConfigNode {
  enum class Kind { kTable, kList, kString, kInteger, kFloat, kBool, kDate, kNull };
  Kind kind = Kind::kTable;
  bool boolean = false;
  int64_t integer = 0;
  double number = 0;
  std::string text;            ///< a string's value; from an override, any scalar as it was typed
  bool spells_number = false;  ///< a string of JSON that stands for `number`: "nan", "inf", "-inf"
  std::vector<std::string> keys;     ///< of a table, in the order of the text
  std::vector<ConfigNode> children;  ///< of a table or a list
  ConfigPlace key_place, place;

  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
};

/// A text with its name, for errors that show the line.
struct ConfigText {
  std::string_view name, text;

  /// Throws UserError that points to `place`.
  [[noreturn]] void fail(const ConfigPlace& place, const std::string& message,
                         const std::string& help) const;
};

ConfigNode parse_toml(const ConfigText& source);

/// The value of an override in TOML syntax; what is no TOML but begins like a word or a path is a
/// string.
ConfigNode parse_override_value(std::string_view value, const ConfigPlace& place);

ConfigNode config_node_from_json(const nlohmann::json& json);

/// "a table", "the integer 3", "the string \"abc\"": for errors.
std::string describe_value(const ConfigNode& node);

/// A TOML basic string with its quotes. `text` must be UTF-8.
std::string quote_toml(std::string_view text);

}  // namespace dovetail
