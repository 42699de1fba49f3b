#include "dovetail/base/json_fault.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "dovetail/base/error.h"

namespace dovetail {
namespace {

/// Removes "syntax error while parsing object key - ", which describes a state of the parser.
void remove_state(std::string& text) {
  const size_t begin = text.find("syntax error while parsing "), end = text.find(" - ", begin);
  if (begin != std::string::npos && end != std::string::npos) text.erase(begin, end + 3 - begin);
}

/// Shortens the parser's "last read" text to its last bytes. It may be a string of megabytes.
void shorten_last_read(std::string& text) {
  constexpr std::string_view kLastRead = "last read: '";
  constexpr size_t kShown = 40;
  const size_t found = text.find(kLastRead);
  if (found == std::string::npos) return;
  const size_t begin = found + kLastRead.size();
  const size_t end = std::min(text.rfind("'; expected "), text.size() - 1);
  if (end <= begin + kShown) return;
  size_t shown = end - kShown;
  while ((static_cast<unsigned char>(text[shown]) & 0xC0) == 0x80) ++shown;
  text.replace(begin, shown - begin, "...");
}

}  // namespace

std::string json_fault(const std::exception& error) {
  std::string text = error.what();
  if (text.starts_with("[json.exception.")) text.erase(0, text.find("] ") + 2);
  if (text.starts_with("parse error")) {
    text.erase(0, text.find_first_not_of(' ', std::string_view("parse error").size()));
    if (text.starts_with("at ")) text.erase(0, 3);
    remove_state(text);
    shorten_last_read(text);
  }
  if (text.starts_with("cannot use "))
    return fmt::format("{} is where a list or an object is expected",
                       text.substr(text.rfind(' ') + 1));
  return printable(text);
}

}  // namespace dovetail
