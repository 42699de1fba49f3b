#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "dovetail/base/error.h"

namespace dovetail::plan {

/// Reader for the keys of one JSON object in a file. Getters throw UserError if the value is
/// missing or has another type. Errors name the object and the key. Example: "graph.json: nodes[3]:
/// time is \"fast\", not a number".
class Fields {
 public:
  /// `where` names the object in errors. Throws UserError if `json` is not an object, or has a key
  /// that `known` does not list.
  Fields(const nlohmann::json& json, std::string where,
         std::initializer_list<std::string_view> known)
      : json_(json), where_(std::move(where)) {
    user_check(json.is_object(), "{}: not an object", where_);
    for (const auto& item : json.items())
      user_check(std::find(known.begin(), known.end(), item.key()) != known.end(),
                 "{}: unknown key \"{}\"; valid are {}", where_, item.key(),
                 fmt::join(known, ", "));
  }

  /// Returns the name that errors use for the object.
  const std::string& where() const { return where_; }
  bool has(const char* key) const { return json_.contains(key) && !json_[key].is_null(); }

  const nlohmann::json& at(const char* key) const {
    user_check(has(key), "{}: {} is missing", where_, key);
    return json_[key];
  }
  const nlohmann::json& list(const char* key) const {
    const nlohmann::json& value = at(key);
    user_check(value.is_array(), "{}: {} is {}, not a list", where_, key, value.dump());
    return value;
  }
  std::string text(const char* key) const {
    const nlohmann::json& value = at(key);
    user_check(value.is_string(), "{}: {} is {}, not a string", where_, key, value.dump());
    return value.get<std::string>();
  }
  /// Returns a number of at least 0.
  double number(const char* key) const {
    const nlohmann::json& found = at(key);
    user_check(found.is_number(), "{}: {} is {}, not a number", where_, key, found.dump());
    const auto value = found.get<double>();
    user_check(std::isfinite(value) && value >= 0, "{}: {} is {}; it must not be negative", where_,
               key, value);
    return value;
  }
  /// Returns a positive number.
  double rate(const char* key) const {
    const double value = number(key);
    user_check(value > 0, "{}: {} is 0; it must be positive", where_, key);
    return value;
  }
  /// Returns a whole number from 0 to `most`.
  int64_t bytes(const char* key, double most = 4e18) const {
    const double value = number(key);
    user_check(value == std::floor(value), "{}: {} is {}, not a whole number", where_, key, value);
    user_check(value <= most, "{}: {} is {:.4g} bytes; up to {:.4g} are planned", where_, key,
               value, most);
    return static_cast<int64_t>(value);
  }
  /// Returns true or false, as in the file. Returns `otherwise` if the key is missing.
  bool flag(const char* key, bool otherwise) const {
    if (!has(key)) return otherwise;
    user_check(json_[key].is_boolean(), "{}: {} is {}, neither true nor false", where_, key,
               json_[key].dump());
    return json_[key].get<bool>();
  }
  /// Throws UserError unless the key "version" is 1.
  void version_1() const {
    const nlohmann::json& version = at("version");
    user_check(version == 1, "{}: version is {}; only version 1 is known", where_, version.dump());
  }

 private:
  const nlohmann::json& json_;
  std::string where_;
};

/// Returns the content of a JSON file. Throws UserError with the parser's reason if the file is not
/// JSON.
nlohmann::json read_json(const std::filesystem::path& path);

}  // namespace dovetail::plan
