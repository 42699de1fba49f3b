#include "dovetail/base/json_fault.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>

namespace dovetail::json_fault_test {
namespace {

std::string fault_of(const std::string& text) {
  try {
    nlohmann::json::parse(text).at("key").get<std::string>();
  } catch (const nlohmann::json::exception& error) {
    return json_fault(error);
  }
  return "none";
}

TEST(JsonFault, NamesLineAndColumnInPlainWords) {
  EXPECT_EQ(fault_of("{\"key\": \"value\"}"), "none");
  EXPECT_EQ(fault_of("{\n \"key\": 1"), "line 2, column 10: unexpected end of input; expected '}'");
  EXPECT_EQ(fault_of("{\"key\": NaN}"),
            "line 1, column 9: invalid literal; last read: '\"key\": N'");
  EXPECT_EQ(fault_of(""),
            "line 1, column 1: unexpected end of input; expected '[', '{', or a literal");
  EXPECT_EQ(fault_of("{}"), "key 'key' not found");
  EXPECT_EQ(fault_of("{\"key\": 1}"), "type must be string, but is number");
  EXPECT_EQ(fault_of("[1]"), "array is where a list or an object is expected");
}

TEST(JsonFault, ShowsTheEndOfALongText) {
  const std::string fault = fault_of("{\"key\": \"" + std::string(5000, 'x') + "\xff\"}");
  EXPECT_LT(fault.size(), 200u);
  EXPECT_EQ(
      fault.find("line 1, column 5010: invalid string: ill-formed UTF-8 byte; last read: '...xxx"),
      0u)
      << fault;
}

}  // namespace
}  // namespace dovetail::json_fault_test
