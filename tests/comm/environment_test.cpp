#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

#include "dovetail/base/error.h"
#include "dovetail/comm/group.h"

// The group of a job, as its environment describes it.
namespace dovetail::comm::environment_test {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(Connecting, EndsAtTheTimeout) {
  // The environment of a job whose other rank never comes.
  int probe = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{.sin_family = AF_INET, .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
  socklen_t length = sizeof address;
  ASSERT_EQ(::bind(probe, reinterpret_cast<sockaddr*>(&address), length), 0);
  ASSERT_EQ(::getsockname(probe, reinterpret_cast<sockaddr*>(&address), &length), 0);
  ::close(probe);
  const auto port = std::to_string(ntohs(address.sin_port));
  for (const auto& [name, value] : std::map<std::string, std::string>{{"RANK", "0"},
                                                                      {"WORLD_SIZE", "2"},
                                                                      {"LOCAL_WORLD_SIZE", "2"},
                                                                      {"MASTER_ADDR", "127.0.0.1"},
                                                                      {"MASTER_PORT", port}})
    ::setenv(name.c_str(), value.c_str(), 1);
  try {
    world_from_environment({.timeout_s = 0.5});
    ADD_FAILURE() << "connected to nobody";
  } catch (const CommError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("rank 0 of 2"), HasSubstr("0.5 s")));
  }
  for (const auto* name : {"RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"})
    ::unsetenv(name);
}

class Environment : public ::testing::Test {
 protected:
  void TearDown() override {
    for (const auto* name : kNames) ::unsetenv(name);
  }
  void SetUp() override { TearDown(); }
  static std::string error_with(const std::map<std::string, std::string>& variables,
                                const GroupOptions& options = {}) {
    for (const auto* name : kNames) ::unsetenv(name);
    for (const auto& [name, value] : variables) ::setenv(name.c_str(), value.c_str(), 1);
    try {
      world_from_environment(options);
    } catch (const UserError& error) {
      return error.what();
    }
    return "";
  }
  static constexpr const char* kNames[] = {"RANK",
                                           "WORLD_SIZE",
                                           "MASTER_ADDR",
                                           "MASTER_PORT",
                                           "TORCHELASTIC_RESTART_COUNT",
                                           "TORCHELASTIC_USE_AGENT_STORE",
                                           "LOCAL_WORLD_SIZE"};
};

TEST_F(Environment, WithoutRankOrWithOneRankThereIsNoNetwork) {
  EXPECT_EQ(error_with({}), "");
  EXPECT_EQ(error_with({{"WORLD_SIZE", "1"}}), "");
  EXPECT_EQ(error_with({{"RANK", "0"}, {"WORLD_SIZE", "1"}}), "");
  const auto world = world_from_environment();
  EXPECT_EQ(world->rank(), 0);
  EXPECT_EQ(world->size(), 1);
}

TEST_F(Environment, NamesTheVariableThatIsMissingOrWrong) {
  EXPECT_THAT(error_with({{"WORLD_SIZE", "2"}}), HasSubstr("but RANK is not set"));
  EXPECT_THAT(error_with({{"RANK", "0"}}), HasSubstr("but WORLD_SIZE is not set"));
  EXPECT_THAT(error_with({{"RANK", "0"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("but MASTER_ADDR is not set"));
  EXPECT_THAT(error_with({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}}),
              HasSubstr("but MASTER_PORT is not set"));
  EXPECT_THAT(error_with({{"RANK", "0"}, {"WORLD_SIZE", "two"}}), HasSubstr("WORLD_SIZE is 'two'"));
  EXPECT_THAT(error_with({{"RANK", "-1"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK is '-1'"));
  EXPECT_THAT(error_with({{"RANK", "2"}, {"WORLD_SIZE", "2"}}),
              HasSubstr("RANK is 2, but WORLD_SIZE is 2"));
  const std::map<std::string, std::string> good = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}};
  auto bad_port = good;
  bad_port["MASTER_PORT"] = "65536";
  EXPECT_THAT(error_with(bad_port), HasSubstr("MASTER_PORT is '65536'"));
  auto bad_restart = good;
  bad_restart["MASTER_PORT"] = "29500";
  bad_restart["TORCHELASTIC_RESTART_COUNT"] = "x";
  EXPECT_THAT(error_with(bad_restart), HasSubstr("TORCHELASTIC_RESTART_COUNT is 'x'"));
}

TEST_F(Environment, RefusesWhatItCannotDo) {
  const std::map<std::string, std::string> good = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "127.0.0.1"}, {"MASTER_PORT", "29500"}};
  EXPECT_THAT(error_with(good, {.timeout_s = 0}), HasSubstr("timeout_s"));
}

}  // namespace
}  // namespace dovetail::comm::environment_test
