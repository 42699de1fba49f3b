#include "dovetail/data/files/python_text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <charconv>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

using nlohmann::json;

/// Unicode's white space and four separators of ASCII, as in str.isspace.
bool is_python_space(int32_t code) {
  return (code >= 0x1C && code <= 0x1F) || class_of(code) == CharacterClass::kSpace;
}

class PythonLiteral {
 public:
  explicit PythonLiteral(std::string_view text) : text_(text) {}

  json whole() {
    json value = this->value(0);
    skip_space();
    if (at_ < text_.size()) fail("nothing more");
    return value;
  }

 private:
  static constexpr int kDeepest = 32;

  json value(int depth) {
    skip_space();
    if (depth > kDeepest) fail("a literal with fewer brackets");
    if (take('[')) return list(depth, ']');
    if (take('(')) return list(depth, ')');
    if (take('{')) return dictionary(depth);
    if (next() == '\'' || next() == '"') return strings();
    for (const auto& [word, value] :
         {std::pair<std::string_view, json>{"None", nullptr}, {"True", true}, {"False", false}}) {
      if (text_.substr(at_).starts_with(word)) return at_ += word.size(), value;
    }
    return integer();
  }

  json integer() {
    int64_t number = 0;
    const char* const begin = text_.data() + at_;
    const auto [end, error] = std::from_chars(begin, text_.data() + text_.size(), number);
    if (error != std::errc()) fail("a list, a dictionary, a string or an integer");
    at_ += static_cast<size_t>(end - begin);
    return number;
  }

  json list(int depth, char close) {
    json values = json::array();
    for (skip_space(); !take(close); skip_space()) {
      if (!values.empty()) expect(',');
      skip_space();
      if (take(close)) break;  // a comma may follow the last value
      values.push_back(value(depth + 1));
    }
    return values;
  }

  json dictionary(int depth) {
    json values = json::object();
    for (skip_space(); !take('}'); skip_space()) {
      if (!values.empty()) expect(',');
      skip_space();
      if (take('}')) break;
      std::string key = strings();
      skip_space();
      expect(':');
      values[key] = value(depth + 1);
    }
    return values;
  }

  /// Reads strings that follow each other, which Python joins.
  std::string strings() {
    std::string joined;
    do {
      joined += one_string();
      skip_space();
    } while (next() == '\'' || next() == '"');
    return joined;
  }

  std::string one_string() {
    const char quote = next();
    if (quote != '\'' && quote != '"') fail("a string in quotes");
    ++at_;
    std::string out;
    while (!take(quote)) {
      if (at_ >= text_.size() || next() == '\n') fail("the end of a string");
      if (take('\\'))
        escape(out);
      else
        out += text_[at_++];
    }
    return out;
  }

  void escape(std::string& out) {
    constexpr std::string_view kNames = "\\'\"abfnrtv", kValues = "\\'\"\a\b\f\n\r\t\v";
    const char name = next();
    if (const size_t found = kNames.find(name);
        at_ < text_.size() && found != std::string_view::npos) {
      out += kValues[found];
      ++at_;
    } else if (name == 'x' || name == 'u' || name == 'U') {
      ++at_;
      code_point(out, name == 'x' ? 2 : name == 'u' ? 4 : 8);
    } else {
      fail("one of the escapes \\\\ \\' \\\" \\a \\b \\f \\n \\r \\t \\v \\x \\u \\U");
    }
  }

  void code_point(std::string& out, size_t digits) {
    int32_t code = -1;
    const auto hexadecimal = text_.substr(at_, digits);
    const auto [end, error] =
        std::from_chars(hexadecimal.data(), hexadecimal.data() + hexadecimal.size(), code, 16);
    const bool whole = end == hexadecimal.data() + digits && hexadecimal.size() == digits;
    if (error != std::errc() || !whole || !utf8proc_codepoint_valid(code))
      fail(fmt::format("a character as {} hexadecimal digits", digits));
    append_utf8(out, code);
    at_ += digits;
  }

  char next() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  bool take(char wanted) { return next() == wanted && at_ < text_.size() ? (++at_, true) : false; }
  void expect(char wanted) {
    if (!take(wanted)) fail(fmt::format("{:?}", wanted));
  }
  void skip_space() { at_ = std::min(text_.find_first_not_of(" \t\r\n\f", at_), text_.size()); }
  [[noreturn]] void fail(const std::string& expected) const {
    throw UserError(fmt::format("not a literal of Python: byte {} should be {}", at_, expected));
  }

  std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::string_view strip_end(std::string_view text) {
  size_t kept = 0;
  for (size_t at = 0; at < text.size();) {
    const Character character = character_at(text, at);
    at += character.length;
    if (!is_python_space(character.code)) kept = at;
  }
  return text.substr(0, kept);
}

std::string_view strip(std::string_view text) {
  while (!text.empty()) {
    const Character first = character_at(text, 0);
    if (!is_python_space(first.code)) break;
    text.remove_prefix(first.length);
  }
  return strip_end(text);
}

std::string capitalize(std::string_view text) {
  std::string out;
  for (size_t at = 0; at < text.size();) {
    const auto [code, length] = character_at(text, at);
    if (code == Character::kInvalid)
      out += text[at];
    else
      append_utf8(out, at == 0 ? utf8proc_totitle(code) : utf8proc_tolower(code));
    at += length;
  }
  return out;
}

json parse_python_literal(std::string_view text) { return PythonLiteral(text).whole(); }

}  // namespace dovetail::data
