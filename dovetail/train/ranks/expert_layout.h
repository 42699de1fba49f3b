#pragma once

#include <nlohmann/json_fwd.hpp>

#include <array>
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
/// tells which token rows and expert weights travel between ranks. Its numbers are keys of
/// [parallel]. Every few steps, numbers that are "auto" are chosen anew, by a cost model and the
/// load of the experts. All ranks make the same choice. Without expert parallelism the class does
/// nothing.
///
/// If the ranks measured the cost model, a choice is a trial. The two best layouts by the model and
/// the default each run for a few steps. The fastest is taken, or the default if it is at most 2 %
/// slower. If parallel.costs names the cost model, there is no trial: a run can then be repeated.
class LayoutChoice {
 public:
  /// Gives the layers of `model` their first layouts, for an even load of the experts. `tokens` is
  /// the number of tokens of a rank in a forward pass, `compute` the dtype of token rows. If a key
  /// is "auto", the constructor reads the cost model from parallel.costs. If that key is empty,
  /// it measures the cost model. All ranks of `world`, the whole job, construct it together.
  /// `config` has passed check_parallel.
  LayoutChoice(const models::GPT& model, const RunConfig& config, int64_t tokens,
               at::ScalarType compute, const ExpertParallel& parallel, comm::Group& world);

  /// Call after each step, on all ranks, before moe::Layer::reset_load. Every parallel.choose_every
  /// steps it chooses the layouts of the next steps by this step's load. Returns a line for the log
  /// when a trial ends, otherwise an empty string.
  std::string end_step(int64_t step, comm::Group& world);

  /// Returns a line for the log about the first choice; empty if no key is "auto".
  const std::string& choice() const { return choice_; }

  /// Returns the layout of each layer, in order, for a line of experts.jsonl.
  nlohmann::ordered_json plans() const;
  /// Returns statistics of the all-to-alls since the previous call, for a line of experts.jsonl.
  /// They are calls, bytes sent and seconds waited, each per step and as mean over ranks. `step` is
  /// the current step. All ranks of `world` call it together.
  nlohmann::ordered_json traffic(int64_t step, comm::Group& world);
  /// Returns true without expert parallelism.
  bool empty() const { return layers_.empty(); }

 private:
  using Layouts = std::vector<moe::ExpertLayout>;  ///< one of each layer

  /// Layouts that are compared by the time of steps.
  struct Trial {
    std::vector<Layouts> candidates;
    size_t plain = 0;                  ///< index of the default
    std::vector<double> seconds = {};  ///< minimum of each candidate's steps so far
    int steps = 0;                     ///< steps of the last candidate in `seconds`
  };

  /// Returns the best layout for a load, the second best and the default. Two may be equal.
  /// `choices_of`: number of tokens routed to each expert; empty: an even load.
  std::array<moe::ExpertLayout, 3> candidates(const std::vector<double>& choices_of) const;
  /// Sets the layouts for the layers' loads, or starts a trial. Empty loads: even ones.
  void choose(const std::vector<std::vector<double>>& loads);
  void use(const Layouts& layouts) const;
  /// Counts a step of the trial. Returns a line for the log if it was the last.
  std::string count_step(double seconds, comm::Group& world);

  ParallelSection config_;
  std::shared_ptr<const moe::ExpertRanks> ranks_;
  /// Layers with experts, and their names; empty without expert parallelism.
  std::vector<std::pair<std::string, std::shared_ptr<moe::Layer>>> layers_;
  /// True if an expert is quantized. Then weights of experts are not gathered on other ranks.
  bool modules_ = false;
  std::optional<comm::CostModel> costs_;  ///< only if a key is "auto"
  moe::LayerLoad load_;                   ///< sizes of a layer, for the cost model
  std::optional<Trial> trial_;            ///< running trial
  /// Numbers of the last trial's candidates, and the one that it took. The same numbers need no
  /// other trial.
  std::vector<std::string> tried_;
  size_t taken_ = 0;
  double end_of_step_s_ = 0;  ///< time at the previous end_step
  std::string choice_;
  comm::Group::Traffic last_;  ///< traffic at the previous call of `traffic`
  int64_t last_step_ = 0;
};

}  // namespace dovetail::train
