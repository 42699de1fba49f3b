#include "dovetail/train/resolve/out_of_memory.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/base/machine.h"
#include "dovetail/train/resolve/resolve.h"

namespace dovetail::train {
namespace {

std::string bytes_text(uint64_t bytes) { return format_bytes(static_cast<double>(bytes)); }

/// Returns the largest micro-batch below the run's whose estimated step takes at most `bytes`. 0:
/// not even one sample fits.
int64_t largest_micro_batch(const ResolvedRun& run, uint64_t bytes) {
  int64_t fits = 0, too_many = run.micro_batch;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    const auto needed = static_cast<uint64_t>(memory_with(run, middle).of_step());
    (needed <= bytes ? fits : too_many) = middle;
  }
  return fits;
}

std::string help_for(const ResolvedRun& run, uint64_t usable_bytes) {
  std::vector<std::string> ways;
  if (const int64_t fits = largest_micro_batch(run, usable_bytes); fits > 0)
    ways.push_back(
        fmt::format("train.micro_batch = {}, the largest that is estimated to fit", fits));
  if (!run.config.train.checkpoint_activations)
    ways.emplace_back("train.checkpoint_activations = true");
  if (run.memory_options.distributed && !run.config.parallel.shards())
    ways.emplace_back("parallel.shard = \"gradients\"");
  if (ways.empty()) return "train a smaller model, or use a GPU with more memory";
  return fmt::format("set {}", fmt::join(ways, ", or "));
}

std::string help_for_recommender(const EmbeddingSection& embedding) {
  return embedding.memory_bytes == 0
             ? "keep a part of the rows there: embedding.memory_bytes = \"auto\"; or lower "
               "train.batch"
             : "lower embedding.memory_bytes or train.batch";
}

}  // namespace

UserError out_of_memory(const ResolvedRun& run, const GpuMemory& now) {
  const uint64_t ours_bytes = now.allocated_bytes;
  const uint64_t usable_bytes = std::min(run.available_bytes, now.total_bytes);
  const uint64_t others_bytes = now.total_bytes - usable_bytes;
  std::string message =
      fmt::format("the memory of {} is full: {} in all, {} used by this run", run.device.str(),
                  bytes_text(now.total_bytes), bytes_text(ours_bytes));
  if (run.config.kind() != RunKind::kGpt)
    return UserError(message, run.config.kind() == RunKind::kRecommender
                                  ? help_for_recommender(run.config.embedding)
                                  : "lower train.micro_batch or train.batch");
  const models::MemoryEstimate& memory = run.memory;
  const std::pair<const char*, int64_t> parts[] = {{"weights", memory.weights},
                                                   {"gradients", memory.gradients},
                                                   {"optimizer", memory.optimizer},
                                                   {"activations", memory.activations},
                                                   {"workspace", memory.workspace}};
  message += fmt::format("\na step with micro-batches of {} is estimated to need", run.micro_batch);
  for (const auto& [name, bytes] : parts)
    message += fmt::format("\n  {:<14}{:>10}", name, bytes_text(static_cast<uint64_t>(bytes)));
  message += fmt::format("\n  {:<14}{:>10}", "together",
                         bytes_text(static_cast<uint64_t>(memory.of_step())));
  message += fmt::format("\n  {:<14}{:>10}", "other programs", bytes_text(others_bytes));
  return UserError(message, help_for(run, usable_bytes));
}

}  // namespace dovetail::train
