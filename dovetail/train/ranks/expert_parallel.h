#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/numerics/quantization.h"

namespace dovetail {

/// Throws UserError for what is wrong with [parallel] of a config whose model is resolved, naming
/// parallel.<key>.
void check_parallel(const RunConfig& config);
/// The same for recipes of experts under which that cannot be done.
void check_parallel(const RunConfig& config, const Quantization& quantization);

/// The experts of a model over the ranks of a job: [parallel]. The world is a mesh of "data" by
/// "expert"; experts are spread along "expert", and every rank along "data" holds the same ones.
/// All ranks make and call it together.
class ExpertParallel {
 public:
  /// Of a resolved config. Throws UserError naming parallel.<key> for sizes that do not fit the
  /// job.
  ExpertParallel(const RunConfig& config, std::shared_ptr<Group> world);

  /// What GPT takes; null: every rank has all experts.
  const std::shared_ptr<const moe::ExpertRanks>& ranks() const { return ranks_; }

  /// Whether a rank has only its part of the tensors of this name.
  bool is_spread(const std::string& name) const;

  /// The ranks over which each parameter's gradient is summed, in the order of the model: those
  /// that hold it.
  std::vector<std::shared_ptr<Group>> gradient_groups(const GPT& model) const;

  /// A line of quantization.jsonl of this rank, with the experts of the other ranks.
  nlohmann::ordered_json joined(nlohmann::ordered_json quantization) const;

  /// Tensors of a checkpoint ("model.<parameter>", "optimizer.m.<parameter>", ...; others pass)
  /// between what each rank has of the experts and whole ones under their numbers among all
  /// experts. `gathered` gives rank 0 all of them, the other ranks nothing. `scattered` gives each
  /// rank its own part of rank 0's, as copies, of every expert and tensor that `own` (the rank's,
  /// live) names. Throws UserError on all ranks where rank 0's do not fit.
  std::map<std::string, at::Tensor> gathered(const GPT& model,
                                             const std::map<std::string, at::Tensor>& own) const;
  std::map<std::string, at::Tensor> scattered(const GPT& model,
                                              const std::map<std::string, at::Tensor>& own,
                                              std::map<std::string, at::Tensor> whole) const;

 private:
  std::shared_ptr<Group> world_;
  std::shared_ptr<Group> replicas_;  ///< ranks that hold the same experts
  std::shared_ptr<const moe::ExpertRanks> ranks_;
};

}  // namespace dovetail
