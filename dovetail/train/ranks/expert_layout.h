#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "dovetail/comm/cost_model.h"
#include "dovetail/moe/layer.h"
#include "dovetail/moe/simulate.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/ranks/expert_parallel.h"

namespace dovetail::train {

/// Layouts of a model's layers whose experts are spread over ranks. A layout (moe::ExpertLayout)
/// tells which token rows and expert weights travel between ranks. [parallel] gives its numbers. A
/// cost model and the load of the experts decide numbers that are "auto", every few steps. All
/// ranks make the same choice. Without expert parallelism the class does nothing.
class LayoutChoice {
 public:
  /// Gives the layers of `model` their first layouts, for an even load of the experts. `tokens` is
  /// the number of tokens of a rank in a forward pass, `compute` the dtype of token rows. If a key
  /// is "auto", it reads the cost model (parallel.costs) or measures it. All ranks of `world`, the
  /// whole job, construct it together. `config` has passed check_parallel.
  LayoutChoice(const models::GPT& model, const RunConfig& config, int64_t tokens,
               at::ScalarType compute, const ExpertParallel& parallel, comm::Group& world);

  /// Call after a step, on all ranks, before the load is reset. Every parallel.choose_every steps
  /// it chooses layouts for the next steps by this step's load.
  void end_step(int64_t step, comm::Group& world);

  /// Returns a line for the log about the first choice; empty if no key is "auto".
  const std::string& choice() const { return choice_; }

  /// Returns the layout of each layer, in order, for a line of experts.jsonl.
  nlohmann::ordered_json plans() const;
  /// Returns the all-to-alls since the previous call, for a line of experts.jsonl. It has calls,
  /// bytes sent and seconds waited, per step and as means over ranks. `step` is the current step.
  /// All ranks of `world` call it together.
  nlohmann::ordered_json traffic(int64_t step, comm::Group& world);
  /// Returns true without expert parallelism.
  bool empty() const { return layers_.empty(); }

 private:
  /// Returns the layout for this load: `choices_of` has the number of tokens that chose each
  /// expert. Empty: an even load.
  moe::ExpertLayout choose(const std::vector<double>& choices_of) const;

  ParallelSection config_;
  std::shared_ptr<const moe::ExpertRanks> ranks_;
  /// Layers with experts, and their names; empty without expert parallelism.
  std::vector<std::pair<std::string, std::shared_ptr<moe::Layer>>> layers_;
  bool modules_ = false;                  ///< an expert is quantized, so weights are never gathered
  std::optional<comm::CostModel> costs_;  ///< only if a key is "auto"
  moe::LayerLoad load_;                   ///< sizes of a layer, for the cost model
  std::string choice_;
  comm::Group::Traffic last_;  ///< traffic at the previous call of `traffic`
  int64_t last_step_ = 0;
};

}  // namespace dovetail::train
