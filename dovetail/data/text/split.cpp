#include "dovetail/data/text/split.h"

#include <fmt/format.h>

#include "dovetail/base/error.h"
#include "dovetail/data/files/utf8.h"

namespace dovetail::data {
namespace {

constexpr std::string_view kGpt2Regex =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kLlama3Regex =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+|\s+(?!\S)|\s+)";

constexpr int32_t kLongS = 0x17F;  // folds to s, so that a pattern with (?i) matches it as s

bool is_newline(char c) { return c == '\r' || c == '\n'; }

struct Cursor {
  std::string_view text;

  bool ends(size_t at) const { return at >= text.size(); }
  CharacterClass class_at(size_t at) const { return class_of(character_at(text, at).code); }
  bool is(size_t at, CharacterClass wanted) const { return !ends(at) && class_at(at) == wanted; }

  /// Returns the end of the run of characters of class `wanted` that begins at `at`.
  size_t skip(size_t at, CharacterClass wanted) const {
    while (!ends(at)) {
      const Character c = character_at(text, at);
      if (class_of(c.code) != wanted) break;
      at += c.length;
    }
    return at;
  }
};

/// Returns the number of bytes of '(s|t|re|ve|m|ll|d) at the start, or 0.
size_t contraction(std::string_view text, bool ignore_case) {
  if (text.size() < 2 || text[0] != '\'') return 0;
  if (ignore_case && character_at(text, 1).code == kLongS) return 3;
  const auto letter = [&](size_t at) -> char {
    if (at >= text.size()) return 0;
    const char c = text[at];
    return ignore_case && c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  };
  switch (letter(1)) {
    case 's':
    case 't':
    case 'm':
    case 'd':
      return 2;
    case 'r':
    case 'v':
      return letter(2) == 'e' ? 3 : 0;
    case 'l':
      return letter(2) == 'l' ? 3 : 0;
    default:
      return 0;
  }
}

/// Matches \s+(?!\S)|\s+ on a run of white space [0, end). If a word follows, the run leaves its
/// last character to the word.
size_t white_space(std::string_view text, size_t end) {
  if (end == text.size()) return end;
  size_t last = end - 1;
  while (last > 0 && (static_cast<unsigned char>(text[last]) & 0xC0) == 0x80) --last;
  return last > 0 ? last : end;
}

size_t first_word_gpt2(std::string_view text) {
  if (const size_t length = contraction(text, false)) return length;
  const Cursor cursor{text};
  const size_t begin = text[0] == ' ' && text.size() > 1 ? 1 : 0;
  const CharacterClass wanted = cursor.class_at(begin);
  if (wanted != CharacterClass::kSpace) return cursor.skip(begin, wanted);
  return white_space(text, cursor.skip(0, CharacterClass::kSpace));
}

size_t first_word_llama3(std::string_view text) {
  if (const size_t length = contraction(text, true)) return length;
  const Cursor cursor{text};
  const Character first = character_at(text, 0);
  const CharacterClass first_class = class_of(first.code);

  if (first_class == CharacterClass::kLetter) return cursor.skip(0, CharacterClass::kLetter);
  if (first_class == CharacterClass::kNumber) {
    size_t end = 0;
    for (int digits = 0; digits < 3 && cursor.is(end, CharacterClass::kNumber); ++digits)
      end += character_at(text, end).length;
    return end;
  }
  if (!is_newline(text[0]) && cursor.is(first.length, CharacterClass::kLetter))
    return cursor.skip(first.length, CharacterClass::kLetter);

  const size_t begin = text[0] == ' ' ? 1 : 0;
  if (cursor.is(begin, CharacterClass::kOther)) {
    size_t end = cursor.skip(begin, CharacterClass::kOther);
    while (!cursor.ends(end) && is_newline(text[end])) ++end;
    return end;
  }
  const size_t end = cursor.skip(0, CharacterClass::kSpace);
  const size_t newline = text.substr(0, end).find_last_of("\r\n");
  return newline != std::string_view::npos ? newline + 1 : white_space(text, end);
}

}  // namespace

std::string_view split_regex(SplitPattern pattern) {
  return pattern == SplitPattern::kGpt2 ? kGpt2Regex : kLlama3Regex;
}

size_t first_word(std::string_view text, SplitPattern pattern) {
  return pattern == SplitPattern::kGpt2 ? first_word_gpt2(text) : first_word_llama3(text);
}

SplitPattern split_pattern(const std::string& name) {
  if (name == "gpt2") return SplitPattern::kGpt2;
  if (name == "llama3") return SplitPattern::kLlama3;
  throw UserError(fmt::format("unknown split pattern `{}`", name), "use gpt2 or llama3");
}

}  // namespace dovetail::data
