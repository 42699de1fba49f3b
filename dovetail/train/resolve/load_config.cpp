#include "dovetail/train/resolve/load_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "dovetail/base/error.h"
#include "dovetail/base/file.h"
#include "dovetail/train/embedding_tables/config_section.h"
#include "dovetail/train/embedding_tables/lookups.h"
#include "dovetail/train/memory/config_section.h"
#include "dovetail/train/numerics/quantization.h"
#include "dovetail/train/ranks/batch_shares.h"
#include "dovetail/train/resolve/resolve_executors.h"
#include "dovetail/train/resolve/resolve_recommender.h"
#include "dovetail/train/resolve/unread_keys.h"

namespace dovetail::train {
namespace {

/// Checks keys that depend on the length of the run, and the keys that depend on rows.day.
void check_steps(const RunConfig& config) {
  const bool pass = config.train.steps == TrainSection::kPass;
  user_check(!pass || config.rows.by_day(),
             "train.steps = \"pass\" is one pass over the days of rows.day, which names no column. "
             "Name one, or give a number of steps");
  user_check(!config.rows.by_day() || config.eval.every_steps == EvalSection().every_steps,
             "eval.every_steps does nothing with rows.day = \"{}\": the run is measured at each "
             "day's beginning; leave it out",
             config.rows.day);
  if (!pass) check_length(config, config.train.steps);
}

/// Throws UserError if parallel.shard does not work with this run.
void check_shard(const RunConfig& config) {
  if (!config.parallel.shards()) return;
  const auto refuse = [&](bool there, const std::string& what, const char* why,
                          const std::string& help) {
    if (there)
      throw UserError(fmt::format("parallel.shard = \"{}\" does not work with {}: {}",
                                  config.parallel.shard, what, why),
                      help);
  };
  refuse(config.model.moe.experts > 0,
         fmt::format("model.moe.experts = {}", config.model.moe.experts),
         "the state of experts follows them to their ranks",
         "leave parallel.shard out; parallel.expert spreads experts with their state");
  refuse(!config.memory.budget.empty(), fmt::format("memory.budget = \"{}\"", config.memory.budget),
         "a plan has no place for shares that ranks gather", "leave one of the two out");
  refuse(config.parallel.shard == "gradients" && config.balance.mode == "auto",
         "balance.mode = \"auto\"",
         "ranks meet in every micro-batch, so all wait for the slowest in each",
         "use parallel.shard = \"optimizer\" or balance.mode = \"fixed\"");
}

}  // namespace

void check_run_config(const RunConfig& config) {
  check_sections(config);
  switch (config.kind()) {
    case RunKind::kGpt:
      config.data.check();
      break;
    case RunKind::kRecommender:
      config.rows.check();
      check(config.recommender, recommender_inputs(config));
      check_embedding(config);
      break;
    case RunKind::kVision:
      config.images.check();
      break;
  }
  check_steps(config);
  check_precision(config.precision);
  if (config.kind() == RunKind::kRecommender) check_recommender_recipe(config.precision);
  check_memory(config);
  user_check(config.train.micro_batch <= config.train.batch,
             "train.micro_batch = {} is larger than train.batch = {}", config.train.micro_batch,
             config.train.batch);
  user_check(
      config.train.micro_batch != TrainSection::kAuto || config.kind() == RunKind::kRecommender,
      "train.micro_batch = \"auto\" is for recommenders; give the samples that fit into "
      "memory at once. 0: all samples of the rank");
  user_check(config.optimizer.betas.size() == 2,
             "optimizer.betas has {} entries, but AdamW has two: [beta1, beta2]",
             config.optimizer.betas.size());
  user_check(
      !config.log.sample_prompts.empty() || config.log.sample_tokens == LogSection().sample_tokens,
      "log.sample_tokens = {} does nothing without log.sample_prompts; leave it out",
      config.log.sample_tokens);
  check_balance(config);
  check_executors(config);
  check_shard(config);
  check_effects(config);
  for (const double beta : config.optimizer.betas) {
    user_check(beta < 1.0, "optimizer.betas = [{}] must be below 1",
               fmt::join(config.optimizer.betas, ", "));
  }
  user_check(config.run.name.find('/') == std::string::npos && !config.run.name.starts_with('.') &&
                 !config.run.name.empty(),
             "run.name = \"{}\" must be a plain folder name (no '/', no leading dot); use "
             "run.folder for a path",
             config.run.name);
}

namespace {

RunConfig read_run_config(const std::string& toml, const std::string& name,
                          const std::vector<std::string>& overrides) {
  // The first reading finds the preset, which decides the defaults of the second one.
  RunConfig first;
  parse_config([&](Section& s) { first.describe(s); }, toml, name, overrides);
  RunConfig config;
  config.model = models::model_preset(first.model.preset).config;
  config.model.preset = first.model.preset;
  parse_config([&](Section& s) { config.describe(s); }, toml, name, overrides);
  check_run_config(config);
  return config;
}

}  // namespace

RunConfig load_run_config(const std::filesystem::path& path,
                          const std::vector<std::string>& overrides) {
  return read_run_config(read_file(path), path.string(), overrides);
}

RunConfig default_run_config(const std::vector<std::string>& overrides) {
  return read_run_config("", "defaults", overrides);
}

}  // namespace dovetail::train
