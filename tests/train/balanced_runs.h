#pragma once

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "dovetail/io/checkpoint.h"
#include "tests/comm/ranks.h"
#include "tests/train/clicks.h"
#include "tests/train/tiny_run.h"

/// Training runs with eight micro-batches in each step, for any shares of the ranks.
namespace dovetail::test {

using Shares = std::vector<int64_t>;

inline io::Snapshot train_on(int ranks, const train::RunConfig& config,
                             const std::function<void(int rank)>& prepare = {}) {
  expect_all_succeed(ranks, [&](const std::shared_ptr<comm::Group>& group) {
    if (prepare) prepare(group->rank());
    train::train(config, group, {.quiet = true});
  });
  return last_checkpoint(config);
}

/// Trains on the calling thread and returns the last checkpoint.
inline io::Snapshot train_here(const train::RunConfig& config) {
  train_alone(config);
  return last_checkpoint(config);
}

/// Returns the maximum relative distance of the tensors that `of` selects by name. The distance is
/// divided by the tensor's norm in the run of one rank, `one`.
inline double distance(const io::Snapshot& one, const io::Snapshot& other,
                       const std::function<bool(const std::string&)>& of) {
  double worst = 0;
  int compared = 0;
  for (const auto& [name, tensor] : one.tensors) {
    if (!of(name) || !tensor.is_floating_point()) continue;
    ++compared;
    const at::Tensor want = tensor.to(at::kDouble), got = other.tensors.at(name).to(at::kDouble);
    worst = std::max(worst, ((got - want).norm() / want.norm().clamp_min(1e-30)).item<double>());
  }
  EXPECT_GT(compared, 0);
  return worst;
}

inline bool is_gradient(const std::string& name) {
  return name.starts_with("optimizer.m.");
}  // (1 - beta1) times it
inline bool is_anything(const std::string&) { return true; }

inline train::RunConfig with_shares(train::RunConfig config, const Shares& shares) {
  config.balance.mode = "fixed";
  config.balance.shares = shares;
  return config;
}

/// Config with eight micro-batches and no clipping. Adam has a large eps, so that values near zero
/// are not amplified.
inline train::RunConfig gpt(const TinyRun& run, const std::string& name, int64_t steps) {
  train::RunConfig config = run.config(name);
  config.train.steps = steps;
  config.train.batch = 16;
  config.train.micro_batch = 2;
  config.train.clip = 0;
  config.train.bucket_bytes = 16384;
  config.optimizer.eps = 1e-3;
  return config;
}

inline train::RunConfig mixture(const TinyRun& run, const std::string& name, int64_t steps) {
  train::RunConfig config = gpt(run, name, steps);
  config.model.moe.experts = 4;
  config.model.moe.router = "noisy_top_k";  // its draws depend only on a token's index in the batch
  config.model.moe.ffn_width = 24;
  config.model.moe.drop = "position";
  config.model.moe.capacity_factor = 1.0;
  config.model.moe.load_loss = 0.01;
  config.model.moe.z_loss = 0.01;
  return config;
}

inline train::RunConfig dlrm(const Clicks& data, const std::string& name, int64_t steps) {
  train::RunConfig config = data.config("dlrm", name);
  config.train.steps = steps;
  config.train.batch = 128;
  config.train.micro_batch = 16;
  config.recommender.grain = 16;
  config.embedding.optimizer = "adam";  // its first moments show the gradients
  config.optimizer.eps = config.embedding.eps = 1e-3;
  config.eval.every_steps = 0;
  return config;
}

}  // namespace dovetail::test
