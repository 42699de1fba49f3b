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

namespace dovetail {

/// How rows and experts of each layer meet, step by step: as [parallel] says, and where that is
/// "auto" by a cost model and the load. All ranks make the same choice. Without spread experts it
/// does nothing.
class ExpertPlans {
 public:
  /// Gives the layers of `model` their first plans, for an even load. Reads the cost model where
  /// one is needed, or measures it: all ranks of the world together. `config` has passed
  /// check_parallel.
  ExpertPlans(const GPT& model, const RunConfig& config, int64_t tokens, at::ScalarType compute,
              const ExpertParallel& parallel, Group& world);

  /// After a step, before the load is reset: plans for the next ones, every parallel.choose_every
  /// steps by the load of this one.
  void end_step(int64_t step, Group& world);

  /// What was chosen at first, in words; empty: nothing was to choose.
  const std::string& choice() const { return choice_; }

  /// For the layers of an experts.jsonl line: each layer's plan, in order; and all-to-alls of all
  /// ranks since the last call: calls and bytes of a step, seconds a rank waited in it. All ranks
  /// of the world together.
  nlohmann::ordered_json plans() const;
  nlohmann::ordered_json traffic(int64_t step, Group& world);
  bool empty() const { return layers_.empty(); }

 private:
  moe::Plan choose(const std::vector<double>& choices_of) const;

  ParallelSection config_;
  std::shared_ptr<const moe::ExpertRanks> ranks_;
  std::vector<std::pair<std::string, std::shared_ptr<moe::Layer>>> layers_;
  bool modules_ = false;  ///< quantized experts stay where they are
  std::optional<CostModel> costs_;
  moe::LayerLoad load_;
  std::string choice_;
  Group::Traffic last_;
  int64_t last_step_ = 0;
};

}  // namespace dovetail
