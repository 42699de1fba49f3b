#include "dovetail/base/error.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace dovetail::error_test {
namespace {

TEST(DescribeError, PutsAShortHelpUnderTheCaret) {
  UserError error("unknown key `precison` in [root]", "did you mean `precision`?", "run.toml:4:2");
  error.show({4, "[precison]", 2, 8});
  EXPECT_EQ(describe_error(error),
            "error: unknown key `precison` in [root]\n"
            "  --> run.toml:4:2\n"
            "   |\n"
            " 4 | [precison]\n"
            "   |  ^^^^^^^^ did you mean `precision`?");
}

TEST(DescribeError, GivesALongHelpALineOfItsOwn) {
  const std::string help(100, 'h');
  UserError error("message", help, "run.toml:12:1");
  error.show({12, "x = 1", 1, 1});
  EXPECT_EQ(describe_error(error),
            "error: message\n  --> run.toml:12:1\n    |\n 12 | x = 1\n    | ^\nhelp: " + help);
}

TEST(DescribeError, WithoutASourceLine) {
  EXPECT_EQ(describe_error(UserError("message")), "error: message");
  EXPECT_EQ(describe_error(UserError("message", "do this")), "error: message\nhelp: do this");
  EXPECT_EQ(describe_error(UserError("message", "do this", "a.toml")),
            "error: message\n  --> a.toml\nhelp: do this");
}

std::string caret_line(const std::string& text, int64_t column, int64_t length) {
  UserError error("m");
  error.show({1, text, column, length});
  const std::string out = describe_error(error);
  return out.substr(out.rfind("   | ") + 5);
}

TEST(DescribeError, AlignsTheCaretByCharactersAndTabs) {
  EXPECT_EQ(caret_line("\tx = 1", 2, 1), "\t^");
  EXPECT_EQ(caret_line("é = ü", 5, 1), "    ^");
}

TEST(DescribeError, ShowsAWindowOfALongLine) {
  UserError error("m");
  std::string text(5000, 'a');
  text.append("MARK").append(5000, 'b');
  error.show({1, text, 5001, 4});
  const std::string out = describe_error(error);
  EXPECT_LT(out.size(), 400U);
  const size_t mark = out.find("MARK"), line = out.rfind('\n', mark), caret = out.find('^');
  ASSERT_NE(mark, out.npos);
  EXPECT_EQ(mark - line, caret - out.rfind('\n', caret));
  EXPECT_THAT(out, ::testing::EndsWith(" ^^^^"));
}

TEST(DescribeError, SurvivesPositionsOutsideTheLine) {
  for (const int64_t column : {-5, 0, 1, 3, 4, 500}) {
    for (const int64_t length : {-1, 0, 1, 1000})
      EXPECT_NE(caret_line("abc", column, length).find('^'), std::string::npos);
  }
}

TEST(Printable, ReplacesWhatIsNoTextAndKeepsTheRest) {
  const std::string replacement = "\xEF\xBF\xBD";
  EXPECT_EQ(printable("plain é 漢 🙂\t"), "plain é 漢 🙂\t");
  EXPECT_EQ(printable("a\x1b[31mb"), "a" + replacement + "[31mb");
  EXPECT_EQ(printable("a\xFF\x62"), "a" + replacement + "b");
  EXPECT_EQ(printable("\xC3"), replacement);                                      // cut off
  EXPECT_EQ(printable("\xC0\x80"), replacement + replacement);                    // overlong
  EXPECT_EQ(printable("\xED\xA0\x80"), replacement + replacement + replacement);  // a surrogate
  EXPECT_EQ(printable("\xF4\x90\x80\x80").substr(0, 3), replacement);             // above U+10FFFF
  EXPECT_EQ(printable("\xF4\x8F\xBF\xBF"), "\xF4\x8F\xBF\xBF");
}

TEST(Check, NamesFileLineConditionAndMessage) {
  try {
    DOVETAIL_CHECK(1 == 2, "{} is not {}", 1, 2);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), ::testing::HasSubstr("error_test.cpp:"));
    EXPECT_THAT(error.what(), ::testing::HasSubstr("check failed: 1 == 2: 1 is not 2"));
  }
  EXPECT_THROW(DOVETAIL_CHECK(false), InternalError);
  EXPECT_NO_THROW(DOVETAIL_CHECK(true, "never formatted"));
}

TEST(UserCheck, ThrowsOnlyWhenFalse) {
  EXPECT_NO_THROW(user_check(true, "{}", 1));
  EXPECT_THROW(user_check(false, "{} rows", 3), UserError);
}

}  // namespace
}  // namespace dovetail::error_test
