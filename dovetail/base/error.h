#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace dovetail {

/// A mistake in what the user gave us: config, file, option, shape. The command exits with 2.
///
/// `what()` says what was asked and what was found; `help()` what to do; `place()` where ("run.toml:4:2", may be empty).
class UserError : public std::runtime_error {
 public:
  explicit UserError(const std::string& message, std::string help = {}, std::string place = {})
      : std::runtime_error(message), help_(std::move(help)), place_(std::move(place)) {}

  const std::string& help() const { return help_; }
  const std::string& place() const { return place_; }

 private:
  std::string help_, place_;
};

/// A broken invariant of our own, with file and line. The command exits with 1.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

/// Throws UserError with a formatted message when `condition` is false.
template <class... Args>
void user_check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) throw UserError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace dovetail

/// Throws InternalError with file, line, the condition and an fmt message: DOVETAIL_CHECK(a == b, "{} is not {}", a, b).
#define DOVETAIL_CHECK(condition, ...)                                                                        \
  do {                                                                                                        \
    if (!(condition)) ::dovetail::check_failed(__FILE__, __LINE__, #condition, ::fmt::format("" __VA_ARGS__)); \
  } while (false)
