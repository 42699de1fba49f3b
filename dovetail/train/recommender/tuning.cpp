#include "dovetail/train/recommender/tuning.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "dovetail/base/error.h"
#include "dovetail/base/machine.h"

namespace dovetail::train {
namespace {

constexpr int kRounds = 3;
constexpr int64_t kParts = 8;
constexpr double kLeftOut = 1.2, kNoise = 1.03;
constexpr double kUsable = 0.9;  ///< usable fraction of the available memory

std::vector<int64_t> groups_to_try(int64_t asked, int64_t tables) {
  if (asked != EmbeddingSection::kAuto) return {asked};
  std::vector<int64_t> found = {1};
  for (int64_t groups = 2; groups <= std::min<int64_t>(4, tables); groups *= 2)
    found.push_back(groups);
  return found;
}

bool fits(const ResolvedRun& run, int64_t micro_batch) {
  models::MemoryEstimate estimate = run.memory;
  estimate.activations =
      static_cast<int64_t>(static_cast<double>(estimate.activations) /
                           static_cast<double>(run.micro_batch) * static_cast<double>(micro_batch));
  return static_cast<double>(estimate.total()) * run.local_ranks <=
         static_cast<double>(run.available_bytes);
}

std::vector<int64_t> micro_batches_to_try(const ResolvedRun& run) {
  if (run.config.train.micro_batch != TrainSection::kAuto) return {run.micro_batch};
  const int64_t grain = run.config.recommender.grain, least = run.micro_batch;
  std::vector<int64_t> found;
  for (int64_t parts = 1, size = 0; size != least && (parts <= kParts || found.empty());
       parts *= 2) {
    const int64_t part = (run.maximum_samples + parts - 1) / parts,
                  whole_grains = (part + grain - 1) / grain * grain;
    size = std::min(whole_grains, run.maximum_samples);
    if (size == least || fits(run, size)) found.push_back(size);
  }
  return found;
}

}  // namespace

std::vector<TableSizes> candidate_sizes(const ResolvedRun& run, int64_t tables) {
  std::vector<TableSizes> found;
  const int64_t memory = std::max<int64_t>(0, run.config.embedding.memory_bytes);
  for (const int64_t groups : groups_to_try(run.config.embedding.groups, tables))
    for (const int64_t micro_batch : micro_batches_to_try(run))
      found.push_back({.groups = groups, .micro_batch = micro_batch, .memory_bytes = memory});
  return found;
}

std::vector<double> measure_steps(const std::vector<TableSizes>& candidates,
                                  const std::function<double(const TableSizes&)>& run_steps) {
  std::vector<double> step_s(candidates.size(), std::numeric_limits<double>::infinity());
  double best_s = step_s.front();
  for (size_t first = 0, end = 0; first < candidates.size(); first = end) {
    while (end < candidates.size() && candidates[end].groups == candidates[first].groups) ++end;
    for (int round = 0; round < kRounds; ++round) {
      for (size_t i = first; i < end; ++i) {
        if (round > 0 && step_s[i] > kLeftOut * best_s) continue;
        step_s[i] = std::min(step_s[i], run_steps(candidates[i]));
        best_s = std::min(best_s, step_s[i]);
      }
    }
  }
  return step_s;
}

size_t simplest_of_fastest(const std::vector<double>& step_s) {
  const double best_s = *std::ranges::min_element(step_s);
  return static_cast<size_t>(
      std::ranges::find_if(step_s, [&](double s) { return s <= kNoise * best_s; }) -
      step_s.begin());
}

int64_t memory_for_rows(double available_bytes, double others_bytes, double table_bytes) {
  const double left = kUsable * available_bytes - others_bytes;
  if (table_bytes <= left) return 0;
  user_check(
      left > 0,
      "embedding.memory_bytes = \"auto\": no memory is left for rows: of {} for this rank, all "
      "else takes {}. Lower train.batch or rows.cache_bytes, or use a machine with more memory",
      format_bytes(available_bytes), format_bytes(others_bytes));
  return static_cast<int64_t>(left);
}

int64_t maximum_table_bytes(const embedding::PackSpec& spec,
                            const embedding::TablePlacement& plan) {
  int64_t most = 0;
  for (int64_t rank = 0; rank < plan.ranks; ++rank) {
    int64_t bytes = 0;
    for (const embedding::PlacedPack& pack : plan.packs)
      bytes += embedding::bytes_on(spec, plan, pack, rank);
    most = std::max(most, bytes);
  }
  return most;
}

nlohmann::ordered_json sizes_json(const TableSizes& sizes,
                                  const std::vector<TableSizes>& candidates,
                                  const std::vector<double>& step_s) {
  auto measured = nlohmann::ordered_json::array();
  for (size_t i = 0; i < step_s.size(); ++i)
    measured.push_back({{"groups", candidates[i].groups},
                        {"micro_batch", candidates[i].micro_batch},
                        {"step_ms", 1e3 * step_s[i]}});
  return {{"groups", sizes.groups},
          {"micro_batch", sizes.micro_batch},
          {"memory_bytes", sizes.memory_bytes},
          {"measured", std::move(measured)}};
}

std::string sizes_line(const nlohmann::ordered_json& record) {
  const auto& measured = record["measured"];
  const auto chosen = std::ranges::find_if(measured, [&](const auto& candidate) {
    return candidate["groups"] == record["groups"] &&
           candidate["micro_batch"] == record["micro_batch"];
  });
  const auto memory = record["memory_bytes"].get<double>();
  return fmt::format(
      "auto: embedding.groups = {}, train.micro_batch = {}, {} in memory; {:.1f} ms a step, {:.1f} "
      "with {} and {} (of {} tried)",
      record["groups"].get<int64_t>(), record["micro_batch"].get<int64_t>(),
      memory > 0 ? format_bytes(memory) + " of rows" : "all rows",
      (*chosen)["step_ms"].get<double>(), measured[0]["step_ms"].get<double>(),
      measured[0]["groups"].get<int64_t>(), measured[0]["micro_batch"].get<int64_t>(),
      measured.size());
}

}  // namespace dovetail::train
