// Speeds on disk.
#include "dovetail/jobs/speed_store.h"

#include <gtest/gtest.h>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::jobs::speed_store_test {
namespace {

SpeedHistory history_of(double row_s) {
  SpeedHistory history;
  for (const int64_t rows : {100, 500, 900})
    history.add(rows, 0.01 + row_s * static_cast<double>(rows));
  return history;
}

TEST(SpeedStore, KeepsHistoriesByKeyFromOneToTheNext) {
  const test::TemporaryFolder folder;
  {
    SpeedStore store(folder / "speeds");
    EXPECT_FALSE(store.find("a").speed());
    store.put("a", history_of(1e-4));
    store.put("b", history_of(2e-4));
    store.put("empty", {});
    store.save();
  }
  const SpeedStore again(folder / "speeds");
  EXPECT_EQ(again.find("a").size(), 3U);
  EXPECT_EQ(again.find("a").speed()->row_s, history_of(1e-4).speed()->row_s);
  EXPECT_EQ(again.find("b").speed()->start_s, history_of(2e-4).speed()->start_s);
  EXPECT_FALSE(again.find("empty").speed());
  EXPECT_FALSE(again.find("c").speed());
}

TEST(SpeedStore, RefusesAFileThatIsNoneOfItsOwn) {
  const test::TemporaryFolder folder;
  SpeedStore store(folder.path());
  store.put("a", history_of(1e-4));
  store.save();
  const std::string good = read_file(store.file());
  const auto refuses = [&](const std::string& content) {
    write_file_atomically(store.file(), content);
    EXPECT_THROW(SpeedStore(folder.path()), UserError) << content;
  };
  for (const char* content : {"", "{}", "[]", "{\"version\": 1}", "3"}) refuses(content);
  const auto changed = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    const size_t at = text.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    refuses(text.replace(at, from.size(), to));
  };
  changed("\"version\": 1", "\"version\": 2");
  changed("\"cores\": ", "\"cores\": 7");
  changed("100.0", "-100.0");
  changed("100.0", "\"many\"");
  write_file_atomically(store.file(), good);
  EXPECT_TRUE(SpeedStore(folder.path()).find("a").speed());
}

TEST(SpeedStore, KeepsNothingWithoutAFolder) {
  SpeedStore store({});
  store.put("a", history_of(1e-4));
  store.save();
  EXPECT_TRUE(store.file().empty());
  EXPECT_FALSE(store.find("a").speed());
}

}  // namespace
}  // namespace dovetail::jobs::speed_store_test
