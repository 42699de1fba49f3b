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

/// The config, declared once.
///
/// Every config struct has `void describe(Section& s)`, which binds each of its members to a key
/// with its help, unit and range. From that one declaration come parsing of TOML, errors with line
/// and column, `--set`, the stored resolved config and the reference page:
///
///     struct ModelConfig {
///       int64_t layers = 4;
///       std::string norm = "rmsnorm";
///       void describe(Section& s) {
///         s.value("layers", layers, "Transformer blocks").range(1, 10000);
///         s.value("norm", norm, "Normalisation before each sub-block").choices({"rmsnorm",
///         "layernorm"});
///       }
///     };
///
/// The member's value at the time of `describe` is the default.
class Field {
 public:
  Field& range(double low, double high);  ///< inclusive; numbers (and each element of a list)
  Field& above(double low);               ///< low < value
  Field& choices(std::vector<std::string> values);  ///< strings only
  Field& unit(std::string_view unit);  ///< "tokens", "bytes", "s": shown in docs and errors
  Field& word(std::string_view word,
              int64_t value);  ///< integers only: "auto" may stand for a value outside the range
  Field& required();           ///< an error if the file and --set leave it out

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
              std::string_view help);  ///< also takes 2e6 when it is whole
  Field value(std::string_view key, double& member, std::string_view help);
  Field value(std::string_view key, std::string& member, std::string_view help);
  Field value(std::string_view key, std::vector<int64_t>& member, std::string_view help);
  Field value(std::string_view key, std::vector<double>& member, std::string_view help);
  Field value(std::string_view key, std::vector<std::string>& member,
              std::string_view help);  ///< "a" is ["a"]

  /// A nested table `[parent.key]`, always present with its defaults.
  template <class T>
  void section(std::string_view key, T& member, std::string_view help) {
    member.describe(subsection(key, help));
  }

  /// An array of tables `[[parent.key]]` (or inline tables); `member` is resized to the number of
  /// entries given.
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

/// How a config struct is declared to the functions below: `[&](Section& s) { config.describe(s);
/// }`.
using Describe = std::function<void(Section&)>;

/// Fill the described members from TOML text, then from `overrides` ("section.key=value", value in
/// TOML syntax; what is no TOML but begins like a word is a string, and a key that takes a string
/// takes `7` or `true` as typed). `name` is the file's name in errors. Throws UserError with place,
/// source line and help: syntax, unknown key (nearest valid one named), wrong type, out of range,
/// missing required key; for an override the place is `--set section.key=value`. Members of the
/// config are unspecified after a throw.
void parse_config(const Describe& describe, std::string_view toml, std::string_view name,
                  const std::vector<std::string>& overrides = {});

/// As parse_config, from a file. Throws UserError if it cannot be read.
void load_config(const Describe& describe, const std::filesystem::path& path,
                 const std::vector<std::string>& overrides = {});

/// The resolved config, every key with its value: as TOML that parses back to the same values, or
/// as JSON.
std::string config_to_toml(const Describe& describe);
nlohmann::json config_to_json(const Describe& describe);
void config_from_json(const Describe& describe, const nlohmann::json& json, std::string_view name);

/// The reference page (Markdown): a table per section with key, type, default, unit, range and
/// help.
std::string config_reference(const Describe& describe);

/// One key in words, for `dovetail config --explain section.key`. Throws UserError naming the
/// nearest key.
std::string explain_key(const Describe& describe, std::string_view key);

/// The entry of `known` nearest to `word` by edit distance, or empty when none is near enough to be
/// meant.
std::string nearest_word(std::string_view word, const std::vector<std::string>& known);

}  // namespace dovetail
