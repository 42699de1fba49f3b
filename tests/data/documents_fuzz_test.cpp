// ctest-labels: fuzz
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "dovetail/data/files/utf8.h"
#include "dovetail/data/text/documents.h"
#include "temporary_folder.h"
#include "tests/fuzz.h"

namespace dovetail::data::documents_fuzz_test {
namespace {

const std::string kRecords =
    R"([{"text": "one \" ]", "n": [1, {"a": "}"}]}, {"text": null, "x": NaN},)"
    "\n"
    R"( {"text": ""}, {"body": 1}, {"text": "two \\"}, ["three"], {"text": "vier é"}])";

std::vector<std::string> texts_in(const InputFile& file) {
  std::vector<std::string> texts;
  for (const Piece& piece : cut_into_pieces({file}, "text"))
    read_documents(file, piece, "text", [&](const Document& document) {
      if (document.state == Document::State::kText) texts.emplace_back(document.text);
    });
  return texts;
}

/// Texts of the records by a parser of whole files; empty if the file is no array.
std::vector<std::string> parsed(const std::string& content) {
  std::vector<std::string> texts;
  const auto root = nlohmann::json::parse(content, nullptr, /*allow_exceptions=*/false);
  if (root.is_array())
    for (const auto& record : root)
      if (record.is_object() && record.contains("text") && record["text"].is_string() &&
          record["text"] != "")
        texts.push_back(record["text"]);
  return texts;
}

TEST(DocumentsFuzz, AnArrayGivesTheTextsOfAParserOfWholeFiles) {
  const TemporaryFolder folder;
  std::string finite = kRecords;
  finite.replace(finite.find("NaN"), 3, "1.5");
  test::fuzz({kRecords, finite}, 1000, 41, [&](const std::string& input) {
    DataConfig config;
    config.text = {folder.write("records.json", input).string()};
    for (const InputFile& file : list_inputs(config).files) {
      const auto texts = texts_in(file);
      if (const auto expected = parsed(input); !expected.empty()) {
        EXPECT_EQ(texts, expected) << test::escaped(input);
      }
    }
  });
}

TEST(DocumentsFuzz, LinesAreReadOrNamed) {
  const TemporaryFolder folder;
  std::string lines = kRecords.substr(1, kRecords.size() - 2);
  for (size_t at = 0; (at = lines.find("}, ", at)) != std::string::npos;)
    lines.replace(at, 3, "}\r\n");
  test::fuzz({lines, "\xEF\xBB\xBF" + lines}, 1000, 43, [&](const std::string& input) {
    DataConfig config;
    config.text = {folder.write("records.jsonl", input).string()};
    for (const InputFile& file : list_inputs(config).files)
      for (const std::string& text : texts_in(file))
        EXPECT_TRUE(is_valid_utf8(text)) << test::escaped(input);
  });
}

}  // namespace
}  // namespace dovetail::data::documents_fuzz_test
