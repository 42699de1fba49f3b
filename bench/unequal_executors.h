#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "dovetail/hybrid/runtime.h"

namespace dovetail::hybrid {

/// Executors of one thread each. Those of `slow` compute every shard `factor` times, as it is then; it must outlive
/// them.
inline std::shared_ptr<Runtime> unequal_executors(const std::vector<bool>& slow, const std::atomic<int64_t>& factor) {
  return std::make_shared<Runtime>(
      std::vector<ExecutorSpec>(slow.size()),
      RuntimeOptions{.around = [slow, &factor](size_t executor, int64_t, const auto& work) {
        std::vector<ShardResult> results;
        results.push_back(work());
        for (int64_t i = 1; slow[executor] && i < factor; ++i) results[0] = work();
        return results;
      }});
}

}  // namespace dovetail::hybrid
