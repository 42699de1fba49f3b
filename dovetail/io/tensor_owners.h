#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace dovetail::io {

/// Tensor of a checkpoint, and the ranks from which it can come.
struct CheckpointTensor {
  std::string name;
  int64_t bytes = 0;
  /// Ranks that hold the tensor or a part of it. Empty: each rank holds all of it.
  std::vector<int> holders = {};
};

/// Returns an entry for each of `tensors`, which each rank holds.
std::vector<CheckpointTensor> held_by_all(const std::map<std::string, at::Tensor>& tensors);

/// Rank that writes each tensor of a checkpoint: its owner. Each rank computes the same owners,
/// without communication.
class TensorOwners {
 public:
  /// `writers`: "first" or "all", as in checkpoint.writers.
  ///
  /// - first: rank 0 owns all tensors.
  /// - all: a tensor's owner is one of its holders, the one with the fewest bytes so far. Tensors
  ///   with few holders come first, larger ones before smaller ones (Graham 1969). So bytes of two
  ///   ranks that hold the same tensors differ by one tensor at most.
  TensorOwners(std::vector<CheckpointTensor> tensors, int ranks, const std::string& writers);

  /// Returns the owner of a tensor. Throws InternalError for an unknown name.
  int of(const std::string& name) const;
  /// Returns the tensors among `tensors` that `rank` owns.
  std::map<std::string, at::Tensor> owned_by(
      int rank, const std::map<std::string, at::Tensor>& tensors) const;

 private:
  std::map<std::string, int> owners_;
};

}  // namespace dovetail::io
