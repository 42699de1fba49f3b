#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "dovetail/moe/config.h"
#include "dovetail/moe/dispatch.h"
#include "dovetail/moe/pass.h"
#include "dovetail/moe/router.h"
#include "dovetail/mx/feed_forward.h"

namespace dovetail::moe {

/// y = sum over a token's experts of weight * expert(x), and the shared experts of x (Shazeer et al. 2017).
/// Parameters: the Router's, experts.<e>.up and .down as a FeedForward's, shared.up and .down.
class Layer : public torch::nn::Module {
 public:
  struct Options {
    int64_t width = 0;  ///< C
    std::string activation;
    bool bias = false;
    std::string name;  ///< "blocks.3.moe"
    c10::Device device = c10::kCPU;
  };
  /// `config` is a resolved one.
  Layer(const Config& config, const Options& options);

  struct Output {
    at::Tensor y;     ///< as x
    at::Tensor loss;  ///< scalar: the Router's
  };
  /// x (..., C). Tokens that all experts dropped get 0 (and the shared experts): the residual carries them on.
  Output forward(const at::Tensor& x, const Pass& pass = {});

  /// Of the forward passes since `reset_load`.
  struct Load {
    std::vector<int64_t> count;  ///< choices of each expert, before dropping
    int64_t dropped = 0;
    int64_t choices() const { return std::accumulate(count.begin(), count.end(), int64_t{0}); }
  };
  const Load& load() const { return load_; }
  void reset_load() {
    load_ = {.count = std::vector<int64_t>(experts_.size(), 0)};
    router_->begin_step();
  }

  Router& router() { return *router_; }

 private:
  /// y (T, C), float32 sums, of the experts that are not shared: all as one operation, or one after another, each a
  /// module that may be quantized, on copies of its rows.
  at::Tensor grouped(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to) const;
  at::Tensor one_by_one(const at::Tensor& rows, const at::Tensor& weight, const Dispatch& to) const;

  Config config_;
  std::string activation_;
  std::shared_ptr<Router> router_;
  std::vector<std::shared_ptr<FeedForward>> experts_;
  std::shared_ptr<FeedForward> shared_;  ///< null: none
  Load load_;
};

}  // namespace dovetail::moe
