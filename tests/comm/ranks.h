#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/comm/group.h"

namespace dovetail {

/// Runs `body` on every rank of a local group, each on its own thread. The thread owns its group
/// and destroys it when the body returns or throws, like a process that ends. Returns the error
/// text of each rank, "" for success.
inline std::vector<std::string> run_ranks(
    int size, const std::function<void(std::shared_ptr<comm::Group>)>& body,
    const comm::GroupOptions& options = {}) {
  auto groups = comm::local_groups(size, options);
  std::vector<std::string> errors(groups.size());
  std::vector<std::thread> threads;
  for (size_t r = 0; r < groups.size(); ++r)
    threads.emplace_back([&, r, group = std::move(groups[r])]() mutable {
      try {
        body(std::move(group));
      } catch (const std::exception& error) {
        errors[r] = error.what();
        if (errors[r].empty()) errors[r] = "an error without a text";
      }
    });
  for (auto& thread : threads) thread.join();
  return errors;
}

inline void expect_all_succeed(int size,
                               const std::function<void(std::shared_ptr<comm::Group>)>& body) {
  for (const auto& error : run_ranks(size, body)) EXPECT_EQ(error, "");
}

}  // namespace dovetail
