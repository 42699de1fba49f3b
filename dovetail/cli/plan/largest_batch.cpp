#include "dovetail/cli/plan/largest_batch.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"
#include "dovetail/cli/parse/output.h"
#include "dovetail/cli/plan/plan_config.h"
#include "dovetail/plan/model/budget.h"
#include "dovetail/plan/solve/placed.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/trial_step.h"

namespace dovetail::cli {
namespace {

constexpr int64_t kMostSamples = int64_t{1} << 40;
constexpr int64_t kFewestRecorded = 2;  // a step of one sample may have other operations
constexpr int kRecordedSteps = 3;       // the first as it is, then two that must agree

/// Bytes that a step needs.
struct Need {
  int64_t kept_bytes = 0;    ///< bytes if all tensors are kept
  int64_t beside_bytes = 0;  ///< bytes in addition to the step: a checkpoint that is being written
  int64_t floor_bytes = 0, budget_bytes = 0;  ///< both 0 without a budget

  int64_t total() const { return (budget_bytes > 0 ? budget_bytes : kept_bytes) + beside_bytes; }
  bool fits(int64_t available_bytes) const {
    return total() <= available_bytes && floor_bytes <= budget_bytes;
  }
};

/// Bytes that a run's step needs, for any number of samples at once.
class Needs {
 public:
  Needs(const train::RunConfig& config, std::shared_ptr<comm::Group> group)
      : group_(std::move(group)), run_(train::resolve_trial(config, *group_)), key_(run_) {
    budget_ = config.memory.budget;
    options_ = plan::PlannedStep::solve_options(
        train::planned_step_options(config.memory, run_.device), run_.device);
    why_estimated_ = why_it_is_not_recorded();
    if (why_estimated_.empty()) record();
  }

  const train::ResolvedRun& run() const { return run_; }
  const SampleKey& key() const { return key_; }
  int64_t available_bytes() const { return static_cast<int64_t>(run_.available_bytes); }
  /// Returns the reason for an estimate; empty if the step was recorded.
  const std::string& why_estimated() const { return why_estimated_; }

  /// Returns the bytes that a step of `samples` needs. `floor_bytes` is at most the budget if the
  /// step fits, and the smallest known floor only if `exact`.
  Need of(int64_t samples, bool exact = false) const {
    if (!a_) {
      const models::MemoryEstimate estimate = estimate_of(samples);
      return {.kept_bytes = estimate.total() - estimate.checkpoint,
              .beside_bytes = estimate.checkpoint};
    }
    const plan::Graph graph = plan::with_samples(*a_, *b_, samples);
    Need need{.kept_bytes = plan::keep_all_bytes(graph), .beside_bytes = run_.memory.checkpoint};
    if (budget_.empty()) return need;
    need.budget_bytes = plan::parse_budget(budget_, need.kept_bytes);
    need.floor_bytes = plan::floor_for_budget(graph, options_, need.budget_bytes).bytes;
    if (exact && need.floor_bytes <= need.budget_bytes)
      need.floor_bytes = plan::placed_floor_of(graph, options_).bytes;
    return need;
  }

 private:
  models::MemoryEstimate estimate_of(int64_t samples) const {
    train::ResolvedRun run = run_;
    run.micro_batch = samples;
    if (!key_.accumulates()) run.maximum_samples = samples;
    run.config.train.batch = run.maximum_samples;
    train::resolve_precision_and_size(run, *group_, run_.precision.name);
    return run.memory;
  }

  std::string why_it_is_not_recorded() const {
    if (run_.config.kind() == train::RunKind::kRecommender)
      return fmt::format(
          "a step of recommender.model = \"{}\" is recorded on its own rows, in training alone",
          run_.config.recommender.model);
    try {
      train::RunConfig planned = run_.config;
      planned.memory.budget = "1x";
      train::check_memory(planned);
      train::resolve_trial(planned, *group_);
    } catch (const UserError& error) {
      return error.what();
    }
    return estimate_of(1).total() > available_bytes() ? "not even one sample is estimated to fit"
                                                      : "";
  }

  /// Records the step with the requested samples and with half of them. If these are not estimated
  /// to fit easily, it takes fewer.
  void record() {
    int64_t samples = std::max<int64_t>(key_.asked(), kFewestRecorded * 2);
    while (samples > kFewestRecorded * 2 && estimate_of(samples).total() > available_bytes() / 2)
      samples /= 2;
    const int64_t fewer = samples / 2;
    a_ = plan::Sampled{fewer, record_with(run_, group_, key_, fewer)};
    b_ = plan::Sampled{samples, record_with(run_, group_, key_, samples)};
  }

  std::shared_ptr<comm::Group> group_;
  train::ResolvedRun run_;
  SampleKey key_;
  std::string budget_;
  plan::SolveOptions options_;
  std::string why_estimated_;
  std::optional<plan::Sampled> a_, b_;
};

std::string in_words(const Need& need, const Needs& needs, int64_t largest) {
  const int64_t available = needs.available_bytes();
  std::string text =
      fmt::format("{} ({}): a step with {} = {} takes {} with everything kept",
                  need.fits(available) ? "fits" : "does not fit",
                  needs.why_estimated().empty() ? "recorded" : "estimated", needs.key().name(),
                  needs.key().asked(), plan::binary_size(need.kept_bytes));
  if (need.beside_bytes > 0)
    text += fmt::format(", and {} beside it while a checkpoint is written",
                        plan::binary_size(need.beside_bytes));
  text += fmt::format("; {} is available\n", plan::binary_size(available));
  if (need.budget_bytes > 0)
    text += fmt::format("the budget is {}, the floor {}\n", plan::binary_size(need.budget_bytes),
                        plan::binary_size(need.floor_bytes));
  if (!needs.why_estimated().empty()) text += fmt::format("estimated: {}\n", needs.why_estimated());
  return text + (largest > 0
                     ? fmt::format("the largest {} that fits is {}\n", needs.key().name(), largest)
                     : fmt::format("no {} fits\n", needs.key().name()));
}

}  // namespace

SampleKey::SampleKey(const train::ResolvedRun& run)
    : accumulates_(run.micro_batch < run.maximum_samples), asked_(run.micro_batch) {}

plan::Graph record_with(const train::ResolvedRun& run, const std::shared_ptr<comm::Group>& group,
                        const SampleKey& key, int64_t samples) {
  // Two micro-batches represent any number of them: all others allocate and free like the second.
  const auto trial =
      train::make_trial(run, group, key.accumulates() ? 2 * samples : samples, samples);
  plan::PlannedStep::Options options = train::planned_step_options(run.config.memory, run.device);
  options.budget = "1x";
  trial->plan_memory(options);
  for (int i = 0; i < kRecordedSteps; ++i) trial->run();
  return trial->memory_plan()->graph();
}

int64_t largest_that(const std::function<bool(int64_t)>& fits) {
  int64_t good = 0, bad = 1;
  while (bad <= kMostSamples && fits(bad)) good = std::exchange(bad, 2 * bad);
  while (bad - good > 1) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(middle) ? good : bad) = middle;
  }
  return good;
}

std::string help_below_floor(const train::ResolvedRun& run,
                             const std::shared_ptr<comm::Group>& group, const plan::Graph& graph,
                             const std::string& budget, const plan::SolveOptions& options,
                             const std::string& config) {
  const SampleKey key(run);
  const std::string search =
      fmt::format("`dovetail plan {} --fits` searches for the largest that fits", config);
  if (key.asked() == 1) return "raise the budget: there is but one sample at once";
  const int64_t other = key.asked() / 2 >= kFewestRecorded ? key.asked() / 2 : 2 * key.asked();
  const plan::Sampled a{other, record_with(run, group, key, other)}, b{key.asked(), graph};
  const int64_t largest = largest_that([&](int64_t samples) {
    const plan::Graph at = plan::with_samples(a, b, samples);
    const int64_t budget_bytes = plan::parse_budget(budget, plan::keep_all_bytes(at));
    return plan::floor_for_budget(at, options, budget_bytes).bytes <= budget_bytes;
  });
  if (largest == 0 || largest >= key.asked())
    return fmt::format("raise the budget: no {} is small enough for it", key.name());
  return fmt::format("lower {} from {} to {}, or raise the budget; {}", key.name(), key.asked(),
                     largest, search);
}

bool log_whether_it_fits(const PlanRequest& request) {
  const train::RunConfig config = config_of(request);
  const auto group = comm::world_from_environment({.timeout_s = config.comm.timeout_s});
  const Needs needs(config, group);
  const int64_t available = needs.available_bytes();
  const Need need = needs.of(needs.key().asked(), /*exact=*/true);
  const int64_t largest =
      largest_that([&](int64_t samples) { return needs.of(samples).fits(available); });
  const bool fits = need.fits(available);
  if (request.json) {
    nlohmann::ordered_json json = {
        {"fits", fits},
        {"source", needs.why_estimated().empty() ? "recorded" : "estimated"},
        {"key", needs.key().name()},
        {"asked", needs.key().asked()},
        {"largest", largest},
        {"keep_all_bytes", need.kept_bytes},
        {"beside_bytes", need.beside_bytes},
        {"available_bytes", available}};
    if (need.budget_bytes > 0)
      json.update({{"budget_bytes", need.budget_bytes}, {"floor_bytes", need.floor_bytes}});
    if (!needs.why_estimated().empty()) json["why_estimated"] = needs.why_estimated();
    print_json(json);
  } else {
    print(in_words(need, needs, largest));
  }
  return fits;
}

}  // namespace dovetail::cli
