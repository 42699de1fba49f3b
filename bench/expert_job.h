#pragma once

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cstdint>
#include <memory>

#include "dovetail/comm/group.h"
#include "dovetail/moe/parallel_experts.h"
#include "dovetail/moe/routing.h"

/// A layer of experts over ranks, for benchmarks: sizes, tokens and weights of one rank, and a
/// step.
namespace dovetail::bench {

struct LayerSizes {
  int ranks = 4;
  int64_t tokens = 512, width = 256, hidden = 512, experts = 16, k = 2;
};

inline at::Tensor random(at::IntArrayRef sizes, uint64_t seed) {
  return at::randn(sizes, at::make_generator<at::CPUGeneratorImpl>(seed));
}

/// Inputs of a layer on its rank.
struct ExpertJob {
  LayerSizes sizes;
  std::shared_ptr<comm::Group> group;
  moe::ExpertRanks ranks;
  moe::ExpertWeights weights;  ///< experts of this rank
  at::Tensor x, logits;        ///< leaves
  at::Tensor dy;
};

/// Makes the inputs. Experts are cut over `cut` ranks. Expert i is chosen about (i + 1)^-skew times
/// as often as expert 0. Nodes are halves of the ranks, if there are four or more.
inline ExpertJob make_expert_job(const LayerSizes& sizes, const std::shared_ptr<comm::Group>& group,
                                 int cut, double skew) {
  ExpertJob job{.sizes = sizes, .group = group};
  const auto seed = static_cast<uint64_t>(group->rank());
  job.ranks.placement = moe::make_placement(sizes.experts, sizes.ranks, cut, sizes.hidden, false);
  job.ranks.group = group;
  if (sizes.ranks % 2 == 0 && sizes.ranks > 2)
    job.ranks.nodes = comm::split_by_node(*group, sizes.ranks / 2);
  job.weights.activation = "gelu";
  const int64_t count = job.ranks.placement.count(job.ranks.placement.holder(group->rank())),
                hidden = sizes.hidden / cut;
  for (int64_t e = 0; e < count; ++e) {
    job.weights.up.push_back(random({hidden, sizes.width}, 10 + seed).mul_(0.05).requires_grad_());
    job.weights.down.push_back(
        random({sizes.width, hidden}, 20 + seed).mul_(0.05).requires_grad_());
  }
  job.x = random({sizes.tokens, sizes.width}, 30 + seed).requires_grad_();
  const at::Tensor favour = at::arange(sizes.experts, at::kFloat).add_(1).log_().mul_(-skew);
  job.logits = (random({sizes.tokens, sizes.experts}, 40 + seed) + favour).requires_grad_();
  job.dy = random({sizes.tokens, sizes.width}, 50 + seed);
  return job;
}

inline moe::Routing routed(const ExpertJob& job, moe::Drop drop, int64_t capacity = 0) {
  return moe::route(job.logits, {.k = job.sizes.k, .drop = drop, .capacity = capacity});
}

/// Runs forward without padding in a layout.
inline at::Tensor dropless(const ExpertJob& job, const moe::ExpertLayout& layout) {
  const moe::Routing routing = routed(job, moe::Drop::kNone);
  return moe::parallel_feed_forward(job.x, routing.weight, routing.expert, routing.slot,
                                    {.weights = job.weights}, job.ranks, layout);
}

inline void forget_gradients(const ExpertJob& job) {
  for (const auto* list : {&job.weights.up, &job.weights.down})
    for (const at::Tensor& tensor : *list) tensor.mutable_grad().reset();
  for (const at::Tensor& tensor : {job.x, job.logits}) tensor.mutable_grad().reset();
}

/// Returns the largest value of any rank, on every rank.
inline double largest(comm::Group& group, double value) {
  double most = 0;
  for (const at::Tensor& of_rank : group.all_gather(at::full({1}, value, at::kDouble)))
    most = std::max(most, of_rank.item<double>());
  return most;
}

}  // namespace dovetail::bench
