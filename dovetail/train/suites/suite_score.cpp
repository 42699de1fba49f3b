#include "dovetail/train/suites/suite_score.h"

#include <cmath>

namespace dovetail::train {
namespace {

struct Figure {
  double accuracy = 0, standard_error = 0;
  int64_t items = 0;
};

Figure combine(Suite::Weights weights, const std::vector<Figure>& figures) {
  double mean = 0, weight_sum = 0, variance = 0, freedom = 0;
  for (const auto& [accuracy, error, items] : figures) {
    const auto n = static_cast<double>(items);
    const double weight = weights == Suite::Weights::kItems ? n : 1;
    mean += weight * accuracy;
    weight_sum += weight;
    freedom += n - 1;
    variance += error * error * (weights == Suite::Weights::kItems ? n * (n - 1) : 1);
  }
  Figure combined{.accuracy = mean / weight_sum};
  if (weights == Suite::Weights::kEqual)
    combined.standard_error = std::sqrt(variance) / weight_sum;
  else if (freedom > 0)
    combined.standard_error = std::sqrt(variance / freedom / weight_sum);
  return combined;
}

}  // namespace

SuiteScore combine_results(Suite::Weights weights, const std::vector<const SuiteTask*>& tasks,
                           const std::vector<MultipleChoiceResult>& results) {
  SuiteScore score;
  std::vector<Figure> plain, normalized;
  for (size_t i = 0; i < results.size(); ++i) {
    const MultipleChoiceResult& r = results[i];
    score.items += r.items;
    plain.push_back({r.accuracy, r.standard_error, r.items});
    normalized.push_back(tasks[i]->normalized
                             ? Figure{r.accuracy_normalized, r.standard_error_normalized, r.items}
                             : plain.back());
  }
  const Figure mean = combine(weights, plain), mean_normalized = combine(weights, normalized);
  score.accuracy = mean.accuracy;
  score.standard_error = mean.standard_error;
  score.accuracy_normalized = mean_normalized.accuracy;
  score.standard_error_normalized = mean_normalized.standard_error;
  return score;
}

}  // namespace dovetail::train
