#include "dovetail/base/file.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <utility>

#include "dovetail/base/error.h"
#include "tests/base/temporary_folder.h"

namespace dovetail::file_test {
namespace {

namespace fs = std::filesystem;
using test::TemporaryFolder;
using ::testing::HasSubstr;

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename().string());
  return names;
}

std::string message_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

TEST(ReadFile, ReturnsEveryByte) {
  const TemporaryFolder folder;
  for (const size_t size : {0, 1, 4095, 4096, 4097, 1'000'003}) {
    std::string content(size, '\0');
    for (size_t i = 0; i < size; ++i) content[i] = static_cast<char>(i * 31 % 256);
    std::ofstream(folder / "f", std::ios::binary) << content;
    EXPECT_EQ(read_file(folder / "f"), content) << size;
  }
}

TEST(ReadFile, ReadsFilesThatHaveNoSize) {
  EXPECT_THAT(read_file("/proc/self/status"), HasSubstr("VmRSS"));
  const TemporaryFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const std::string content(300'000, 'x');
  std::thread writer([&] { std::ofstream(folder / "pipe", std::ios::binary) << content; });
  EXPECT_EQ(read_file(folder / "pipe"), content);
  writer.join();
}

TEST(ReadFile, SaysWhyItCannot) {
  const TemporaryFolder folder;
  EXPECT_EQ(message_of([&] { read_file(folder / "none"); }),
            "cannot open '" + (folder / "none").string() + "': No such file or directory");
  EXPECT_THAT(message_of([&] { read_file(folder.path()); }), HasSubstr("Is a directory"));
}

TEST(AtomicFile, AppearsOnlyAtCommit) {
  const TemporaryFolder folder;
  const fs::path path = folder / "result.bin";
  AtomicFile file(path);
  file.write("half ");
  EXPECT_FALSE(fs::exists(path));
  const auto during = names_in(folder.path());
  ASSERT_EQ(during.size(), 1U);
  EXPECT_THAT(*during.begin(),
              ::testing::MatchesRegex("\\.result\\.bin\\.[0-9]+-[0-9]+\\.partial"));
  file.write("whole");
  EXPECT_EQ(file.bytes_written(), 10U);
  file.commit();
  EXPECT_EQ(read_file(path), "half whole");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"result.bin"});
}

TEST(AtomicFile, WithoutCommitLeavesWhatWasThere) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "f", "old");
  {
    AtomicFile(folder / "f").write("new");
  }
  EXPECT_EQ(read_file(folder / "f"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"f"});
  write_file_atomically(folder / "f", "new");
  EXPECT_EQ(read_file(folder / "f"), "new");
}

TEST(AtomicFile, TwoWritersOfOneNameDoNotMix) {
  const TemporaryFolder folder;
  AtomicFile first(folder / "f"), second(folder / "f");
  first.write("first");
  second.write("second");
  first.commit();
  EXPECT_EQ(read_file(folder / "f"), "first");
  second.commit();
  EXPECT_EQ(read_file(folder / "f"), "second");
}

TEST(AtomicFile, IsNotUsedAfterCommit) {
  const TemporaryFolder folder;
  AtomicFile file(folder / "f");
  file.commit();
  EXPECT_EQ(read_file(folder / "f"), "");
  EXPECT_THROW(file.write("more"), InternalError);
  EXPECT_THROW(file.commit(), InternalError);
}

TEST(AtomicFile, SaysWhyItCannot) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of([&] { AtomicFile(folder / "none/f"); }),
              HasSubstr("No such file or directory"));
  fs::create_directory(folder / "taken");
  std::ofstream(folder / "taken/inside") << "x";
  EXPECT_THAT(message_of([&] { write_file_atomically(folder / "taken", "x"); }),
              HasSubstr("directory"));
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"taken"});
}

// A limit on file sizes makes write(2) first short and then fail, as a full disk does.
TEST(AtomicFile, ReportsAWriteThatIsCutShort) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "f", "old");
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  auto* const handler = ::signal(SIGXFSZ, SIG_IGN);
  const struct rlimit small{100'000, before.rlim_max};
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message =
      message_of([&] { write_file_atomically(folder / "f", std::string(300'000, 'x')); });
  ::setrlimit(RLIMIT_FSIZE, &before);
  ::signal(SIGXFSZ, handler);
  EXPECT_EQ(message, "cannot write '" + (folder / "f").string() + "': File too large");
  EXPECT_EQ(read_file(folder / "f"), "old");
  EXPECT_EQ(names_in(folder.path()), std::set<std::string>{"f"});
}

// In a child with mounts of its own: a file system of 64 kB.
TEST(AtomicFile, AFullDiskLosesNothing) {
  const TemporaryFolder folder;
  enum { kFine = 0, kNoMount = 77, kWrong = 1 };
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 ||
        ::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount("none", folder.path().c_str(), "tmpfs", 0, "size=64k") != 0) {
      ::_exit(kNoMount);
    }
    write_file_atomically(folder / "f", "old");
    const std::string message =
        message_of([&] { write_file_atomically(folder / "f", std::string(1'000'000, 'x')); });
    const bool fine = message.find("No space left on device") != message.npos &&
                      read_file(folder / "f") == "old" && names_in(folder.path()).size() == 1;
    ::_exit(fine ? kFine : kWrong);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kNoMount) GTEST_SKIP() << "this process may not mount a file system";
  EXPECT_EQ(WEXITSTATUS(status), kFine);
}

TEST(RemoveLeftovers, TakesPartialFilesAndFoldersOnly) {
  const TemporaryFolder folder;
  std::ofstream(folder / ".a.17-0.partial") << "x";
  fs::create_directories(folder / ".step.18.partial" / "inner");
  std::ofstream(folder / "a") << "x";
  std::ofstream(folder / ".hidden") << "x";
  std::ofstream(folder / "not.partial") << "x";
  fs::create_directories(folder / "deeper");
  std::ofstream(folder / "deeper/.b.partial") << "x";
  EXPECT_EQ(remove_leftovers(folder.path()), 2);
  EXPECT_EQ(names_in(folder.path()),
            (std::set<std::string>{"a", ".hidden", "not.partial", "deeper"}));
  EXPECT_TRUE(fs::exists(folder / "deeper/.b.partial"));
  EXPECT_EQ(remove_leftovers(folder.path()), 0);
  EXPECT_EQ(remove_leftovers(folder / "none"), 0);
}

TEST(RemoveLeftovers, ClearsWhatAKilledWriterLeft) {
  const TemporaryFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    AtomicFile file(folder / "f");
    file.write("half");
    ::kill(::getpid(), SIGKILL);
  }
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  EXPECT_EQ(names_in(folder.path()).size(), 1U);
  EXPECT_EQ(remove_leftovers(folder.path()), 1);
  EXPECT_TRUE(names_in(folder.path()).empty());
}

TEST(MappedFile, ShowsTheBytes) {
  const TemporaryFolder folder;
  write_file_atomically(folder / "f", "mapped bytes");
  write_file_atomically(folder / "empty", "");
  MappedFile first(folder / "f");
  const auto text = [](const MappedFile& file) {
    return std::string(reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size());
  };
  EXPECT_EQ(text(first), "mapped bytes");
  MappedFile second(std::move(first));
  EXPECT_EQ(text(second), "mapped bytes");
  MappedFile third;
  EXPECT_TRUE(third.bytes().empty());
  third = std::move(second);
  EXPECT_EQ(text(third), "mapped bytes");
  EXPECT_TRUE(MappedFile(folder / "empty").bytes().empty());
}

TEST(MappedFile, SaysWhyItCannot) {
  const TemporaryFolder folder;
  EXPECT_THAT(message_of([&] { MappedFile(folder / "none"); }),
              HasSubstr("No such file or directory"));
  EXPECT_THAT(message_of([&] { MappedFile(folder.path()); }), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace dovetail::file_test
