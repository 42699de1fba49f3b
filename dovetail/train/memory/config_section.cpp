#include "dovetail/train/memory/config_section.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <string_view>

#include "dovetail/base/byte_size.h"
#include "dovetail/base/error.h"
#include "dovetail/plan/model/budget.h"
#include "dovetail/plan/solve/plan_cache.h"
#include "dovetail/train/config/run_config.h"

namespace dovetail::train {
namespace {

/// Throws UserError if steps do not all have the same sizes and collectives. The error has the
/// reason and a remedy.
void check_planned(const RunConfig& config) {
  const moe::Config& moe = config.model.moe;
  const auto refuse = [](bool there, const std::string& what, const char* why, const char* help) {
    if (there)
      throw UserError(fmt::format("memory.budget does not work with {}: {}", what, why), help);
  };
  refuse(config.rows.by_day(), fmt::format("rows.day = \"{}\"", config.rows.day),
         "the last step of a day has fewer rows than the others", "leave one of the two out");
  if (moe.experts == 0) return;
  refuse(moe.router == "expert_choice", "model.moe.router = \"expert_choice\"",
         "a token has another number of experts in each step",
         "let tokens choose, or leave memory.budget out");
  refuse(!moe.pad_to_capacity && config.parallel.expert > 1,
         fmt::format("model.moe.pad_to_capacity = false and parallel.expert = {}",
                     config.parallel.expert),
         "ranks exchange other numbers of rows in each step",
         "give experts a capacity (drop = \"position\") and pad_to_capacity = true, or leave "
         "memory.budget out");
  refuse(!moe.pad_to_capacity && (moe.drop != "none" || moe.second_expert == "random"),
         fmt::format("model.moe.pad_to_capacity = false, drop = \"{}\" and second_expert = \"{}\"",
                     moe.drop, moe.second_expert),
         "other numbers of choices are dropped in each step",
         "set pad_to_capacity = true, or drop none, or leave memory.budget out");
  refuse(moe.pad_to_capacity && moe.capacity_factor <= 0,
         fmt::format("model.moe.capacity_factor = {}", moe.capacity_factor),
         "the capacity follows from the load of a step",
         "give a positive one, or leave memory.budget out");
  refuse(config.precision.recipe == "fp64", "experts in fp64",
         "our kernels for their rows are of float32 and bfloat16",
         "use another recipe, or leave memory.budget out");
  refuse(config.parallel.chooses() || config.parallel.shadow != 0,
         "\"auto\" or shadow in [parallel]", "experts move with their load",
         "say r, overlap and all_to_all, or leave memory.budget out");
}

static_assert(std::equal(plan::PlannedStep::kTechniques.begin(),
                         plan::PlannedStep::kTechniques.end(),
                         MemorySection::kTechniques.begin() + 1, MemorySection::kTechniques.end(),
                         [](const auto& technique, std::string_view name) {
                           return technique.first == name;
                         }),
              "memory.allow has the techniques of a planned step");

bool allows(const MemorySection& memory, std::string_view technique) {
  return std::ranges::find(memory.allow, technique) != memory.allow.end();
}

}  // namespace

void check_memory(const RunConfig& config) {
  const MemorySection& memory = config.memory;
  if (memory.budget.empty()) {
    user_check(
        memory == MemorySection(),
        "memory.folder, host_bytes, allow and solve_s do nothing without memory.budget; give one");
    return;
  }
  plan::parse_budget(memory.budget, 1 << 30);
  if (!memory.host_bytes.empty() && !parse_byte_size(memory.host_bytes))
    throw UserError(
        fmt::format("memory.host_bytes = \"{}\" is not a number of bytes", memory.host_bytes),
        "write bytes with a unit: 20GiB");
  check_planned(config);
  if (config.train.checkpoint_activations)
    throw UserError("both memory.budget and train.checkpoint_activations are given",
                    "leave train.checkpoint_activations out: the plan decides what to recompute");
}

void check_memory_on(const RunConfig& config, c10::Device device) {
  const MemorySection& memory = config.memory;
  if (memory.budget.empty()) return;
  if (device.is_cpu()) {
    if (memory.folder.empty() && allows(memory, "offload"))
      throw UserError(
          "memory.allow has \"offload\", but memory.folder names no folder to offload to",
          "memory.folder = \"FOLDER\" offloads to a disk; memory.allow = [\"auto\"] does "
          "without. Before, offloaded tensors stayed in the memory of the process");
    user_check(memory.host_bytes.empty() || !memory.folder.empty(),
               "memory.host_bytes limits memory.folder, which is not given");
    return;
  }
  user_check(config.model.moe.experts == 0 || config.parallel.expert == 1,
             "memory.budget does not work with parallel.expert = {} on GPUs. The host plans the "
             "rows of other ranks in each step. Leave one of both out",
             config.parallel.expert);
  if (!memory.folder.empty())
    throw UserError("memory.folder does nothing on a GPU, which offloads to the CPU's memory",
                    "leave it out; memory.host_bytes limits the offloaded bytes");
  for (const char* technique : {"compress", "compress_mxfp8"})
    if (allows(memory, technique))
      throw UserError(
          fmt::format("memory.allow has \"{}\", which does not work on a GPU yet", technique),
          "memory.allow = [\"offload\", \"recompute\"], [\"auto\"], or with \"algorithms\"");
}

std::shared_ptr<plan::PagedAllocations> paged_until_there_is_a_plan(const MemorySection& memory) {
  if (memory.budget.empty() || memory.folder.empty()) return nullptr;
  return std::make_shared<plan::PagedAllocations>(memory.folder);
}

plan::PlannedStep::Options planned_step_options(const MemorySection& memory, c10::Device device) {
  plan::PlannedStep::Options out{.budget = memory.budget,
                                 .folder = memory.folder,
                                 .plans = plan::PlanCache::default_folder(),
                                 .solve_s = memory.solve_s,
                                 .prefix = "memory.",
                                 .floor_help =
                                     "; `dovetail plan CONFIG --fits` searches for the "
                                     "largest that fits"};
  if (!memory.host_bytes.empty()) out.host_bytes = parse_byte_size(memory.host_bytes);
  const bool all = allows(memory, MemorySection::kAuto);
  for (const auto& [name, allowed] : plan::PlannedStep::kTechniques)
    out.*allowed =
        allows(memory, name) || (all && allowed != &plan::PlannedStep::Options::compress_mxfp8 &&
                                 allowed != &plan::PlannedStep::Options::algorithms);
  out.offload = out.offload && (device.is_cuda() || !memory.folder.empty());
  return out;
}

}  // namespace dovetail::train
