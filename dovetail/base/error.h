#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace dovetail {

/// Line of a file from the user, such as a config, in which a mistake was found.
struct SourceLine {
  int64_t line = 0;  ///< number of the line, from 1
  std::string text;  ///< the whole line
  /// First character of the mistake, counted from 1, and number of characters to underline.
  int64_t column = 1, length = 1;
};

/// Mistake in the user's input: config, file, option or shape. The `dovetail` command exits with
/// code 2.
///
/// `what()` reports what was asked and what was found. `help()` suggests a remedy. `place()` is the
/// position of the mistake, for example "run.toml:4:2". Help and place may be empty.
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message, std::string help = {}, std::string place = {})
      : std::runtime_error(message), help_(std::move(help)), place_(std::move(place)) {}

  const std::string& help() const { return help_; }
  const std::string& place() const { return place_; }

  /// Line of the user's file that is printed below `place()`; nullopt if there is none.
  const std::optional<SourceLine>& source() const { return source_; }
  /// Sets source().
  UserError& show(SourceLine source) {
    source_ = std::move(source);
    return *this;
  }

 private:
  std::string help_, place_;
  std::optional<SourceLine> source_;
};

/// Formats the error as the `dovetail` command prints it, without a newline at the end:
///
///     error: unknown key `precison` in [root]
///       --> run.toml:4:2
///        |
///      4 | [precison]
///        |  ^^^^^^^^ did you mean `precision`?
///
/// Here, the help "did you mean ..." follows the carets. It is a separate line ("help: ...") if
/// there is no source line, or if the help has several lines or more than 72 bytes.
std::string describe_error(const UserError& error);

/// Returns `text` in a form that is safe to print on a terminal. Bytes that are not UTF-8, and
/// control characters other than tab, become U+FFFD.
std::string printable(std::string_view text);

/// Broken invariant of the program, with file and line. The `dovetail` command exits with code 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Throws InternalError. DOVETAIL_CHECK calls it.
[[noreturn]] void check_failed(const char* file, int line, const char* condition,
                               const std::string& message);

/// Throws UserError with a formatted message if `condition` is false.
template <class... Args>
void user_check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dovetail

/// Throws InternalError if `condition` is false. The message has file, line, the condition and a
/// text formatted by fmt. Example: DOVETAIL_CHECK(a == b, "{} is not {}", a, b).
#define DOVETAIL_CHECK(condition, ...)                                                         \
  do {                                                                                         \
    if (!(condition))                                                                          \
      ::dovetail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
