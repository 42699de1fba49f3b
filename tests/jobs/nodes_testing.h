#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "dovetail/jobs/nodes.h"

/// Runs nodes as threads of this process, connected by Gloo.
namespace dovetail::jobs::testing {

using Node = std::function<void(int node, const std::shared_ptr<comm::Group>& group)>;

/// Runs each node on its own thread. Returns the error texts of all nodes, "" for success.
inline std::vector<std::string> errors_of(int nodes, const Node& node) {
  const auto groups = comm::local_groups(nodes, {.timeout_s = 30});
  std::vector<std::string> errors(groups.size());
  std::vector<std::thread> threads;
  for (int r = 0; r < nodes; ++r)
    threads.emplace_back([&, r] {
      const auto place = static_cast<size_t>(r);
      try {
        node(r, groups[place]);
      } catch (const std::exception& error) {
        errors[place] = error.what();
      }
    });
  for (std::thread& thread : threads) thread.join();
  return errors;
}

inline void run_nodes(int nodes, const Node& node) {
  const auto errors = errors_of(nodes, node);
  for (size_t r = 0; r < errors.size(); ++r)
    EXPECT_EQ(errors[r], "") << "node " << r << " of " << nodes;
}

}  // namespace dovetail::jobs::testing
