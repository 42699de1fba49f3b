#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace dovetail {

/// The line of the user's file that an error is about; `column` counts characters from 1, `length`
/// is what to underline.
struct SourceLine {
  int64_t line = 0;
  std::string text;
  int64_t column = 1, length = 1;
};

/// A mistake in what the user gave us: config, file, option, shape. The command exits with 2.
///
/// `what()` says what was asked and what was found; `help()` what to do; `place()` where
/// ("run.toml:4:2", may be empty).
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message, std::string help = {}, std::string place = {})
      : std::runtime_error(message), help_(std::move(help)), place_(std::move(place)) {}

  const std::string& help() const { return help_; }
  const std::string& place() const { return place_; }

  /// The line to show under the place, where there is one.
  const std::optional<SourceLine>& source() const { return source_; }
  UserError& show(SourceLine source) {
    source_ = std::move(source);
    return *this;
  }

 private:
  std::string help_, place_;
  std::optional<SourceLine> source_;
};

/// The error as the command prints it, without a newline at the end:
///
///     error: unknown key `precison` in [root]
///       --> run.toml:4:2
///        |
///      4 | [precison]
///        |  ^^^^^^^^ did you mean `precision`?
///
/// Without a source line, or with a help too long to stand under one, the help is a line of its own
/// ("help: ...").
std::string describe_error(const UserError& error);

/// Text made safe to print: bytes that are no UTF-8 and control characters other than tab become
/// U+FFFD.
std::string printable(std::string_view text);

/// A broken invariant of our own, with file and line. The command exits with 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

/// Throws UserError with a formatted message when `condition` is false.
template <class... Args>
void user_check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dovetail

/// Throws InternalError with file, line, the condition and an fmt message: DOVETAIL_CHECK(a == b,
/// "{} is not {}", a, b).
#define DOVETAIL_CHECK(condition, ...)                                                         \
  do {                                                                                         \
    if (!(condition))                                                                          \
      ::dovetail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
