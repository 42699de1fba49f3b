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
/// unit and range. This single declaration provides TOML parsing, `--set`, and errors with line and
/// column. It also provides the stored resolved config and the reference page:
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
  Field& range(double low, double high);  ///< low <= value <= high, for numbers and list elements
  Field& above(double low);               ///< low < value
  Field& choices(std::vector<std::string> values);  ///< allowed strings; for strings only
  Field& unit(std::string_view unit);  ///< "tokens", "bytes", "s": shown in docs and errors
  Field& word(std::string_view word,
              int64_t value);  ///< also accepts `word`, such as "auto", as a name of `value`;
                               ///< integers only. `value` may be out of range.
  Field& required();           ///< error if neither the file nor --set has the key

 private:
  friend class Section;
  friend struct SchemaAccess;
  struct State;
  explicit Field(State& state) : state_(&state) {}
  State* state_;
};

class Section {
 public:
  Field value(std::string_view key, bool& member, std::string_view help);
  Field value(std::string_view key, int64_t& member,
              std::string_view help);  ///< also accepts 2e6 if it is whole
  Field value(std::string_view key, double& member, std::string_view help);
  Field value(std::string_view key, std::string& member, std::string_view help);
  Field value(std::string_view key, std::vector<int64_t>& member, std::string_view help);
  Field value(std::string_view key, std::vector<double>& member, std::string_view help);
  Field value(std::string_view key, std::vector<std::string>& member,
              std::string_view help);  ///< also accepts "a" for ["a"]

  /// Declares a nested table `[parent.key]`. It always exists, with its defaults.
  template <class T>
  void section(std::string_view key, T& member, std::string_view help) {
    member.describe(subsection(key, help));
  }

  /// Declares an array of tables `[[parent.key]]` or of inline tables. `member` is resized to the
  /// number of entries in the config.
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
/// value in TOML syntax). An override value that is not TOML but begins like a word is a string. A
/// key that takes a string accepts `7` or `true` as typed. `name` is the file name in errors.
///
/// Throws UserError with place, source line and help. Causes: syntax error, unknown key, wrong
/// type, value out of range, missing required key. For an unknown key, the help names the nearest
/// key. The place of an override is `--set section.key=value`. Members of the config are
/// unspecified after a throw.
void parse_config(const Describe& describe, std::string_view toml, std::string_view name,
                  const std::vector<std::string>& overrides = {});

/// Calls `parse_config` on the content of a file. Throws UserError if the file cannot be read.
void load_config(const Describe& describe, const std::filesystem::path& path,
                 const std::vector<std::string>& overrides = {});

/// Resolved config, each key with its value, as TOML or as JSON. The TOML parses back to the same
/// values.
std::string config_to_toml(const Describe& describe);
nlohmann::json config_to_json(const Describe& describe);
void config_from_json(const Describe& describe, const nlohmann::json& json, std::string_view name);

/// Returns the reference page in Markdown. Each section has a table with key, type, default, unit,
/// range and help.
std::string config_reference(const Describe& describe);

/// Explains one key in words, for `dovetail config --explain section.key`. Throws UserError that
/// names the nearest key if `key` is unknown.
std::string explain_key(const Describe& describe, std::string_view key);

/// Returns the entry of `known` that is nearest to `word` by edit distance. Returns "" if no entry
/// is near enough to be meant.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace dovetail
