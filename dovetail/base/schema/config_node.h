#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail {

/// Source position of a key or a value. It is in the config text or in a `--set` override.
struct ConfigPlace {
  /// Position in the config text: line and column from 1, and length in characters. Line 0 means
  /// that it is unknown.
  int64_t line = 0, column = 0, length = 1;
  /// Override "--set section.key=value"; empty if the place is in the config text.
  std::string override_text;
};

/// One node of a parsed config, before its keys are checked against the declared config. The source
/// is TOML, a `--set` override or JSON.
struct ConfigNode {
  enum class Kind { kTable, kList, kString, kInteger, kFloat, kBool, kDate, kNull };
  Kind kind = Kind::kTable;
  bool boolean = false;  ///< value if kBool
  int64_t integer = 0;   ///< value if kInteger
  double number = 0;     ///< value if kFloat
  /// Value if kString. In an override, also any other value as the user typed it.
  std::string text;
  /// True for the JSON strings "nan", "inf" and "-inf"; `number` then holds the value.
  bool spells_number = false;
  std::vector<std::string> keys;     ///< keys of a table, in source order
  std::vector<ConfigNode> children;  ///< values of a table's keys, or elements of a list
  ConfigPlace key_place, place;      ///< positions of the node's key and of its value

  /// Returns the value of a table's key; null if it has no such key.
  const ConfigNode* find(std::string_view key) const;
  ConfigNode* find(std::string_view key);
};

/// Config text and its file name. Errors name the file and show the line.
struct ConfigText {
  std::string_view name, text;

  /// Throws UserError that points to `place`.
  [[noreturn]] void fail(const ConfigPlace& place, const std::string& message,
                         const std::string& help) const;
};

/// Parses a config file. Throws UserError if it is not TOML.
ConfigNode parse_toml(const ConfigText& source);

/// Parses the value of a `--set` override in TOML syntax. A value that is not TOML becomes a
/// string, for example a bare word or a path. But if such a value begins with `[`, `{` or a quote,
/// throws UserError. `place` becomes the position of the node.
ConfigNode parse_override_value(std::string_view value, const ConfigPlace& place);

/// Converts JSON to nodes without positions.
ConfigNode config_node_from_json(const nlohmann::json& json);

/// Describes a value for error messages: "a table", "the integer 3", "the string \"abc\"".
std::string describe_value(const ConfigNode& node);

/// Returns `text` as a quoted TOML basic string. `text` must be UTF-8.
std::string quote_toml(std::string_view text);

}  // namespace dovetail
