#pragma once

#include <cstdint>
#include <vector>

#include "dovetail/train/gpt/multiple_choice.h"
#include "dovetail/train/suites/task.h"

namespace dovetail::train {

/// One figure for several tasks.
struct SuiteScore {
  int64_t items = 0;
  double accuracy = 0, standard_error = 0;
  /// As above, with the normalised accuracy of the tasks that have SuiteTask::normalized.
  double accuracy_normalized = 0, standard_error_normalized = 0;
};

/// Returns the weighted mean of results of `tasks`, both of the same size, which is positive.
///
/// kItems: the accuracy over all items, with the standard error of pooled variances. kEqual: the
/// mean of the accuracies, with the standard error sqrt(sum of squared standard errors) / tasks.
/// Both are the aggregates of lm-evaluation-harness's groups, with and without weight_by_size.
SuiteScore combine_results(Suite::Weights weights, const std::vector<const SuiteTask*>& tasks,
                           const std::vector<MultipleChoiceResult>& results);

}  // namespace dovetail::train
