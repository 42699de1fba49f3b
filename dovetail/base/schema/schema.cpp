#include "dovetail/base/schema/schema.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "dovetail/base/error.h"
#include "dovetail/base/schema/config_node.h"
#include "dovetail/base/schema/schema_declaration.h"

namespace dovetail {
namespace {

char folded(char c) {
  return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c == '-' || c == ' ' ? '_' : c;
}

// Counts insertions, deletions, replacements and swaps of neighbours (optimal string alignment).
int64_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<int64_t> before(b.size() + 1), previous(b.size() + 1), current(b.size() + 1);
  std::iota(previous.begin(), previous.end(), 0);
  for (size_t i = 1; i <= a.size(); ++i) {
    current[0] = static_cast<int64_t>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int64_t replaced = previous[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      current[j] = std::min({previous[j] + 1, current[j - 1] + 1, replaced});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) current[j] = std::min(current[j], before[j - 2] + 1);
    }
    std::swap(before, previous);
    std::swap(previous, current);
  }
  return previous[b.size()];
}

std::string number_text(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return text;
}

std::string text_of(bool value) { return value ? "true" : "false"; }
std::string text_of(int64_t value) { return std::to_string(value); }
std::string text_of(double value) { return number_text(value); }
std::string text_of(const std::string& value) { return quote_toml(value); }
template <class T>
std::string text_of(const std::vector<T>& values) {
  std::string out = "[";
  for (const T& value : values) out += (out.size() > 1 ? ", " : "") + text_of(value);
  return out + "]";
}

void check_new_key(const Section::State& state, std::string_view key) {
  const auto known = SchemaAccess::keys(state);
  DOVETAIL_CHECK(std::find(known.begin(), known.end(), key) == known.end(),
                 "key '{}' is declared twice in [{}]", key, state.key);
}

}  // namespace

Field& Field::range(double low, double high) {
  DOVETAIL_CHECK(low <= high, "range of '{}' is empty", state_->key);
  state_->low = low;
  state_->high = high;
  return *this;
}

Field& Field::above(double low) {
  state_->above = low;
  return *this;
}

Field& Field::choices(std::vector<std::string> values) {
  state_->choices = std::move(values);
  return *this;
}

Field& Field::unit(std::string_view unit) {
  state_->unit = unit;
  return *this;
}

Field& Field::word(std::string_view word, int64_t value) {
  DOVETAIL_CHECK(std::holds_alternative<int64_t*>(state_->target), "'{}' is no integer",
                 state_->key);
  state_->word = word;
  state_->word_value = value;
  return *this;
}

Field& Field::required() {
  state_->required = true;
  return *this;
}

SchemaAccess::Field& SchemaAccess::declare(Section& section, std::string_view key,
                                           std::string_view help, const Field::Target& target) {
  check_new_key(section, key);
  Field& field = section.fields.emplace_back();
  field.key = key;
  field.help = help;
  field.target = target;
  return field;
}

Field Section::value(std::string_view key, bool& member, std::string_view help) {
  return Field(SchemaAccess::declare(*state_, key, help, &member));
}
Field Section::value(std::string_view key, int64_t& member, std::string_view help) {
  return Field(SchemaAccess::declare(*state_, key, help, &member));
}
Field Section::value(std::string_view key, double& member, std::string_view help) {
  return Field(SchemaAccess::declare(*state_, key, help, &member));
}
Field Section::value(std::string_view key, std::string& member, std::string_view help) {
  return Field(SchemaAccess::declare(*state_, key, help, &member));
}
Field Section::value(std::string_view key, std::vector<int64_t>& member, std::string_view help) {
  return Field(SchemaAccess::declare(*state_, key, help, &member));
}
Field Section::value(std::string_view key, std::vector<double>& member, std::string_view help) {
  return Field(SchemaAccess::declare(*state_, key, help, &member));
}
Field Section::value(std::string_view key, std::vector<std::string>& member,
                     std::string_view help) {
  return Field(SchemaAccess::declare(*state_, key, help, &member));
}

Section& Section::subsection(std::string_view key, std::string_view help) {
  check_new_key(*state_, key);
  return state_->sections.emplace_back(std::string(key), std::string(help)).section;
}

void Section::list_impl(std::string_view key, std::string_view help,
                        std::function<void(int64_t)> resize,
                        std::function<void(int64_t, Section&)> describe_element,
                        std::function<std::shared_ptr<void>(Section&)> describe_example,
                        std::function<int64_t()> size) {
  check_new_key(*state_, key);
  state_->lists.push_back({std::string(key), std::string(help), std::move(resize),
                           std::move(describe_element), std::move(describe_example),
                           std::move(size)});
}

std::vector<std::string> SchemaAccess::keys(const Section& section) {
  std::vector<std::string> names;
  for (const Field& field : section.fields) names.push_back(field.key);
  for (const Section& child : section.sections) names.push_back(child.key);
  for (const Section::List& list : section.lists) names.push_back(list.key);
  return names;
}

std::string SchemaAccess::type_name(const Field& field) {
  static constexpr std::array<const char*, std::variant_size_v<Field::Target>> kNames = {
      "bool",
      "integer",
      "number",
      "string",
      "list of integers",
      "list of numbers",
      "string or list of strings"};
  const std::string name = kNames[field.target.index()];
  return field.word.empty() ? name : fmt::format("{} or {}", name, quote_toml(field.word));
}

std::string SchemaAccess::range_text(const Field& field) {
  const auto bound = [](double value) { return fmt::format("{}", value); };
  if (!field.choices.empty()) {
    std::string out;
    for (const std::string& choice : field.choices)
      out += (out.empty() ? "" : ", ") + quote_toml(choice);
    return out;
  }
  std::string out;
  if (field.above) out = "above " + bound(*field.above);
  if (!field.low) return out;
  if (!out.empty()) out += ", ";
  if (std::isinf(*field.high)) return out + "at least " + bound(*field.low);
  if (std::isinf(*field.low)) return out + "at most " + bound(*field.high);
  return out + bound(*field.low) + " to " + bound(*field.high);
}

std::string SchemaAccess::value_text(const Field& field) {
  if (field.is_word()) return quote_toml(field.word);
  return std::visit([](const auto* member) { return text_of(*member); }, field.target);
}

std::string join_path(std::string_view path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

std::string nearest_word(std::string_view word, const std::vector<std::string>& known) {
  const auto fold = [](std::string_view text) {
    std::string out(text);
    std::transform(out.begin(), out.end(), out.begin(), folded);
    return out;
  };
  // Longer words are not typing mistakes of a known word. The distance also takes time proportional
  // to the product of both lengths.
  constexpr size_t kLongestWord = 100;
  if (word.size() > kLongestWord) return {};
  const std::string sought = fold(word);
  std::string nearest;
  int64_t nearest_distance = INT64_MAX;
  for (const std::string& candidate : known) {
    const std::string other = fold(candidate);
    const int64_t distance = edit_distance(sought, other);
    const auto allowed =
        static_cast<int64_t>(std::max<size_t>(1, std::max(sought.size(), other.size()) / 3));
    const bool is_start = sought.size() >= 3 && other.size() >= 3 &&
                          (other.starts_with(sought) || sought.starts_with(other));
    if ((distance <= allowed || is_start) && distance < nearest_distance) {
      nearest = candidate;
      nearest_distance = distance;
    }
  }
  return nearest;
}

}  // namespace dovetail
