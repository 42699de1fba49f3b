#include "dovetail/io/tensor_owners.h"

#include <algorithm>
#include <numeric>
#include <tuple>

#include "dovetail/base/error.h"

namespace dovetail::io {

std::vector<CheckpointTensor> held_by_all(const std::map<std::string, at::Tensor>& tensors) {
  std::vector<CheckpointTensor> list;
  list.reserve(tensors.size());
  for (const auto& [name, tensor] : tensors)
    list.push_back({.name = name, .bytes = static_cast<int64_t>(tensor.nbytes())});
  return list;
}

TensorOwners::TensorOwners(std::vector<CheckpointTensor> tensors, int ranks,
                           const std::string& writers) {
  std::vector<int> all(static_cast<size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  for (CheckpointTensor& tensor : tensors)
    if (tensor.holders.empty()) tensor.holders = all;
  std::ranges::sort(tensors, {}, [](const CheckpointTensor& tensor) {
    return std::tuple(tensor.holders.size(), -tensor.bytes, tensor.name);
  });
  std::vector<int64_t> bytes(all.size(), 0);
  for (const CheckpointTensor& tensor : tensors) {
    const int owner =
        writers == "first" ? 0 : *std::ranges::min_element(tensor.holders, {}, [&](int rank) {
          return bytes[static_cast<size_t>(rank)];
        });
    bytes[static_cast<size_t>(owner)] += tensor.bytes;
    const bool is_new = owners_.emplace(tensor.name, owner).second;
    DOVETAIL_CHECK(is_new, "two tensors of a checkpoint are named '{}'", tensor.name);
  }
}

int TensorOwners::of(const std::string& name) const {
  const auto found = owners_.find(name);
  DOVETAIL_CHECK(found != owners_.end(), "tensor '{}' has no owner", name);
  return found->second;
}

std::map<std::string, at::Tensor> TensorOwners::owned_by(
    int rank, const std::map<std::string, at::Tensor>& tensors) const {
  std::map<std::string, at::Tensor> own;
  for (const auto& [name, tensor] : tensors)
    if (of(name) == rank) own.emplace(name, tensor);
  return own;
}

}  // namespace dovetail::io
