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

/// Plans of the expert-parallel layers (moe::ExpertLayout), as [parallel] prescribes. Keys that are
/// "auto" are chosen by a cost model and the load, every few steps. All ranks make the same choice.
/// Without expert parallelism it does nothing.
class LayoutChoice {
 public:
  /// Gives the layers of `model` their first plans, for an even load. `tokens` is the number of
  /// tokens of a rank in a forward pass, `compute` the dtype of rows. If a key is "auto", it reads
  /// the cost model or measures it. All ranks of the world construct it together. `config` has
  /// passed check_parallel.
  LayoutChoice(const models::GPT& model, const RunConfig& config, int64_t tokens,
               at::ScalarType compute, const ExpertParallel& parallel, comm::Group& world);

  /// Call after a step, before the load is reset. Every parallel.choose_every steps it chooses
  /// plans for the next steps by this step's load.
  void end_step(int64_t step, comm::Group& world);

  /// First choice, as a line for the log; empty if no key is "auto".
  const std::string& choice() const { return choice_; }

  /// Records for a line of experts.jsonl. `plans`: each layer's plan, in order. `traffic`:
  /// all-to-alls since the previous call, averaged over ranks. It has calls and bytes per step, and
  /// seconds per step that a rank waited. All ranks of the world call `traffic` together.
  nlohmann::ordered_json plans() const;
  nlohmann::ordered_json traffic(int64_t step, comm::Group& world);
  bool empty() const { return layers_.empty(); }

 private:
  moe::ExpertLayout choose(const std::vector<double>& choices_of) const;

  ParallelSection config_;
  std::shared_ptr<const moe::ExpertRanks> ranks_;
  std::vector<std::pair<std::string, std::shared_ptr<moe::Layer>>> layers_;
  bool modules_ = false;  ///< experts are quantized, so they are never gathered
  std::optional<comm::CostModel> costs_;
  moe::LayerLoad load_;
  std::string choice_;
  comm::Group::Traffic last_;
  int64_t last_step_ = 0;
};

}  // namespace dovetail::train
