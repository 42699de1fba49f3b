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

namespace dovetail::train {

/// Throws UserError naming parallel.<key> for an invalid [parallel] section. The config's model is
/// resolved already.
void check_parallel(const RunConfig& config);
/// Throws UserError if the experts' recipes do not work with [parallel].
void check_parallel(const RunConfig& config, const Quantization& quantization);

/// Expert parallelism of a job, by [parallel]. The world is a mesh of "data" by "expert". Experts
/// are spread along "expert". Every rank along "data" holds the same experts. All ranks construct
/// and call it together.
class ExpertParallel {
 public:
  /// Takes a resolved config. Throws UserError naming parallel.<key> for sizes that do not fit the
  /// job.
  ExpertParallel(const RunConfig& config, std::shared_ptr<comm::Group> world);

  /// Ranks of the experts, to be passed to GPT. Null if every rank has all experts.
  const std::shared_ptr<const moe::ExpertRanks>& ranks() const { return ranks_; }

  /// Returns true if each rank has only its part of the tensors of this name.
  bool is_spread(const std::string& name) const;

  /// Returns the ranks over which each parameter's gradient is summed: the ranks that hold it. One
  /// group per parameter, in the order of the model.
  std::vector<std::shared_ptr<comm::Group>> gradient_groups(const models::GPT& model) const;

  /// Adds the experts of the other ranks to this rank's line of quantization.jsonl.
  nlohmann::ordered_json joined(nlohmann::ordered_json quantization) const;

  /// Converts a checkpoint's tensors between each rank's parts of experts and whole experts,
  /// numbered over all ranks. Names are "model.<parameter>", "optimizer.m.<parameter>" and so on.
  /// Tensors of other names pass unchanged.
  ///
  /// `gathered` gives rank 0 the whole tensors and the other ranks nothing. `scattered` copies to
  /// each rank its own part of rank 0's tensors. It covers every expert and tensor that `own`, the
  /// rank's live tensors, names. Throws UserError on all ranks if rank 0's tensors do not match.
  std::map<std::string, at::Tensor> gathered(const models::GPT& model,
                                             const std::map<std::string, at::Tensor>& own) const;
  std::map<std::string, at::Tensor> scattered(const models::GPT& model,
                                              const std::map<std::string, at::Tensor>& own,
                                              std::map<std::string, at::Tensor> whole) const;

 private:
  std::shared_ptr<comm::Group> world_;
  std::shared_ptr<comm::Group> replicas_;  ///< ranks that hold the same experts
  std::shared_ptr<const moe::ExpertRanks> ranks_;
};

}  // namespace dovetail::train
