#include "dovetail/moe/gathered_experts.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/once_differentiable.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/mx/feed_forward.h"

namespace dovetail::moe {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Parameters of one expert: up, down and, if any, up_bias and down_bias.
using Parameters = std::vector<at::Tensor>;

Parameters parameters_of(const ExpertWeights& weights, size_t e) {
  if (weights.up_bias.empty()) return {weights.up[e], weights.down[e]};
  return {weights.up[e], weights.down[e], weights.up_bias[e], weights.down_bias[e]};
}

/// Joins slices of an expert's parameters. Slices of up are ranges of rows: of the gate's rows, if
/// any, and of up's own rows.
Parameters joined(const std::vector<Parameters>& slices, const std::string& activation) {
  if (slices.size() == 1) return slices[0];
  std::vector<at::Tensor> up, down;
  for (const Parameters& slice : slices) {
    up.push_back(slice[0].view({mx::up_width(activation, 1), -1, slice[0].size(1)}));
    down.push_back(slice[1]);
  }
  return {at::cat(up, 1).flatten(0, 1), at::cat(down, 1)};
}

/// Names of the parameters, in the order of Parameters.
constexpr std::array<const char*, 4> kNames = {"up.weight", "down.weight", "up.bias", "down.bias"};

/// Makes weights from one list of parameters for each expert.
ExpertWeights weights_of(const std::vector<Parameters>& experts, const std::string& activation) {
  ExpertWeights out{.activation = activation};
  const std::array lists = {&out.up, &out.down, &out.up_bias, &out.down_bias};
  for (const Parameters& expert : experts)
    for (size_t i = 0; i < expert.size(); ++i) lists[i]->push_back(expert[i]);
  return out;
}

/// Gathers the slices of all ranks, and sums gradients of all experts over the ranks. A piece is a
/// few neighbouring experts of each rank.
class Pieces {
 public:
  Pieces(const ExpertWeights& own, const ExpertRanks& ranks)
      : placement_(ranks.placement), group_(ranks.group), activation_(own.activation) {
    for (const at::Tensor& slice : parameters_of(own, 0)) {
      shapes_.push_back(slice.sizes().vec());
      elements_ += slice.numel();
    }
    for (int holder = 0; holder < placement_.holders(); ++holder)
      most_ = std::max(most_, placement_.count(holder));
    constexpr int64_t kBytes = 4 << 20;
    at_once_ = std::clamp<int64_t>(
        kBytes / (elements_ * static_cast<int64_t>(own.up[0].element_size())), 1, most_);
  }

  size_t parameters() const { return shapes_.size(); }
  int64_t experts() const { return placement_.experts; }

  /// own: this rank's slices, expert by expert. Returns the parameters of all experts.
  variable_list gather(const variable_list& own) const {
    const TraceSpan span("gather experts");
    variable_list all;
    for (int64_t e = 0; e < experts(); ++e)
      for (size_t p = 0; p < parameters(); ++p)
        all.push_back(at::empty(slice(p, 0).whole, own[0].options().requires_grad(false)));
    for (int64_t first = 0; first < most_; first += at_once_) {
      at::Tensor mine = at::zeros({at_once_ * elements_}, all[0].options());
      for_parameters(group_->rank(), first, [&](int64_t e, size_t p, int64_t begin, int64_t size) {
        const int64_t index = e - placement_.first(placement_.holder(group_->rank()));
        mine.narrow(0, begin, size).copy_(own[place(index, p)].reshape({-1}));
      });
      const std::vector<at::Tensor> arrived = group_->all_gather(mine);
      for (int rank = 0; rank < placement_.ranks; ++rank) {
        for_parameters(rank, first, [&](int64_t e, size_t p, int64_t begin, int64_t size) {
          const at::Tensor to = slice(p, rank).of(all[place(e, p)]);
          to.copy_(arrived[static_cast<size_t>(rank)].narrow(0, begin, size).view(to.sizes()));
        });
      }
    }
    return all;
  }

  /// gradients: of all experts' parameters. Returns the sums over ranks for this rank's slices.
  variable_list reduce(const variable_list& gradients) const {
    const TraceSpan span("reduce experts");
    const int me = group_->rank(), holder = placement_.holder(me);
    variable_list own(static_cast<size_t>(placement_.count(holder)) * parameters());
    for (int64_t first = 0; first < most_; first += at_once_) {
      const at::Tensor sums =
          at::zeros({placement_.ranks, at_once_ * elements_}, gradients[0].options());
      for (int rank = 0; rank < placement_.ranks; ++rank) {
        for_parameters(rank, first, [&](int64_t e, size_t p, int64_t begin, int64_t size) {
          const at::Tensor from = slice(p, rank).of(gradients[place(e, p)]);
          sums[rank].narrow(0, begin, size).view(from.sizes()).copy_(from);
        });
      }
      group_->reduce_scatter_async(sums)->wait();
      for_parameters(me, first, [&](int64_t e, size_t p, int64_t begin, int64_t size) {
        own[place(e - placement_.first(holder), p)] =
            sums[me].narrow(0, begin, size).view(shapes_[p]).clone();
      });
    }
    return own;
  }

 private:
  size_t place(int64_t expert, size_t parameter) const {
    return static_cast<size_t>(expert) * parameters() + parameter;
  }
  ExpertSlice slice(size_t parameter, int rank) const {
    return expert_slice(kNames[parameter], shapes_[parameter], activation_, placement_, rank);
  }

  /// Calls visit(expert, parameter, begin, size) for the parameters of a rank's experts in the
  /// piece that begins at its expert `first`. [begin, begin + size): elements in the piece.
  template <class Visit>
  void for_parameters(int rank, int64_t first, const Visit& visit) const {
    const int holder = placement_.holder(rank);
    const int64_t end = std::min(first + at_once_, placement_.count(holder));
    int64_t begin = 0;
    for (int64_t i = first; i < end; ++i) {
      for (size_t p = 0; p < parameters(); ++p) {
        const int64_t size = c10::multiply_integers(shapes_[p]);
        visit(placement_.first(holder) + i, p, begin, size);
        begin += size;
      }
    }
  }

  Placement placement_;
  std::shared_ptr<comm::Group> group_;
  std::string activation_;
  std::vector<std::vector<int64_t>> shapes_;  // sizes of this rank's slices
  int64_t elements_ = 0;                      // elements of one expert's slices
  int64_t at_once_ = 1;                       // experts of a rank in a piece
  int64_t most_ = 0;                          // maximum number of experts of a rank
};

/// Gathered experts of a layer, from forward to backward. The tensors that autograd saved share
/// the storage of `all`; between forward and backward it is empty.
struct Gathered : torch::CustomClassHolder {
  explicit Gathered(Pieces pieces) : pieces(std::move(pieces)) {}

  Pieces pieces;
  variable_list own;  ///< this rank's slices
  variable_list all;

  void release() const {
    for (const at::Tensor& tensor : all) {
      c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
      storage->set_nbytes(0);
    }
  }
  void gather_again() const {
    const variable_list again = pieces.gather(own);
    for (size_t i = 0; i < all.size(); ++i) {
      c10::StorageImpl *to = all[i].storage().unsafeGetStorageImpl(),
                       *from = again[i].storage().unsafeGetStorageImpl();
      to->set_nbytes(from->nbytes());
      to->set_data_ptr_noswap(from->set_data_ptr(at::DataPtr(nullptr, from->device())));
    }
  }
};

c10::intrusive_ptr<Gathered> gathered_of(AutogradContext* context) {
  return c10::static_intrusive_pointer_cast<Gathered>(context->saved_data["gathered"].toCapsule());
}

/// From this rank's slices to the parameters of all experts.
class GatherFunction : public torch::autograd::Function<GatherFunction> {
 public:
  static variable_list forward(AutogradContext* context, at::TensorList own,
                               const c10::intrusive_ptr<Gathered>& gathered) {
    context->saved_data["gathered"] = c10::IValue::make_capsule(gathered);
    variable_list all = operation_once(
        "dovetail::gather_experts", {.reads = own.vec()},
        [gathered](const Operands& inputs) { return gathered->pieces.gather(inputs.reads); });
    if (!operations_are_recorded()) {
      for (const at::Tensor& tensor : own) gathered->own.push_back(tensor.detach());
      for (const at::Tensor& tensor : all) gathered->all.push_back(tensor.variable_data());
    }
    return all;
  }

  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    const auto gathered = gathered_of(context);
    gathered->release();
    variable_list own = differentiate_once(
        {"parallel_feed_forward", "compute on one rank what needs one"}, gradients, [&] {
          return operation_once(
              "dovetail::reduce_experts", {.reads = gradients},
              [gathered](const Operands& inputs) { return gathered->pieces.reduce(inputs.reads); });
        });
    own.emplace_back();  // no gradient of `gathered`
    return own;
  }
};

/// Passes y on. Its backward runs before the experts' and gathers them again.
class ReleaseFunction : public torch::autograd::Function<ReleaseFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& y,
                            const c10::intrusive_ptr<Gathered>& gathered) {
    context->saved_data["gathered"] = c10::IValue::make_capsule(gathered);
    gathered->release();
    return y;
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    gathered_of(context)->gather_again();
    return {gradients[0], at::Tensor()};
  }
};

/// Returns `used`. Its backward also reaches `unused`, whose own backward all ranks call together.
class BesideFunction : public torch::autograd::Function<BesideFunction> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& used,
                            const at::Tensor& unused) {
    context->saved_data["unused"] = unused.detach();
    return used.view_as(used);
  }
  static variable_list backward(AutogradContext* context, const variable_list& gradients) {
    return {gradients[0], at::zeros_like(context->saved_data["unused"].toTensor())};
  }
};

}  // namespace

ExpertWeights gather_slices(const ExpertWeights& own, const std::vector<int64_t>& experts,
                            const ExpertRanks& ranks,
                            const std::function<bool(int to, int from)>& wants) {
  const TraceSpan span("gather experts");
  const Placement& placement = ranks.placement;
  const int me = ranks.group->rank();
  const Parameters shapes = parameters_of(own, 0);
  int64_t elements = 0;
  for (const at::Tensor& parameter : shapes) elements += parameter.numel();
  const auto of_holder = [&](int holder) {
    const auto from = std::ranges::lower_bound(experts, placement.first(holder)),
               to = std::ranges::lower_bound(experts, placement.first(holder + 1));
    return std::vector<int64_t>(from, to);
  };
  const auto own_parameters = [&](int64_t e) {
    return parameters_of(own, static_cast<size_t>(e - placement.first(placement.holder(me))));
  };
  std::vector<at::Tensor> flat;
  for (const int64_t e : of_holder(placement.holder(me)))
    for (const at::Tensor& parameter : own_parameters(e)) flat.push_back(parameter.reshape({-1}));
  const at::Tensor mine =
      flat.empty() ? at::empty({0}, shapes[0].options().requires_grad(false)) : at::cat(flat);
  comm::Splits splits;
  std::vector<at::Tensor> copies;
  for (int rank = 0; rank < placement.ranks; ++rank) {
    const bool sends = rank != me && wants(rank, me), receives = rank != me && wants(me, rank);
    splits.send.push_back(sends ? mine.numel() : 0);
    splits.receive.push_back(receives ? elements * std::ssize(of_holder(placement.holder(rank)))
                                      : 0);
    if (sends) copies.push_back(mine);
  }
  const at::Tensor buffer = copies.empty()       ? mine.narrow(0, 0, 0)
                            : copies.size() == 1 ? mine
                                                 : at::cat(copies);
  const at::Tensor received = comm::all_to_all_v(buffer, comm::Exchange(ranks.group, splits));

  // One split needs a single concatenation in backward, instead of one operation for each
  // parameter's view.
  std::vector<int64_t> sizes;
  for (int64_t left = received.numel(); left > 0; left -= elements)
    for (const at::Tensor& like : shapes) sizes.push_back(like.numel());
  const auto pieces = received.split_with_sizes(sizes);
  auto piece = pieces.begin();
  std::vector<std::vector<Parameters>> slices(experts.size());
  for (int rank = 0; rank < placement.ranks; ++rank) {
    if (!wants(me, rank)) continue;
    for (const int64_t e : of_holder(placement.holder(rank))) {
      const auto place =
          static_cast<size_t>(std::ranges::lower_bound(experts, e) - experts.begin());
      Parameters& slice = slices[place].emplace_back();
      if (rank == me) {
        slice = own_parameters(e);
        continue;
      }
      for (const at::Tensor& like : shapes) slice.push_back((piece++)->view(like.sizes()));
    }
  }
  std::vector<Parameters> whole;
  whole.reserve(slices.size());
  for (const auto& of_expert : slices) whole.push_back(joined(of_expert, own.activation));
  if (received.numel() == 0 && !whole.empty())
    whole[0][0] = BesideFunction::apply(whole[0][0], received);
  return weights_of(whole, own.activation);
}

at::Tensor with_all_experts(
    const ExpertWeights& own, const ExpertRanks& ranks,
    const std::function<at::Tensor(const ExpertWeights& all)>& feed_forward) {
  variable_list slices;
  for (size_t e = 0; e < own.experts(); ++e)
    for (const at::Tensor& parameter : parameters_of(own, e)) slices.push_back(parameter);
  const auto gathered = c10::make_intrusive<Gathered>(Pieces(own, ranks));
  const variable_list all = GatherFunction::apply(at::TensorList(slices), gathered);
  const size_t parameters = gathered->pieces.parameters();
  std::vector<Parameters> experts;
  for (auto next = all.begin(); next != all.end(); next += static_cast<int64_t>(parameters))
    experts.emplace_back(next, next + static_cast<int64_t>(parameters));
  at::Tensor y = feed_forward(weights_of(experts, own.activation));
  if (operations_are_recorded() || !at::GradMode::is_enabled()) return y;
  return ReleaseFunction::apply(y, gathered);
}

}  // namespace dovetail::moe
