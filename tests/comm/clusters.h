#pragma once

#include "dovetail/comm/cost_model.h"

namespace dovetail {

/// Cost model of nodes whose internal links are ten times as fast as links between nodes.
inline comm::CostModel two_classes(int ranks_per_node) {
  return {.ranks_per_node = ranks_per_node,
          .inside = {.latency_s = 2e-6, .bytes_per_s = 1e11},
          .between = comm::Link{.latency_s = 1e-5, .bytes_per_s = 1e10},
          .copy_bytes_per_s = 1e12,
          .call_s = 1e-6,
          .flops = 1e13,
          .source = "a test"};
}

}  // namespace dovetail
