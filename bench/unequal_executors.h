#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <atomic>
#include <memory>
#include <vector>

#include "dovetail/jobs/runtime.h"

/// Common code of benchmarks with devices of unequal speed.
namespace dovetail::fit {

/// Returns executors of one thread each, on processors from `first` on. Executors marked in `slow`
/// compute every shard `factor` times. They read the current value of `factor`, which must outlive
/// them.
inline std::shared_ptr<jobs::Runtime> unequal_executors(const std::vector<bool>& slow,
                                                        const std::atomic<int64_t>& factor,
                                                        int64_t first = 0) {
  return std::make_shared<jobs::Runtime>(
      std::vector<jobs::ExecutorSpec>(slow.size()),
      jobs::RuntimeOptions{
          .first_processor = first,
          .around = [slow, &factor](size_t executor, const jobs::Block&, const auto& work) {
            std::vector<jobs::ShardResult> results;
            results.push_back(work());
            for (int64_t i = 1; slow[executor] && i < factor; ++i) results[0] = work();
            return results;
          }});
}

/// Returns rows (N, columns) around `clouds` centres, in overlapping normal clouds.
inline at::Tensor rows_in_clouds(int64_t rows, int64_t columns, int64_t clouds, uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const at::Tensor points = at::randn({clouds, columns}, generator);
  at::Tensor x = at::randn({rows, columns}, generator);
  return x.add_(points.index_select(0, at::randint(clouds, {rows}, generator)));
}

}  // namespace dovetail::fit
