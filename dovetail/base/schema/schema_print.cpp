#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <type_traits>

#include "dovetail/base/schema/schema.h"
#include "dovetail/base/schema/schema_declaration.h"

namespace dovetail {
namespace {

using FieldState = SchemaAccess::Field;
using SectionState = SchemaAccess::Section;

// Prints a section. `heading` precedes the keys: "[model]", "[[data.phase]]", or "" at the root.
void print_section(std::string& out, const SectionState& section, const std::string& path,
                   const std::string& heading) {
  if (!heading.empty()) out += (out.empty() ? "" : "\n") + heading + "\n";
  for (const FieldState& field : section.fields) {
    out += fmt::format("{} = {}\n", field.key, SchemaAccess::value_text(field));
  }
  // TOML assigns all keys after a heading to its table. Empty lists have no heading, so they must
  // precede the first one.
  for (const SectionState::List& list : section.lists) {
    if (list.size() == 0) out += fmt::format("{} = []\n", list.key);
  }
  for (const SectionState& child : section.sections) {
    const std::string child_path = join_path(path, child.key);
    print_section(out, child, child_path, "[" + child_path + "]");
  }
  for (const SectionState::List& list : section.lists) {
    const std::string list_path = join_path(path, list.key);
    for (int64_t i = 0; i < list.size(); ++i) {
      SectionState element;
      list.describe_element(i, element.section);
      print_section(out, element, list_path, "[[" + list_path + "]]");
    }
  }
}

template <class T>
nlohmann::json json_of(const T& value) {
  return value;
}
// JSON has no NaN or infinity. They are written as strings in TOML's spelling.
nlohmann::json json_of(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}
nlohmann::json json_of(const std::vector<double>& values) {
  nlohmann::json out = nlohmann::json::array();
  for (const double value : values) out.push_back(json_of(value));
  return out;
}

nlohmann::json section_json(const SectionState& section) {
  nlohmann::json out = nlohmann::json::object();
  for (const FieldState& field : section.fields) {
    out[field.key] =
        field.is_word()
            ? nlohmann::json(field.word)
            : std::visit([](const auto* member) { return json_of(*member); }, field.target);
  }
  for (const SectionState& child : section.sections) out[child.key] = section_json(child);
  for (const SectionState::List& list : section.lists) {
    nlohmann::json elements = nlohmann::json::array();
    for (int64_t i = 0; i < list.size(); ++i) {
      SectionState element;
      list.describe_element(i, element.section);
      elements.push_back(section_json(element));
    }
    out[list.key] = std::move(elements);
  }
  return out;
}

}  // namespace

std::string config_to_toml(const Describe& describe) {
  SectionState root;
  describe(root.section);
  std::string out;
  print_section(out, root, "", "");
  return out;
}

nlohmann::json config_to_json(const Describe& describe) {
  SectionState root;
  describe(root.section);
  return section_json(root);
}

}  // namespace dovetail
