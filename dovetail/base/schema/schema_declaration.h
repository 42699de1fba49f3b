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
  Target target;
  std::optional<double> low, high, above;
  std::vector<std::string> choices;
  std::string word;  ///< text that is accepted for `word_value`; empty if there is no such text
  int64_t word_value = 0;
  bool required = false;

  /// Returns true if the member is an integer and equals `word_value`.
  bool is_word() const {
    const auto* const* member = std::get_if<int64_t*>(&target);
    return !word.empty() && member != nullptr && **member == word_value;
  }
};

/// Table of the config while its struct describes itself. Nodes never move, since fields and
/// sections refer to them.
struct Section::State {
  struct List {
    std::string key, help;
    std::function<void(int64_t)> resize;
    std::function<void(int64_t, Section&)> describe_element;
    std::function<std::shared_ptr<void>(Section&)>
        describe_example;  ///< returns an element that the caller keeps alive
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

/// Functions shared by readers and writers of configs. This is a struct so that `Field` and
/// `Section` can name it as their friend.
struct SchemaAccess {
  using Field = dovetail::Field::State;
  using Section = dovetail::Section::State;

  static Field& declare(Section& section, std::string_view key, std::string_view help,
                        const Field::Target& target);
  static std::vector<std::string> keys(const Section& section);
  /// Returns the type in words: "integer", "list of strings", ...
  static std::string type_name(const Field& field);
  /// Returns the accepted values: "1 to 10000", "above 0", "\"a\", \"b\""; empty if all values are
  /// accepted.
  static std::string range_text(const Field& field);
  /// Returns the current value of the member as TOML.
  static std::string value_text(const Field& field);
};

/// Joins "model" and "layers" to "model.layers". Returns `key` if `path` is empty.
std::string join_path(std::string_view path, std::string_view key);

}  // namespace dovetail
