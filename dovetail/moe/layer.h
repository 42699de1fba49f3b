#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/moe/config.h"
#include "dovetail/moe/parallel_experts.h"
#include "dovetail/moe/pass.h"
#include "dovetail/moe/router.h"
#include "dovetail/mx/feed_forward.h"

namespace dovetail::moe {

/// y = sum over a token's experts of weight * expert(x), and the shared experts of x (Shazeer et
/// al. 2017). Parameters: the Router's, experts.<e>.up and .down as a FeedForward's, shared.up and
/// .down. Where experts are spread over ranks a Layer has those of its own rank, under their
/// numbers among all, in slices if they are cut.
class Layer : public torch::nn::Module {
 public:
  struct Options {
    int64_t width = 0;  ///< C
    std::string activation;
    bool bias = false;
    std::string name;  ///< "blocks.3.moe"
    c10::Device device = c10::kCPU;
    std::shared_ptr<const ExpertRanks> ranks = nullptr;  ///< null: all experts are here
  };
  /// `config` is a resolved one.
  Layer(const Config& config, const Options& options);

  struct Output {
    at::Tensor y;     ///< as x
    at::Tensor loss;  ///< scalar: the Router's
  };
  /// x (..., C). Tokens that all experts dropped get 0 (and the shared experts): the residual
  /// carries them on.
  Output forward(const at::Tensor& x, const Pass& pass = {});

  /// Of the forward passes since `reset_load`.
  struct Load {
    std::vector<int64_t> count;  ///< choices of each expert, before dropping
    int64_t dropped = 0;
    int64_t choices() const { return std::accumulate(count.begin(), count.end(), int64_t{0}); }
  };
  const Load& load() const { return load_; }
  void reset_load() {
    load_ = {.count = std::vector<int64_t>(static_cast<size_t>(config_.experts), 0)};
    router_->begin_step();
  }

  Router& router() { return *router_; }
  const std::shared_ptr<const ExpertRanks>& ranks() const { return ranks_; }

  /// How rows and experts meet from the next forward pass on: the same on all ranks. At first
  /// experts stay where they are, without overlap.
  void set_plan(Plan plan) { plan_ = std::move(plan); }
  const Plan& plan() const { return plan_; }
  /// Whether some expert runs as a module of its own, which only its own rank can.
  bool quantized() const;

 private:
  void add_to_load(const Routing& routing);
  /// The experts of this rank: as one operation, or as modules if they are quantized.
  LocalExperts local_experts() const;
  /// Rows that each expert's are padded to, if a capacity asks for it: the largest capacity of any
  /// rank. It follows from pass.most_tokens by every rule but Tutel's with a factor of 0 or below,
  /// which counts choices; then and without it the ranks tell each other.
  std::optional<int64_t> padded_capacity(const Routing& routing, const Pass& pass) const;

  Config config_;
  std::string activation_;
  std::shared_ptr<const ExpertRanks> ranks_;
  Plan plan_;
  std::shared_ptr<Router> router_;
  std::vector<std::shared_ptr<FeedForward>> experts_;
  std::shared_ptr<FeedForward> shared_;  ///< null: none
  Load load_;
};

/// The Layers within `model` with their names, in the order of the model.
std::vector<std::pair<std::string, std::shared_ptr<Layer>>> layers_of(
    const torch::nn::Module& model);

}  // namespace dovetail::moe
