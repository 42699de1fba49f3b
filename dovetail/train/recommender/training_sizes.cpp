#include <algorithm>
#include <nlohmann/json.hpp>

#include "dovetail/base/gpu.h"
#include "dovetail/base/machine.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/collective.h"
#include "dovetail/train/recommender/training.h"

namespace dovetail::train {
namespace {

constexpr int64_t kTimedSteps = 4;

/// Returns the minimum over ranks. All ranks call this together.
double minimum_over_ranks(comm::Group& group, double value) {
  std::vector<double> values(static_cast<size_t>(group.size()), 0);
  values[static_cast<size_t>(group.rank())] = value;
  return std::ranges::min(sum_over_ranks(group, values));
}

}  // namespace

double RecommenderTraining::time_steps(int64_t micro_batch) {
  sizes_.micro_batch = micro_batch;
  const int64_t begin = state_.step, count = std::min(kTimedSteps, total_steps() - begin);
  if (timed_step_ < begin || timed_step_ + count > total_steps()) timed_step_ = begin;
  const auto gpu_is_done = [this] {
    if (run_.device.is_cuda()) synchronize_gpu();
  };
  gpu_is_done();
  const double begin_s = now_seconds();
  for (int64_t i = 0; i < count; ++i) {
    StepRows now = take_step(timed_step_++);
    step_->pass(now, *tables_, start_after(now.step, i + 1 == count));
    tables_->update(now.tables);
  }
  gpu_is_done();
  const double step_s = (now_seconds() - begin_s) / static_cast<double>(count);
  return sum_over_ranks(*group_, {step_s}).front() / group_->size();
}

TableSizes RecommenderTraining::choose_sizes(nlohmann::ordered_json& record) {
  const bool memory = config().embedding.memory_bytes == EmbeddingSection::kAuto;
  const bool cuts = config().embedding.groups == EmbeddingSection::kAuto ||
                    config().train.micro_batch == TrainSection::kAuto;
  const embedding::PackSpec& spec = lookups_->pack();
  std::vector<TableSizes> candidates = candidate_sizes(run_, std::ssize(spec.tables));
  if (!memory && !cuts) return candidates.front();  // the config leaves nothing open
  const bool gpu = run_.device.is_cuda();
  const int sharing = gpu ? (run_.local_ranks + count_gpus() - 1) / count_gpus() : run_.local_ranks;
  const double available = minimum_over_ranks(
      *group_, static_cast<double>(run_.available_bytes) / static_cast<double>(sharing));
  const auto rows =
      static_cast<double>(maximum_table_bytes(spec, plan_for(candidates.front().groups)));
  if (memory && rows > available / 2)
    for (TableSizes& sizes : candidates) sizes.memory_bytes = static_cast<int64_t>(available / 4);
  if (complete() || (candidates.size() == 1 && !memory)) return candidates.front();

  const std::vector<double> step_s = measure_steps(candidates, [&](const TableSizes& sizes) {
    if (!tables_ || sizes.groups != sizes_.groups) build_tables(sizes);
    return time_steps(sizes.micro_batch);
  });
  TableSizes chosen = candidates[simplest_of_fastest(step_s)];
  if (memory) {
    const double tables_then =
        chosen.memory_bytes > 0 ? static_cast<double>(chosen.memory_bytes) : rows;
    const uint64_t peak = gpu ? gpu_memory().peak_bytes : peak_resident_bytes();
    const double took = static_cast<double>(peak) - memory_before_ - tables_then;
    chosen.memory_bytes =
        memory_for_rows(available, -minimum_over_ranks(*group_, -std::max(0.0, took)), rows);
  }
  record = sizes_json(chosen, candidates, step_s);
  return chosen;
}

}  // namespace dovetail::train
