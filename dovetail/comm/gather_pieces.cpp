#include "dovetail/comm/gather_pieces.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include <numeric>

#include "dovetail/base/error.h"

namespace dovetail::comm {
namespace {

/// Returns true if pieces of `tensor` travel between ranks.
bool travels(const Pieces& tensor) {
  if (tensor.owner < 0) return false;
  const auto all = std::accumulate(tensor.sizes.begin(), tensor.sizes.end(), int64_t{0});
  return tensor.sizes[static_cast<size_t>(tensor.owner)] != all;
}

at::Tensor joined(const std::vector<at::Tensor>& parts, const at::TensorOptions& options) {
  return parts.empty() ? at::empty({0}, options) : at::cat(parts);
}

}  // namespace

std::vector<at::Tensor> gather_pieces(Group& group, const std::vector<Pieces>& tensors,
                                      const at::TensorOptions& options) {
  const auto ranks = static_cast<size_t>(group.size()), rank = static_cast<size_t>(group.rank());
  std::vector<int64_t> send(ranks, 0), receive(ranks, 0);
  std::vector<std::vector<at::Tensor>> to(ranks);
  bool any = false;
  for (const Pieces& tensor : tensors) {
    const int64_t own = tensor.sizes.at(rank);
    DOVETAIL_CHECK((tensor.mine.defined() ? tensor.mine.numel() : 0) == own,
                   "gather_pieces: a piece of {} elements for {}",
                   tensor.mine.defined() ? tensor.mine.numel() : 0, own);
    if (!travels(tensor)) continue;
    any = true;
    const auto owner = static_cast<size_t>(tensor.owner);
    if (own > 0) to[owner].push_back(tensor.mine.detach().reshape({-1}));
    send[owner] += own;
    if (owner != rank) continue;
    for (size_t r = 0; r < ranks; ++r) receive[r] += tensor.sizes[r];
  }
  at::Tensor received =
      at::empty({std::accumulate(receive.begin(), receive.end(), int64_t{0})}, options);
  if (any) {
    std::vector<at::Tensor> in_order;
    for (const auto& parts : to) in_order.insert(in_order.end(), parts.begin(), parts.end());
    group.all_to_all_async(received, joined(in_order, options), receive, send)->wait();
  }
  const auto from = received.split_with_sizes(receive);
  std::vector<int64_t> next(ranks, 0);  // first element of each rank that is not yet taken
  std::vector<at::Tensor> whole(tensors.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Pieces& tensor = tensors[i];
    if (tensor.owner != group.rank()) continue;
    if (!travels(tensor)) {
      whole[i] =
          tensor.mine.defined() ? tensor.mine.detach().reshape({-1}) : at::empty({0}, options);
      continue;
    }
    std::vector<at::Tensor> pieces;
    for (size_t r = 0; r < ranks; ++r) {
      pieces.push_back(from[r].narrow(0, next[r], tensor.sizes[r]));
      next[r] += tensor.sizes[r];
    }
    whole[i] = at::cat(pieces);
  }
  return whole;
}

}  // namespace dovetail::comm
