#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/schema.h"
#include "dovetail/base/schema/schema_declaration.h"

namespace dovetail {
namespace {

using FieldState = SchemaAccess::Field;
using SectionState = SchemaAccess::Section;

// Escapes `|`, which ends a cell of a Markdown table.
std::string cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string code_cell(const std::string& text) {
  return text.empty() ? "" : "`" + cell(text) + "`";
}

std::string default_text(const FieldState& field) {
  return field.required ? "(required)" : SchemaAccess::value_text(field);
}

void reference_section(std::string& out, const SectionState& section, const std::string& path,
                       const std::string& heading, std::string_view help) {
  if (!heading.empty()) out += fmt::format("## `{}`\n\n{}.\n\n", heading, help);
  if (!section.fields.empty()) {
    out += "| key | type | default | unit | allowed | meaning |\n|---|---|---|---|---|---|\n";
    for (const FieldState& field : section.fields) {
      out += fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", field.key,
                         SchemaAccess::type_name(field),
                         field.required ? "(required)" : code_cell(SchemaAccess::value_text(field)),
                         cell(field.unit), cell(SchemaAccess::range_text(field)), cell(field.help));
    }
    out += "\n";
  }
  for (const SectionState& child : section.sections) {
    const std::string child_path = join_path(path, child.key);
    reference_section(out, child, child_path, "[" + child_path + "]", child.help);
  }
  for (const SectionState::List& list : section.lists) {
    const std::string list_path = join_path(path, list.key);
    SectionState example;
    const auto element = list.describe_example(example.section);
    reference_section(out, example, list_path, "[[" + list_path + "]]", list.help);
  }
}

std::string explain_field(const FieldState& field, std::string_view path) {
  std::string out = fmt::format("{}: {}\n  type     {}\n  default  {}\n", path, field.help,
                                SchemaAccess::type_name(field), default_text(field));
  if (const std::string range = SchemaAccess::range_text(field); !range.empty())
    out += fmt::format("  allowed  {}\n", range);
  if (!field.unit.empty()) out += fmt::format("  unit     {}\n", field.unit);
  return out;
}

std::string explain_section(const SectionState& section, std::string_view heading,
                            std::string_view help) {
  return fmt::format("{}: {}\n  keys     {}\n", heading, help,
                     fmt::join(SchemaAccess::keys(section), ", "));
}

// Explains the key path `key`, relative to `section`. `path` is the path of `section` itself.
std::string explain_in(const SectionState& section, const std::string& path, std::string_view key) {
  const std::string first(key.substr(0, key.find('.')));
  const std::string_view rest =
      first.size() < key.size() ? key.substr(first.size() + 1) : std::string_view();
  const std::string here = join_path(path, first);
  const auto deeper = [&](const SectionState& child, const std::string& heading,
                          const std::string& help) {
    return first.size() < key.size() ? explain_in(child, here, rest)
                                     : explain_section(child, heading, help);
  };
  for (const FieldState& field : section.fields) {
    if (field.key == key) return explain_field(field, here);
  }
  for (const SectionState& child : section.sections) {
    if (child.key == first) return deeper(child, "[" + here + "]", child.help);
  }
  for (const SectionState::List& list : section.lists) {
    if (list.key != first) continue;
    SectionState example;
    const auto element = list.describe_example(example.section);
    return deeper(example, "[[" + here + "]]", list.help);
  }
  const std::string nearest = nearest_word(first, SchemaAccess::keys(section));
  throw UserError(fmt::format("unknown key `{}`", printable(here)),
                  nearest.empty() ? fmt::format("known in [{}]: {}", path.empty() ? "root" : path,
                                                fmt::join(SchemaAccess::keys(section), ", "))
                                  : fmt::format("did you mean `{}`?", join_path(path, nearest)));
}

}  // namespace

std::string config_reference(const Describe& describe) {
  SectionState root;
  describe(root.section);
  std::string out;
  reference_section(out, root, "", "", "");
  return out;
}

std::string explain_key(const Describe& describe, std::string_view key) {
  SectionState root;
  describe(root.section);
  return explain_in(root, "", key);
}

}  // namespace dovetail
