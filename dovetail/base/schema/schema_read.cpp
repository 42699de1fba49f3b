#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/base/schema/config_node.h"
#include "dovetail/base/schema/schema.h"
#include "dovetail/base/schema/schema_declaration.h"

namespace dovetail {
namespace {

using Kind = ConfigNode::Kind;
using FieldState = SchemaAccess::Field;
using SectionState = SchemaAccess::Section;

std::string bracketed(const std::string& path) {
  return fmt::format("[{}]", path.empty() ? "root" : path);
}

// Appends the paths of all keys named `key` in `section` and its subsections.
void find_elsewhere(const SectionState& section, const std::string& path, std::string_view key,
                    std::vector<std::string>& found) {
  for (const std::string& name : SchemaAccess::keys(section)) {
    if (name == key) found.push_back(join_path(path, name));
  }
  for (const SectionState& child : section.sections)
    find_elsewhere(child, join_path(path, child.key), key, found);
}

/// Fills the members of a described config from a tree of values.
class Reader {
 public:
  Reader(const ConfigText& source, const SectionState& root) : source_(source), root_(root) {}

  void read_section(SectionState& section, const ConfigNode& table, const std::string& path) const;

 private:
  void read_list(SectionState::List& list, const ConfigNode& node, const std::string& path) const;
  void read_field(const FieldState& field, const ConfigNode& node, const std::string& path) const;
  void read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                  bool& out) const;
  void read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                  int64_t& out) const;
  void read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                  double& out) const;
  void read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                  std::string& out) const;
  template <class T>
  void read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                  std::vector<T>& out) const;
  void check_range(const FieldState& field, const ConfigNode& node, const std::string& path,
                   double value) const;
  [[noreturn]] void unknown_key(const SectionState& section, const ConfigNode& table, size_t index,
                                const std::string& path) const;
  [[noreturn]] void wrong_type(const FieldState& field, const ConfigNode& node,
                               const std::string& path) const;

  const ConfigText& source_;
  const SectionState& root_;
};

void Reader::unknown_key(const SectionState& section, const ConfigNode& table, size_t index,
                         const std::string& path) const {
  const std::string& key = table.keys[index];
  const auto known = SchemaAccess::keys(section);
  std::string help;
  if (const std::string nearest = nearest_word(key, known); !nearest.empty()) {
    help = fmt::format("did you mean `{}`?", nearest);
  } else {
    std::vector<std::string> elsewhere;
    find_elsewhere(root_, "", key, elsewhere);
    if (!elsewhere.empty()) {
      help = fmt::format("there is a `{}`", fmt::join(elsewhere, "` and a `"));
    } else {
      help = fmt::format("known here: {}", fmt::join(known, ", "));
    }
  }
  source_.fail(table.children[index].key_place,
               fmt::format("unknown key `{}` in {}", printable(key), bracketed(path)), help);
}

void Reader::wrong_type(const FieldState& field, const ConfigNode& node,
                        const std::string& path) const {
  const std::string type = SchemaAccess::type_name(field);
  source_.fail(node.place,
               fmt::format("{} must be {} {}, not {}", path, type.front() == 'i' ? "an" : "a", type,
                           describe_value(node)),
               fmt::format("for example: {} = {}", field.key, SchemaAccess::value_text(field)));
}

void Reader::check_range(const FieldState& field, const ConfigNode& node, const std::string& path,
                         double value) const {
  const bool inside = (!field.low || (value >= *field.low && value <= *field.high)) &&
                      (!field.above || value > *field.above);
  if (inside) return;
  const std::string unit = field.unit.empty() ? "" : " " + field.unit;
  const bool integer = node.kind == Kind::kInteger;
  const std::string shown = integer ? std::to_string(node.integer) : fmt::format("{}", node.number);
  source_.fail(node.place, fmt::format("{} = {} is out of range", path, shown),
               fmt::format("allowed: {}{}", SchemaAccess::range_text(field), unit));
}

void Reader::read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                        bool& out) const {
  if (node.kind != Kind::kBool) wrong_type(field, node, path);
  out = node.boolean;
}

void Reader::read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                        int64_t& out) const {
  if (!field.word.empty() && node.kind == Kind::kString && node.text == field.word) {
    out = field.word_value;
    return;
  }
  // 2^63 is the first double above the int64 range; -2^63 is in range.
  const bool whole = node.kind == Kind::kFloat && std::trunc(node.number) == node.number &&
                     node.number >= -0x1p63 && node.number < 0x1p63;
  if (node.kind != Kind::kInteger && !whole) wrong_type(field, node, path);
  out = whole ? static_cast<int64_t>(node.number) : node.integer;
  check_range(field, node, path, static_cast<double>(out));
}

void Reader::read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                        double& out) const {
  if (node.kind != Kind::kInteger && node.kind != Kind::kFloat && !node.spells_number)
    wrong_type(field, node, path);
  out = node.kind == Kind::kInteger ? static_cast<double>(node.integer) : node.number;
  check_range(field, node, path, out);
}

void Reader::read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                        std::string& out) const {
  const bool typed_word =
      !node.place.override_text.empty() && node.kind != Kind::kTable && node.kind != Kind::kList;
  // In `--set run.name=7` the value is a string, although it looks like a number.
  if (node.kind != Kind::kString && !(typed_word && !node.text.empty()))
    wrong_type(field, node, path);
  out = node.text;
  if (field.choices.empty() ||
      std::find(field.choices.begin(), field.choices.end(), out) != field.choices.end())
    return;
  const std::string nearest = nearest_word(out, field.choices);
  source_.fail(node.place,
               fmt::format("{} = {} is none of its values", path, quote_toml(printable(out))),
               nearest.empty() ? fmt::format("choose one of {}", SchemaAccess::range_text(field))
                               : fmt::format("did you mean {}?", quote_toml(nearest)));
}

template <class T>
void Reader::read_value(const FieldState& field, const ConfigNode& node, const std::string& path,
                        std::vector<T>& out) const {
  out.clear();
  // A single string is a list of one element. Most lists of files have one entry.
  const bool single = std::is_same_v<T, std::string> && node.kind != Kind::kList;
  if (!single && node.kind != Kind::kList) wrong_type(field, node, path);
  if (single) {
    T value{};
    read_value(field, node, path, value);
    out.push_back(std::move(value));
    return;
  }
  for (size_t i = 0; i < node.children.size(); ++i) {
    T value{};
    read_value(field, node.children[i], fmt::format("{}[{}]", path, i), value);
    out.push_back(std::move(value));
  }
}

void Reader::read_field(const FieldState& field, const ConfigNode& node,
                        const std::string& path) const {
  std::visit(
      [&](auto* member) {
        auto value = *member;
        read_value(field, node, path, value);
        *member = std::move(value);
      },
      field.target);
}

void Reader::read_list(SectionState::List& list, const ConfigNode& node,
                       const std::string& path) const {
  const bool tables =
      node.kind == Kind::kList && std::all_of(node.children.begin(), node.children.end(),
                                              [](const auto& e) { return e.kind == Kind::kTable; });
  if (!tables) {
    source_.fail(node.place,
                 fmt::format("{} must be a list of tables, not {}", path, describe_value(node)),
                 fmt::format("write [[{}]] above each entry, or {} = [{{ ... }}]", path, list.key));
  }
  list.resize(static_cast<int64_t>(node.children.size()));
  for (size_t i = 0; i < node.children.size(); ++i) {
    SectionState element;
    list.describe_element(static_cast<int64_t>(i), element.section);
    read_section(element, node.children[i], fmt::format("{}[{}]", path, i));
  }
}

void Reader::read_section(SectionState& section, const ConfigNode& table,
                          const std::string& path) const {
  const auto known = SchemaAccess::keys(section);
  for (size_t i = 0; i < table.keys.size(); ++i) {
    if (std::find(known.begin(), known.end(), table.keys[i]) == known.end())
      unknown_key(section, table, i, path);
  }
  for (const FieldState& field : section.fields) {
    const std::string field_path = join_path(path, field.key);
    if (const ConfigNode* node = table.find(field.key)) {
      read_field(field, *node, field_path);
    } else if (field.required) {
      source_.fail(
          table.place, fmt::format("{} is missing", field_path),
          fmt::format("it has no default: {} ({})", field.help, SchemaAccess::type_name(field)));
    }
  }
  for (SectionState& child : section.sections) {
    const std::string child_path = join_path(path, child.key);
    const ConfigNode* node = table.find(child.key);
    if (node != nullptr && node->kind != Kind::kTable) {
      source_.fail(node->place,
                   fmt::format("{} must be a table, not {}", child_path, describe_value(*node)),
                   fmt::format("write [{}] on a line of its own and its keys below", child_path));
    }
    ConfigNode absent;
    read_section(child, node != nullptr ? *node : absent, child_path);
  }
  for (SectionState::List& list : section.lists) {
    if (const ConfigNode* node = table.find(list.key))
      read_list(list, *node, join_path(path, list.key));
  }
}

// Sets the value of "section.key=value" in the tree. It replaces the value from the file.
void apply_override(ConfigNode& root, const std::string& argument) {
  const ConfigPlace place{.override_text = "--set " + printable(argument)};
  const auto fail = [&](const std::string& message) {
    throw UserError(message, "write --set section.key=value", place.override_text);
  };
  if (printable(argument) != argument) fail("this override has control characters or is not UTF-8");
  const size_t equals = argument.find('=');
  if (equals == argument.npos) fail("this override has no `=`");
  constexpr size_t kMaxPath = 1000;
  if (equals > kMaxPath) fail("the key of this override is too long");
  std::string path = argument.substr(0, equals);
  std::erase_if(path, [](char c) { return c == ' ' || c == '\t'; });

  ConfigNode* at = &root;
  for (size_t begin = 0, end = 0; end != path.npos; begin = end + 1) {
    end = path.find('.', begin);
    const std::string key = path.substr(begin, end - begin);
    if (key.empty()) fail("this override has an empty key");
    if (at->kind == Kind::kList) {
      fail(fmt::format("`{}` is a list: it can only be set as a whole", path.substr(0, begin - 1)));
    }
    if (at->kind != Kind::kTable)
      fail(fmt::format("`{}` is not a section", path.substr(0, begin - 1)));
    ConfigNode* child = at->find(key);
    if (child == nullptr) {
      at->keys.push_back(key);
      child = &at->children.emplace_back();
      child->key_place = child->place = place;
    }
    at = child;
  }
  *at = parse_override_value(std::string_view(argument).substr(equals + 1), place);
}

void read_config(const Describe& describe, const ConfigText& source, const ConfigNode& tree) {
  SectionState root;
  describe(root.section);
  Reader(source, root).read_section(root, tree, "");
}

}  // namespace

void parse_config(const Describe& describe, std::string_view toml, std::string_view name,
                  const std::vector<std::string>& overrides) {
  const ConfigText source{name, toml};
  ConfigNode tree = parse_toml(source);
  for (const std::string& argument : overrides) apply_override(tree, argument);
  read_config(describe, source, tree);
}

void load_config(const Describe& describe, const std::filesystem::path& path,
                 const std::vector<std::string>& overrides) {
  parse_config(describe, read_file(path), path.string(), overrides);
}

void config_from_json(const Describe& describe, const nlohmann::json& json, std::string_view name) {
  const ConfigText source{name, ""};
  if (!json.is_object())
    source.fail({}, "this config is not a JSON object", "was the file changed by hand?");
  read_config(describe, source, config_node_from_json(json));
}

}  // namespace dovetail
