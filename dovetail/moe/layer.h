#pragma once

#include <torch/nn/module.h>

#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/moe/config.h"
#include "dovetail/moe/expert_weights.h"
#include "dovetail/moe/parallel_experts.h"
#include "dovetail/moe/pass.h"
#include "dovetail/moe/router.h"
#include "dovetail/mx/feed_forward.h"

namespace dovetail::moe {

/// Mixture-of-experts layer (Shazeer et al. 2017): y = sum of weight * expert(x) over a token's
/// experts, plus the output of the shared experts. Shared experts process every token and form one
/// feed-forward.
///
/// Parameters: the Router's, then experts.<e>.up and experts.<e>.down as in a FeedForward, then
/// shared.up and shared.down. If experts are spread over ranks, a Layer has only the experts of its
/// own rank. They keep their global index e. If experts are cut (Placement::cut), the Layer has
/// only its rank's slices of them.
class Layer : public torch::nn::Module {
 public:
  struct Options {
    int64_t width = 0;  ///< C, elements of a token
    std::string activation;
    bool bias = false;
    std::string name;  ///< name of the layer, e.g. "blocks.3.moe"
    c10::Device device = c10::kCPU;
    std::shared_ptr<const ExpertRanks> ranks = nullptr;  ///< null: this process has all experts
  };
  /// `config` must be a result of `resolve` (moe/config.h).
  Layer(const Config& config, const Options& options);

  struct Output {
    at::Tensor y;     ///< same shape and dtype as x
    at::Tensor loss;  ///< scalar: Router::Output::loss; undefined for hash
  };
  /// Runs the layer on x (..., C). A choice is one of the k experts of a token. A token whose
  /// choices were all dropped gets 0, plus the shared experts' output.
  Output forward(const at::Tensor& x, const Pass& pass = {});

  /// Load of the experts, summed over the forward passes since `reset_load`.
  struct Load {
    std::vector<int64_t> count;  ///< number of choices of each expert, dropped ones included
    int64_t dropped = 0;         ///< number of dropped choices of all experts
    int64_t choices() const { return std::accumulate(count.begin(), count.end(), int64_t{0}); }
  };
  using torch::nn::Module::load;
  /// Returns the load. If it is on a GPU, the host waits for it.
  Load load() const;
  /// Returns Load::count as (E) float64, where the last forward pass ran.
  at::Tensor counts() const { return load_.narrow(0, 0, config_.experts).to(at::kDouble); }
  /// Adds the load of a replica, which ran other micro-batches of the same step.
  void add_load(const Load& of_replica);
  /// Sets the load to zero. Call it at the beginning of a step.
  void reset_load();

  int64_t experts() const { return config_.experts; }  ///< on all ranks
  Router& router() { return *router_; }
  const std::shared_ptr<const ExpertRanks>& ranks() const { return ranks_; }

  /// Sets the layout for the next forward passes; it must be the same on all ranks. In the initial
  /// layout experts stay on their ranks, and nothing overlaps.
  void set_layout(ExpertLayout layout) { layout_ = std::move(layout); }
  const ExpertLayout& layout() const { return layout_; }
  /// Returns true if at least one expert of this rank is quantized. If so, experts run only on
  /// their own rank.
  bool quantized() const;
  /// Returns the reason why quantized experts run one after another, as modules, for an input of
  /// this dtype and device. Empty if they are one operation (mx/linear_group.h).
  std::string grouped_obstacle(at::ScalarType dtype, at::Device device) const;
  /// Returns the reason why the numbers of the experts' rows go to the host in each forward pass on
  /// a GPU. Empty if they stay on the GPU (moe/device_experts.h).
  std::string device_rows_obstacle() const;
  /// Returns the reason why a training step on a GPU waits in this layer, so that it cannot be a
  /// CUDA graph. Empty if it does not wait.
  std::string graph_obstacle() const;
  /// Moves the experts' weights into one storage if products on a GPU then need no copy of them.
  /// Call it once the weights have their dtype, device and recipes, and before anything else keeps
  /// their storage.
  void share_expert_storage();
  /// Returns the reason why experts that compute in `dtype` on `device` cannot be part of a
  /// recorded step (base/operation.h). Empty if they can. On the CPU the answer is for dropless
  /// experts.
  std::string recorded_obstacle(at::ScalarType dtype, at::Device device) const;
  /// Lets the numbers of the experts' rows follow from shapes alone (moe/device_rows.h). A recorded
  /// step on a GPU needs this, since the host reads nothing there. Requires an empty
  /// recorded_obstacle for the GPU.
  void fix_sizes() { fixed_sizes_ = true; }

 private:
  void add_to_load(const Routing& routing);
  ExpertWeights expert_weights() const;
  /// Returns the experts of this rank as they run on x. They are weights, one operation of
  /// quantized Linears, or modules.
  LocalExperts local_experts(const at::Tensor& x) const;
  enum class Part { kUp, kDown };
  std::vector<const mx::Linear*> linears(Part part) const;
  /// Returns the number of rows to which each expert's input is padded: the largest capacity of any
  /// rank. Returns nullopt without pad_to_capacity or without a capacity.
  ///
  /// The value follows from pass.maximum_tokens, except in two cases. The ranks then exchange their
  /// capacities.
  ///
  /// - maximum_tokens is unknown.
  /// - Tutel's rule has a factor of 0 or below, and so counts choices.
  std::optional<int64_t> padded_capacity(const Routing& routing, const Pass& pass) const;

  Config config_;
  std::string activation_;
  std::shared_ptr<const ExpertRanks> ranks_;
  ExpertLayout layout_;
  bool fixed_sizes_ = false;
  std::shared_ptr<Router> router_;
  std::vector<std::shared_ptr<mx::FeedForward>> experts_;
  std::shared_ptr<mx::FeedForward> shared_;  ///< null: no shared experts
  /// (E + 1) int64: Load::count, then Load::dropped. On the device of the last forward pass.
  at::Tensor load_;
};

/// Layers of a model with their module names.
using Layers = std::vector<std::pair<std::string, std::shared_ptr<Layer>>>;
/// Returns the Layers of `model`, in the order of the model.
Layers layers_of(const torch::nn::Module& model);

/// Returns a sentence on how a GPU computes the experts of `layers`. Either their sizes stay there,
/// or the host reads them, with the reason.
std::string describe_products(const Layers& layers);

}  // namespace dovetail::moe
