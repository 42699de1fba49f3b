#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dovetail {

/// Declared key of a config struct, and the constraints on its value.
///
/// Each config struct has `void describe(Section& s)`, which binds each member to a key with help,
/// unit and range. The functions below use this single declaration. They read TOML and `--set`
/// overrides of the command line. They report errors with line and column, and write the resolved
/// config and the reference page. Example:
///
///     struct ModelConfig {
///       int64_t layers = 4;
///       std::string norm = "rmsnorm";
///       void describe(Section& s) {
///         s.value("layers", layers, "Transformer blocks").range(1, 10000);
///         s.value("norm", norm, "Normalisation before each sub-block")
///             .choices({"rmsnorm", "layernorm"});
///       }
///     };
///
/// The member's value at the time of `describe` is the default.
class Field {
 public:
  /// Requires low <= value <= high, for a number or for each number in a list.
  Field& range(double low, double high);
  /// Requires low < value, for a number or for each number in a list.
  Field& above(double low);
  /// Requires a string to be one of `values`; for strings only.
  Field& choices(std::vector<std::string> values);
  /// Sets the unit that docs and errors show, for example "tokens", "bytes" or "s".
  Field& unit(std::string_view unit);
  /// Also accepts `word`, such as "auto", in place of the integer `value`. For integers only;
  /// `value` may be outside the range set by `range` or `above`.
  Field& word(std::string_view word, int64_t value);
  /// Makes it an error if neither the config file nor `--set` has the key.
  Field& required();

 private:
  friend class Section;
  friend struct SchemaAccess;
  struct State;
  explicit Field(State& state) : state_(&state) {}
  State* state_;
};

/// Table of a config, to which a struct's `describe` adds keys. `value` binds a key to a member of
/// the struct: parsing a config writes the value there.
class Section {
 public:
  Field value(std::string_view key, bool& member, std::string_view help);
  Field value(std::string_view key, int64_t& member,
              std::string_view help);  ///< also accepts a whole number in float form, such as 2e6
  Field value(std::string_view key, double& member, std::string_view help);
  Field value(std::string_view key, std::string& member, std::string_view help);
  Field value(std::string_view key, std::vector<int64_t>& member, std::string_view help);
  Field value(std::string_view key, std::vector<double>& member, std::string_view help);
  Field value(std::string_view key, std::vector<std::string>& member,
              std::string_view help);  ///< also accepts "a" for ["a"]

  /// Declares a nested table `[parent.key]`, bound to the config struct `member`. If a config lacks
  /// the table, the members of `member` keep their defaults.
  template <class T>
  void section(std::string_view key, T& member, std::string_view help) {
    member.describe(subsection(key, help));
  }

  /// Declares an array of tables `[[parent.key]]` or of inline tables, bound to a vector of config
  /// structs. Parsing resizes `member` to the number of entries in the config.
  template <class T>
  void list(std::string_view key, std::vector<T>& member, std::string_view help) {
    list_impl(
        key, help, [&member](int64_t size) { member.assign(static_cast<size_t>(size), T{}); },
        [&member](int64_t i, Section& s) { member[static_cast<size_t>(i)].describe(s); },
        [](Section& s) {
          auto example = std::make_shared<T>();
          example->describe(s);
          return example;
        },
        [&member] { return static_cast<int64_t>(member.size()); });
  }

  struct State;
  explicit Section(State& state) : state_(&state) {}
  Section(const Section&) = delete;

 private:
  friend struct SchemaAccess;
  Section& subsection(std::string_view key, std::string_view help);
  void list_impl(std::string_view key, std::string_view help, std::function<void(int64_t)> resize,
                 std::function<void(int64_t, Section&)> describe_element,
                 std::function<std::shared_ptr<void>(Section&)> describe_example,
                 std::function<int64_t()> size);
  State* state_;
};

/// Callback that describes a config struct to the functions below:
/// `[&](Section& s) { config.describe(s); }`.
using Describe = std::function<void(Section&)>;

/// Fills the described members from TOML text, then from `overrides` ("section.key=value", with the
/// value in TOML syntax). An override value that is not TOML is a string, unless it begins with
/// `[`, `{` or a quote. In an override, a key that takes a string accepts `7` or `true` as typed.
/// `name` is the file name in errors.
///
/// Throws UserError with place, source line and help. Causes: syntax error, unknown key, wrong
/// type, value out of range, missing required key. For an unknown key, the help names the nearest
/// key. For a mistake in an override, the place is `--set section.key=value`. Members of the config
/// are unspecified after a throw.
void parse_config(const Describe& describe, std::string_view toml, std::string_view name,
                  const std::vector<std::string>& overrides = {});

/// Calls `parse_config` on the content of a file. Throws UserError if the file cannot be read.
void load_config(const Describe& describe, const std::filesystem::path& path,
                 const std::vector<std::string>& overrides = {});

/// Returns the resolved config as TOML: each key with its current value. The TOML parses back to
/// the same values.
std::string config_to_toml(const Describe& describe);
/// Returns the resolved config as a JSON object. NaN and infinity become "nan", "inf" and "-inf".
nlohmann::json config_to_json(const Describe& describe);
/// Fills the described members from the result of `config_to_json`. `name` is the file name in
/// errors. Throws UserError like parse_config.
void config_from_json(const Describe& describe, const nlohmann::json& json, std::string_view name);

/// Returns the reference page in Markdown. Each section has a table with key, type, default, unit,
/// range and help.
std::string config_reference(const Describe& describe);

/// Explains one key or section in words, for `dovetail config --explain section.key`. If `key` is
/// unknown, throws UserError that names the nearest key.
std::string explain_key(const Describe& describe, std::string_view key);

/// Returns the entry of `known` that is nearest to `word` by edit distance. Returns "" if none is
/// near enough that `word` may be a typing mistake for it.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace dovetail
