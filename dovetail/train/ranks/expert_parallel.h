#pragma once

#include <ATen/core/Tensor.h>

#include <nlohmann/json_fwd.hpp>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dovetail/comm/group.h"
#include "dovetail/io/tensor_owners.h"
#include "dovetail/models/gpt.h"
#include "dovetail/train/config/run_config.h"
#include "dovetail/train/numerics/quantization.h"

namespace dovetail::train {

/// Throws UserError naming parallel.<key> for an invalid [parallel] section. `config.model` has
/// passed models::resolve_model_config.
void check_parallel(const RunConfig& config);
/// Throws UserError if the recipe of an expert's Linear cannot be used with the settings in
/// [parallel].
void check_parallel(const RunConfig& config, const Quantization& quantization);

/// Expert parallelism of a job, as set in [parallel]. The ranks of the job form a mesh of two
/// dimensions, "data" by "expert". The experts of each layer are spread along "expert". Every rank
/// along "data" holds the same experts. All ranks construct and call it together.
class ExpertParallel {
 public:
  /// `config` is resolved (ResolvedRun::config), `world` has all ranks of the job. Throws UserError
  /// naming parallel.<key> if sizes do not fit the number of ranks.
  ExpertParallel(const RunConfig& config, std::shared_ptr<comm::Group> world);

  /// Returns the ranks over which experts are spread, to be passed to the constructor of GPT. Null
  /// if every rank has all experts.
  const std::shared_ptr<const moe::ExpertRanks>& ranks() const { return ranks_; }

  /// Returns true if each rank has only a part of the tensors of this name in a checkpoint. This is
  /// so if the name belongs to an expert and experts are spread over ranks.
  bool is_spread(const std::string& name) const;

  /// Returns one group for each parameter, in the order of the model: the ranks that hold the
  /// parameter. Its gradient is summed over these ranks.
  std::vector<std::shared_ptr<comm::Group>> gradient_groups(const models::GPT& model) const;

  /// Returns `quantization`, this rank's line of quantization.jsonl, with the entries of the
  /// experts on other ranks added.
  nlohmann::ordered_json joined(nlohmann::ordered_json quantization) const;

  /// Returns the tensors of a checkpoint. `own` has this rank's tensors, with names
  /// "model.<parameter>", "optimizer.m.<parameter>" and so on. Experts are whole and numbered over
  /// all ranks. All ranks get the same list.
  std::vector<io::CheckpointTensor> stored(const models::GPT& model,
                                           const std::map<std::string, at::Tensor>& own) const;
  /// Makes each expert whole on the rank that `owners`, made of `stored`, names. An expert that is
  /// cut comes from the ranks that hold its slices. Returns on each rank the whole tensors that it
  /// owns. Tensors that are not of experts come from `own`.
  std::map<std::string, at::Tensor> gathered(const models::GPT& model,
                                             const std::map<std::string, at::Tensor>& own,
                                             const io::TensorOwners& owners) const;
  /// Distributes whole tensors over the ranks, for a resume. `whole` has the whole tensors on rank
  /// 0. `own` has this rank's live tensors; it tells which tensors of experts this rank needs.
  /// Returns on each rank its parts of these tensors. On rank 0 the result also has all other
  /// tensors of `whole`. Throws UserError on all ranks if rank 0's tensors do not match.
  std::map<std::string, at::Tensor> scattered(const models::GPT& model,
                                              const std::map<std::string, at::Tensor>& own,
                                              std::map<std::string, at::Tensor> whole) const;

 private:
  std::shared_ptr<comm::Group> world_;
  std::shared_ptr<comm::Group> replicas_;  ///< ranks that hold the same experts
  std::shared_ptr<const moe::ExpertRanks> ranks_;
};

}  // namespace dovetail::train
