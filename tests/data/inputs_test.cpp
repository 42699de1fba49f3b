#include "dovetail/data/text/inputs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "temporary_folder.h"

namespace dovetail::data::inputs_test {
namespace {

using ::testing::ElementsAre;

class Inputs : public ::testing::Test {
 protected:
  Inputs() {
    for (const char* name : {"a.txt", "b.md", "c.bin", ".d.txt", "s/e.py", "s/f.jsonl", "s/t/g.txt",
                             "s/.u/h.txt", "Z.txt"})
      folder_.write(name, name);
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }

  std::vector<std::string> list(const std::vector<std::string>& text) {
    DataConfig config;
    config.text = text;
    return names(config);
  }

  static std::vector<std::string> names(const DataConfig& config) {
    std::vector<std::string> names;
    for (const InputFile& file : list_inputs(config).files) names.push_back(file.relative);
    return names;
  }

  TemporaryFolder folder_;
};

TEST_F(Inputs, AFolderIsSearchedForText) {
  EXPECT_THAT(list({at("")}),
              ElementsAre("Z.txt", "a.txt", "b.md", "s/e.py", "s/f.jsonl", "s/t/g.txt"));
  EXPECT_THAT(list({at("s")}), ElementsAre("e.py", "f.jsonl", "t/g.txt"));
}

TEST_F(Inputs, AFolderListsWhatItPassesOver) {
  folder_.write("s/photo.PNG", "\x89PNG");
  folder_.write("s/video.ts", std::string("\x47\x40\xff\0\x10", 5));
  folder_.write("s/UPPER.TXT", "upper");
  folder_.write("s/model.R", "x <- 1");
  DataConfig config;
  config.text = {at("s")};
  const auto inputs = list_inputs(config);
  std::vector<std::string> passed;
  for (const PassedOver& file : inputs.passed_over)
    passed.push_back(file.relative + ": " + file.reason);
  EXPECT_THAT(passed, ElementsAre("photo.PNG: no extension of a text", "video.ts: binary data"));
  EXPECT_EQ(describe_passed_over(inputs.passed_over),
            "passed over 2 files: photo.PNG (no extension of a text), video.ts (binary data)");
  EXPECT_THAT(names(config), ElementsAre("UPPER.TXT", "e.py", "f.jsonl", "model.R", "t/g.txt"));
  EXPECT_THROW(list({at("s/video.ts")}), UserError);
  EXPECT_THAT(list({at("s/*")}), ElementsAre("UPPER.TXT", "e.py", "f.jsonl", "model.R"));
}

TEST_F(Inputs, ANamedFileIsTakenWhateverItsName) {
  EXPECT_THAT(list({at("c.bin"), at(".d.txt")}), ElementsAre(".d.txt", "c.bin"));
}

TEST_F(Inputs, Globs) {
  EXPECT_THAT(list({at("*.txt")}), ElementsAre("Z.txt", "a.txt"));
  EXPECT_THAT(list({at("?.[bm]*")}), ElementsAre("b.md", "c.bin"));
  EXPECT_THAT(list({at("**/*.txt")}), ElementsAre("Z.txt", "a.txt", "s/t/g.txt"));
  EXPECT_THAT(list({at("s/**")}), ElementsAre("e.py", "f.jsonl", "t/g.txt"));
  EXPECT_THAT(list({at("*/*.py")}), ElementsAre("s/e.py"));
  EXPECT_THROW(list({at("*.rs")}), UserError);
  EXPECT_THROW(list({at("absent/*.txt")}), UserError);
}

TEST_F(Inputs, AFileThatTwoEntriesMeanComesOnce) {
  EXPECT_THAT(list({at("a.txt"), at("*.txt"), at("s/../a.txt")}), ElementsAre("Z.txt", "a.txt"));
}

TEST_F(Inputs, TellsFormatsByName) {
  DataConfig config;
  config.text = {at("s")};
  const auto files = list_inputs(config).files;
  EXPECT_EQ(files[0].format, InputFormat::kText);
  EXPECT_EQ(files[1].format, InputFormat::kJsonLines);
  EXPECT_EQ(files[0].bytes, 6u);
}

TEST_F(Inputs, AListNamesRootAndRelativePath) {
  DataConfig config;
  const auto list_of = [&](const std::string& lines) {
    config.file_list = folder_.write("list", lines).string();
    return names(config);
  };
  const std::string root = folder_.path().string();
  EXPECT_THAT(list_of(root + "\ts/e.py\n\n" + root + "/s\tt/g.txt\n" + root + "\tc.bin"),
              ElementsAre("c.bin", "s/e.py", "t/g.txt"));
  for (const std::string& bad : {std::string("no tab\n"), root + "\t\n", root + "\ta\tb\n",
                                 root + "\t/etc/passwd\n", root + "\tabsent\n"}) {
    try {
      list_of(root + "\ta.txt\n" + bad);
      FAIL() << bad;
    } catch (const UserError& e) {
      EXPECT_THAT(e.place(), ::testing::EndsWith("list:2"));
    }
  }
  EXPECT_THROW(list_of("\n"), UserError);
  config.text = {at("a.txt")};
  EXPECT_THROW(list_of(root + "\ta.txt\n"), UserError) << "both are given";
}

}  // namespace
}  // namespace dovetail::data::inputs_test
