#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "dovetail/base/schema/schema.h"

namespace dovetail {

/// One declared key: its name, the member that stores its value, and the values it accepts.
struct Field::State {
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                              std::vector<double>*, std::vector<std::string>*>;
  std::string key, help, unit;
  Target target;                           ///< member that stores the value
  std::optional<double> low, high, above;  ///< arguments of Field::range and Field::above
  std::vector<std::string> choices;        ///< allowed strings; empty: all
  /// Text that is accepted in place of the integer `word_value`; empty: none.
  std::string word;
  int64_t word_value = 0;
  bool required = false;

  /// Returns true if the current value of the member is the one that `word` stands for.
  bool is_word() const {
    const auto* const* member = std::get_if<int64_t*>(&target);
    return !word.empty() && member != nullptr && **member == word_value;
  }
};

/// One table of a config, as its struct's `describe` has declared it. The containers `fields` and
/// `sections` never move their elements, since Field and Section objects point to them.
struct Section::State {
  /// Array of tables. The functions access the vector of structs that Section::list has bound.
  struct List {
    std::string key, help;
    std::function<void(int64_t)> resize;
    std::function<void(int64_t, Section&)> describe_element;
    /// Describes an element with default values, which is not in the vector. Returns the element;
    /// the caller keeps it alive as long as it uses the section.
    std::function<std::shared_ptr<void>(Section&)> describe_example;
    std::function<int64_t()> size;
  };

  State() = default;
  State(std::string key, std::string help) : key(std::move(key)), help(std::move(help)) {}
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  std::string key, help;
  Section section{*this};
  std::deque<Field::State> fields;
  std::list<State> sections;
  std::list<List> lists;
};

/// Functions on declared keys, for the code that reads and writes configs. This is a struct so that
/// `Field` and `Section` can name it as their friend.
struct SchemaAccess {
  using Field = dovetail::Field::State;
  using Section = dovetail::Section::State;

  /// Adds a key to `section`. Throws InternalError if the section has the key already.
  static Field& declare(Section& section, std::string_view key, std::string_view help,
                        const Field::Target& target);
  /// Returns the names of the section's keys, nested tables and arrays of tables.
  static std::vector<std::string> keys(const Section& section);
  /// Returns the type of a key in words: "integer", "list of numbers", ...
  static std::string type_name(const Field& field);
  /// Returns the accepted values of a key in words; empty if all values are accepted. Examples: "1
  /// to 10000", "above 0", "\"a\", \"b\"".
  static std::string range_text(const Field& field);
  /// Returns the current value of the member as TOML.
  static std::string value_text(const Field& field);
};

/// Joins "model" and "layers" to "model.layers". Returns `key` if `path` is empty.
std::string join_path(std::string_view path, std::string_view key);

}  // namespace dovetail
