#include "dovetail/data/files/python_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dovetail/base/error.h"

namespace dovetail::data::python_text_test {
namespace {

TEST(PythonText, StripRemovesWhatIsSpaceToPython) {
  EXPECT_EQ(strip(" \t\n\x1c\u0085\u00a0\u2009\u3000 a b\u200b\x1f \r\n"), "a b\u200b");
  EXPECT_EQ(strip_end(" a \u2028"), " a");
  EXPECT_EQ(strip(" \n"), "");
  EXPECT_EQ(strip(""), "");
  EXPECT_EQ(strip_end("\xff \xe3\x80"), "\xff \xe3\x80");  // bytes that are no characters stay
}

TEST(PythonText, CapitalizeLowersAllButTheFirstCharacter) {
  EXPECT_EQ(capitalize("hello World"), "Hello world");
  EXPECT_EQ(capitalize("ÉTÉ AND"), "Été and");
  EXPECT_EQ(capitalize("ǆabc"), "ǅabc");  // title case is not upper case
  EXPECT_EQ(capitalize(""), "");
}

TEST(PythonText, LiteralsAreThoseThatReprWrites) {
  const auto value = parse_python_literal(
      R"( [{'question': "it's", 'n': -3, 'none': None, }, ('a' "b", True, False), [], {}] )");
  EXPECT_EQ(value,
            nlohmann::json::parse(
                R"([{"question": "it's", "n": -3, "none": null}, ["ab", true, false], [], {}])"));
  EXPECT_EQ(parse_python_literal(R"('\'\\ \n\r\t\x85\xe9\u2028\U0001f600 "')"),
            "'\\ \n\r\t\u0085é\u2028😀 \"");
}

TEST(PythonText, OtherTextIsNoLiteral) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "byte 0"},
      {"[1", "byte 2"},
      {"[1 2]", "byte 3"},
      {"'a", "byte 2"},
      {"'a\nb'", "byte 2"},
      {"{'a' 1}", "byte 5"},
      {"{1: 2}", "byte 1"},
      {"'\\q'", "byte 2"},
      {"'\\x8'", "byte 3"},
      {"'\\ud800'", "byte 3"},
      {"[] []", "byte 3"},
      {"1.5", "byte 1"},
      {"__import__", "byte 0"},
      {"'\\", "byte 2"},
      {"99999999999999999999", "byte 0"},
      {std::string(5000, '['), "fewer brackets"}};
  for (const auto& [text, place] : cases) {
    try {
      ADD_FAILURE() << text << " is " << parse_python_literal(text);
    } catch (const UserError& e) {
      EXPECT_THAT(e.what(), testing::HasSubstr(place)) << text;
    }
  }
}

}  // namespace
}  // namespace dovetail::data::python_text_test
