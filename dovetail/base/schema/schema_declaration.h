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

/// One declared key: what it is called, where it is kept, what it may hold.
struct Field::State {
  using Target = std::variant<bool*, int64_t*, double*, std::string*, std::vector<int64_t>*,
                              std::vector<double>*, std::vector<std::string>*>;
  std::string key, help, unit;
  Target target;
  std::optional<double> low, high, above;
  std::vector<std::string> choices;
  std::string word;  ///< what stands for word_value; empty: nothing
  int64_t word_value = 0;
  bool required = false;

  /// Whether the member, an integer, has the value that the word stands for.
  bool is_word() const {
    const auto* const* member = std::get_if<int64_t*>(&target);
    return !word.empty() && member != nullptr && **member == word_value;
  }
};

/// A table of the config while its struct describes itself. Nodes never move: fields and sections
/// refer to them.
struct Section::State {
  struct List {
    std::string key, help;
    std::function<void(int64_t)> resize;
    std::function<void(int64_t, Section&)> describe_element;
    std::function<std::shared_ptr<void>(Section&)>
        describe_example;  ///< an element that its caller keeps alive
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

/// What the readers and writers of configs share. (A struct, since `Field` and `Section` name it as
/// their friend.)
struct SchemaAccess {
  using Field = dovetail::Field::State;
  using Section = dovetail::Section::State;

  static Field& declare(Section& section, std::string_view key, std::string_view help,
                        const Field::Target& target);
  static std::vector<std::string> keys(const Section& section);
  /// "integer", "list of strings", ...
  static std::string type_name(const Field& field);
  /// "1 to 10000", "above 0", "\"a\", \"b\""; empty when everything goes.
  static std::string range_text(const Field& field);
  /// The value now in the member, as TOML.
  static std::string value_text(const Field& field);
};

/// "model.layers" out of "model" and "layers".
std::string join_path(std::string_view path, std::string_view key);

}  // namespace dovetail
