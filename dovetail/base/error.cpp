#include "dovetail/base/error.h"

#include <algorithm>

namespace dovetail {
namespace {

// A longer help gets a line of its own, since it would wrap after the caret.
constexpr size_t kMaxCaretHelp = 72;
constexpr int64_t kMaxShown = 120, kShownBefore = 60;

bool continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// Returns the bytes of the UTF-8 sequence at the start of `text`. Returns 0 for invalid sequences,
// including overlong forms and surrogates.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) {
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U;
  };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first >= 0xC2 && first < 0xE0   ? 2
                        : (first & 0xF0) == 0xE0        ? 3
                        : first >= 0xF0 && first < 0xF5 ? 4
                                                        : 0;
  for (size_t i = 1; i < length; ++i) {
    if (i >= text.size() || !continuation(text[i])) return 0;
  }
  const unsigned second = byte(1);
  const bool overlong = (first == 0xE0 && second < 0xA0) || (first == 0xF0 && second < 0x90);
  const bool outside = (first == 0xED && second >= 0xA0) || (first == 0xF4 && second >= 0x90);
  return overlong || outside ? 0 : length;
}

// Returns the byte position of character `index`, counted from 0.
size_t byte_of(std::string_view text, int64_t index) {
  size_t at = 0;
  for (; index > 0 && at < text.size(); --index) {
    do ++at;
    while (at < text.size() && continuation(text[at]));
  }
  return at;
}

/// Applies `printable` to each line and keeps the line breaks.
std::string printable_lines(std::string_view text) {
  std::string out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0) out += '\n';
    out += printable(text.substr(at, end - at));
    at = end + 1;
  }
  return out;
}

std::string caret_lines(const SourceLine& source, const std::string& help) {
  const std::string text = printable(source.text);
  int64_t column = std::max<int64_t>(source.column, 1);
  const int64_t skipped = column > kMaxShown ? column - kShownBefore : 0;
  const size_t begin = byte_of(text, skipped);
  const std::string_view rest = std::string_view(text).substr(begin);
  const std::string_view shown = rest.substr(0, byte_of(rest, kMaxShown));
  column -= skipped;

  // Tabs stay tabs in the padding, so that the caret is below the character in any terminal.
  std::string pad;
  const std::string_view before = shown.substr(0, byte_of(shown, column - 1));
  for (size_t i = 0; i < before.size(); ++i) {
    if (!continuation(before[i])) pad += before[i] == '\t' ? '\t' : ' ';
  }
  const auto length = static_cast<size_t>(
      std::clamp<int64_t>(source.length, 1, std::max<int64_t>(kMaxShown - column, 1)));
  const std::string number = std::to_string(source.line), margin(number.size() + 2, ' ');
  std::string out = fmt::format("\n{}|\n {} | {}\n{}| {}{}", margin, number, shown, margin, pad,
                                std::string(length, '^'));
  if (!help.empty()) out += " " + help;
  return out;
}

}  // namespace

void check_failed(const char* file, int line, const char* condition, const std::string& message) {
  throw InternalError(fmt::format("{}:{}: check failed: {}{}{}", file, line, condition,
                                  message.empty() ? "" : ": ", message));
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    const auto first = static_cast<unsigned char>(text[0]);
    const bool control = (first < 0x20 && first != '\t') || first == 0x7F;
    out += length == 0 || control ? std::string_view("\xEF\xBF\xBD") : text.substr(0, length);
    text.remove_prefix(std::max<size_t>(length, 1));
  }
  return out;
}

std::string describe_error(const UserError& error) {
  std::string out = "error: " + printable_lines(error.what());
  if (!error.place().empty()) out += "\n  --> " + printable_lines(error.place());
  const std::string help = printable_lines(error.help());
  const bool under_caret =
      error.source() && help.size() <= kMaxCaretHelp && help.find('\n') == std::string::npos;
  if (error.source()) out += caret_lines(*error.source(), under_caret ? help : std::string());
  if (!under_caret && !help.empty()) out += "\nhelp: " + help;
  return out;
}

}  // namespace dovetail
