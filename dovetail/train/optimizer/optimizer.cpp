#include "dovetail/train/optimizer/optimizer.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/base/operation.h"
#include "dovetail/base/trace.h"
#include "dovetail/comm/all_to_all.h"
#include "dovetail/comm/collective.h"
#include "dovetail/comm/gather_pieces.h"

namespace dovetail::train {

namespace {

at::Tensor range(const at::Tensor& tensor, const comm::Bucket::Piece& piece) {
  return tensor.detach().view({-1}).narrow(0, piece.begin, piece.size);
}

bool has_moments(const std::map<std::string, at::Tensor>& tensors) {
  return std::ranges::any_of(tensors,
                             [](const auto& item) { return item.first.starts_with("optimizer."); });
}

}  // namespace

Optimizer::Optimizer(const torch::nn::Module& model, const OptimizerSection& config,
                     OptimizerSharding sharding)
    : config_(config), sharding_(std::move(sharding)) {
  if (sharding_.group && sharding_.group->size() == 1) sharding_.group.reset();
  for (const auto& item : model.named_parameters()) {
    DOVETAIL_CHECK(item.value().scalar_type() == at::kFloat, "{} is not float32", item.key());
    names_.push_back(item.key());
    // This tensor shares the parameter's storage. If set_compute_dtype changes the dtype, it gives
    // the parameter new storage, and the float32 values stay here.
    initial_.push_back(item.value().detach());
  }
}

void Optimizer::bind(const torch::nn::Module& model) {
  const auto named = model.named_parameters();
  DOVETAIL_CHECK(named.size() == names_.size(), "{} parameters became {}", names_.size(),
                 named.size());
  for (size_t i = 0; i < names_.size(); ++i) {
    DOVETAIL_CHECK(named[i].key() == names_[i], "{} became {}", names_[i], named[i].key());
    parameters_.push_back(named[i].value());
  }
  updates_before_.assign(names_.size(), 0);
  make_parts();
  for (Part& part : parts_) {
    const at::Tensor& initial = initial_[part.piece.parameter];
    const auto dtype = comm::sum_dtype(part.weights.scalar_type());
    if (dtype == part.weights.scalar_type())
      part.master = part.weights;
    else if (sharded())
      part.master = range(initial, part.piece)
                        .to(part.weights.device(), dtype, /*non_blocking=*/false, /*copy=*/true);
    else
      part.master = initial.to(part.weights.device());
    part.m = at::zeros_like(part.master);
    part.v = at::zeros_like(part.master);
  }
  initial_.clear();
}

void Optimizer::make_parts() {
  if (!sharded()) {
    for (size_t i = 0; i < parameters_.size(); ++i)
      parts_.push_back({.piece = {.parameter = i, .size = parameters_[i].numel()},
                        .weights = parameters_[i].detach()});
    return;
  }
  const std::vector groups(parameters_.size(), sharding_.group);
  buckets_ = comm::make_buckets(parameters_, groups, sharding_.bucket_bytes);
  for (size_t b = 0; b < buckets_.size(); ++b) {
    int64_t offset = 0;
    for (const comm::Bucket::Piece& piece : buckets_[b].pieces(sharding_.group->rank())) {
      parts_.push_back({.piece = piece,
                        .bucket = b,
                        .offset = offset,
                        .weights = range(parameters_[piece.parameter], piece)});
      offset += piece.size;
    }
  }
}

void Optimizer::set_beginnings(const std::map<std::string, int64_t>& updates_before) {
  for (size_t i = 0; i < names_.size(); ++i) {
    const auto found = updates_before.find(names_[i]);
    updates_before_[i] = found == updates_before.end() ? 0 : found->second;
  }
}

void Optimizer::set_update(std::optional<Numbers> numbers) {
  now_.reset();
  if (!numbers) return;
  now_ = ops::AdamWOptions{.lr = numbers->lr,
                           .beta1 = config_.betas[0],
                           .beta2 = config_.betas[1],
                           .eps = config_.eps,
                           .grad_scale = numbers->grad_scale,
                           .step = ++updates_};
}

void Optimizer::update(const comm::GradientReducer& gradients) {
  for (const std::vector<size_t>& some : updated_together()) update_some(some, gradients);
  if (sharded() && now_) gather_weights();
}

std::vector<std::vector<size_t>> Optimizer::updated_together() const {
  int64_t elements = 0;
  for (const Part& part : parts_) elements += part.piece.size;
  // Threads share the work best in one call. A plan needs all operands of an operation in memory at
  // once. So a recorded step has one operation per large parameter, and one per group of small
  // ones.
  constexpr int64_t kParts = 32, kMost = 1 << 16;
  const int64_t most = operations_are_recorded() ? std::min(elements / kParts, kMost) : elements;
  std::map<int64_t, std::vector<size_t>> by_beginning;  // an operation has one t
  for (size_t i = 0; i < parts_.size(); ++i)
    by_beginning[updates_before_[parts_[i].piece.parameter]].push_back(i);
  std::vector<std::vector<size_t>> out;
  for (const auto& [updates_before, some] : by_beginning) {
    std::vector<size_t> small;
    int64_t together = 0;
    for (const size_t i : some) {
      const int64_t count = parts_[i].piece.size;
      if (count >= most) {
        out.push_back({i});
        continue;
      }
      if (together + count > most) {
        out.push_back(std::exchange(small, {}));
        together = 0;
      }
      small.push_back(i);
      together += count;
    }
    if (!small.empty()) out.push_back(std::move(small));
  }
  return out;
}

void Optimizer::update_some(const std::vector<size_t>& which,
                            const comm::GradientReducer& gradients) {
  Operands of;
  std::vector<double> decay;
  for (const size_t i : which) {
    const Part& part = parts_[i];
    of.reads.push_back(sharded()
                           ? gradients.share(part.bucket).narrow(0, part.offset, part.piece.size)
                           : gradients.gradient(part.piece.parameter));
    for (const at::Tensor& tensor :
         {part.master, part.m, part.v, part.has_master() ? part.weights : at::Tensor()})
      of.changes.push_back(tensor);
    // Matrices (Linear and embedding weights) decay; vectors (norms, biases) do not (Brown et al.
    // 2020, and nanoGPT).
    decay.push_back(parameters_[part.piece.parameter].dim() >= 2 ? config_.weight_decay : 0.0);
  }
  const int64_t updates_before = updates_before_[parts_[which.front()].piece.parameter];
  operation("dovetail::adamw", std::move(of), [this, decay, updates_before](const Operands& given) {
    std::vector<ops::AdamWTensor> tensors(decay.size());
    for (size_t i = 0; i < tensors.size(); ++i)
      tensors[i] = {.parameter = given.changes[4 * i],
                    .gradient = given.reads[i],
                    .m = given.changes[4 * i + 1],
                    .v = given.changes[4 * i + 2],
                    .compute_copy = given.changes[4 * i + 3],
                    .weight_decay = decay[i]};
    if (!now_) return std::vector<at::Tensor>();
    ops::AdamWOptions options = *now_;
    options.step -= updates_before;
    ops::adamw_step(tensors, options);
    return std::vector<at::Tensor>();
  });
}

std::vector<at::Tensor> Optimizer::bytes_of_share(const comm::Bucket& bucket, int rank) const {
  std::vector<at::Tensor> out;
  for (const comm::Bucket::Piece& piece : bucket.pieces(rank))
    out.push_back(range(parameters_[piece.parameter], piece).view(at::kByte));
  return out;
}

void Optimizer::gather_weights() {
  const TraceSpan span("gather weights");
  const c10::NoGradGuard no_grad;
  comm::Group& group = *sharding_.group;
  for (const comm::Bucket& bucket : buckets_) {
    // Copies bytes, because a bucket may mix float32 norms with bfloat16 matrices.
    std::vector<std::vector<at::Tensor>> shares;
    int64_t longest = 0;
    for (int rank = 0; rank < group.size(); ++rank) {
      shares.push_back(bytes_of_share(bucket, rank));
      int64_t bytes = 0;
      for (const at::Tensor& piece : shares.back()) bytes += piece.numel();
      longest = std::max(longest, bytes);
    }
    const auto own = static_cast<size_t>(group.rank());
    const auto copy = [](const std::vector<at::Tensor>& pieces, const at::Tensor& flat,
                         auto&& copy_piece) {
      int64_t offset = 0;
      for (const at::Tensor& piece : pieces) {
        copy_piece(piece, flat.narrow(0, offset, piece.numel()));
        offset += piece.numel();
      }
    };
    const at::Tensor mine =
        at::zeros({longest}, parameters_.front().options().dtype(at::kByte).requires_grad(false));
    copy(shares[own], mine,
         [](const at::Tensor& piece, const at::Tensor& place) { place.copy_(piece); });
    const std::vector<at::Tensor> all = group.all_gather(mine);
    for (size_t rank = 0; rank < all.size(); ++rank)
      if (rank != own)
        copy(shares[rank], all[rank],
             [](const at::Tensor& piece, const at::Tensor& place) { piece.copy_(place); });
  }
}

std::vector<int64_t> Optimizer::sizes_on_ranks(size_t parameter) const {
  const auto bucket = std::ranges::find_if(buckets_, [&](const comm::Bucket& b) {
    return std::ranges::find(b.parameters, parameter) != b.parameters.end();
  });
  std::vector<int64_t> sizes(static_cast<size_t>(sharding_.group->size()), 0);
  for (size_t rank = 0; rank < sizes.size(); ++rank)
    for (const comm::Bucket::Piece& piece : bucket->pieces(static_cast<int>(rank)))
      if (piece.parameter == parameter) sizes[rank] = piece.size;
  return sizes;
}

const Optimizer::Part* Optimizer::part_of(size_t parameter) const {
  const auto found =
      std::ranges::find(parts_, parameter, [](const Part& part) { return part.piece.parameter; });
  return found == parts_.end() ? nullptr : &*found;
}

void Optimizer::gather(const comm::Bucket& bucket, at::Tensor Part::* which,
                       const std::string& prefix, const io::TensorOwners& owners,
                       std::map<std::string, at::Tensor>& whole) const {
  std::vector<comm::Pieces> tensors;
  std::vector<size_t> gathered;
  for (const size_t i : bucket.parameters) {
    if (which == &Part::master && !has_master(i)) continue;
    const Part* part = part_of(i);
    tensors.push_back({.sizes = sizes_on_ranks(i),
                       .owner = owners.of(prefix + names_[i]),
                       .mine = part == nullptr ? at::Tensor() : (part->*which).cpu()});
    gathered.push_back(i);
  }
  if (tensors.empty()) return;
  const auto dtype = comm::sum_dtype(parameters_[gathered.front()].scalar_type());
  const auto found = comm::gather_pieces(*sharding_.group, tensors, at::dtype(dtype));
  for (size_t k = 0; k < found.size(); ++k)
    if (found[k].defined())
      whole[prefix + names_[gathered[k]]] = found[k].view(parameters_[gathered[k]].sizes());
}

std::vector<std::pair<std::string, at::Tensor>> Optimizer::state() const {
  std::vector<std::pair<std::string, at::Tensor>> out;
  for (const Part& part : parts_) {
    const std::string& name = names_[part.piece.parameter];
    if (part.has_master()) out.emplace_back("master." + name, part.master);
    out.emplace_back("optimizer.m." + name, part.m);
    out.emplace_back("optimizer.v." + name, part.v);
  }
  return out;
}

std::map<std::string, at::Tensor> Optimizer::tensors() const {
  DOVETAIL_CHECK(!sharded(), "tensors of sharded state, which `gathered` makes whole");
  std::map<std::string, at::Tensor> result;
  for (const Part& part : parts_) {
    const size_t i = part.piece.parameter;
    result["model." + names_[i]] = has_master(i) ? part.master : parameters_[i].detach();
    result["optimizer.m." + names_[i]] = part.m;
    result["optimizer.v." + names_[i]] = part.v;
  }
  return result;
}

std::vector<io::CheckpointTensor> Optimizer::sharded_tensors() const {
  std::vector<io::CheckpointTensor> list;
  for (size_t i = 0; i < names_.size(); ++i) {
    const at::Tensor& like = parameters_[i];
    std::vector<int> holders;
    const std::vector<int64_t> sizes = sizes_on_ranks(i);
    for (size_t rank = 0; rank < sizes.size(); ++rank)
      if (sizes[rank] > 0) holders.push_back(static_cast<int>(rank));
    const auto bytes =
        like.numel() * static_cast<int64_t>(c10::elementSize(comm::sum_dtype(like.scalar_type())));
    // Weights in the dtype of masters are whole on each rank.
    list.push_back({"model." + names_[i], bytes, has_master(i) ? holders : std::vector<int>()});
    list.push_back({"optimizer.m." + names_[i], bytes, holders});
    list.push_back({"optimizer.v." + names_[i], bytes, holders});
  }
  return list;
}

std::map<std::string, at::Tensor> Optimizer::gathered(const io::TensorOwners& owners) const {
  DOVETAIL_CHECK(sharded(), "state that is not sharded needs no gathering");
  const c10::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> whole;
  for (const comm::Bucket& bucket : buckets_) {
    gather(bucket, &Part::master, "model.", owners, whole);
    gather(bucket, &Part::m, "optimizer.m.", owners, whole);
    gather(bucket, &Part::v, "optimizer.v.", owners, whole);
  }
  for (size_t i = 0; i < names_.size(); ++i)
    if (!has_master(i) && owners.of("model." + names_[i]) == sharding_.group->rank())
      whole["model." + names_[i]] = parameters_[i].detach();
  return whole;
}

void Optimizer::check(const std::map<std::string, at::Tensor>& tensors) const {
  std::map<std::string, at::IntArrayRef> own;
  for (size_t i = 0; i < names_.size(); ++i)
    for (const char* kind : {"model.", "optimizer.m.", "optimizer.v."})
      own[kind + names_[i]] = parameters_[i].sizes();
  const auto check = [](bool fits, const std::string& fault) {
    if (!fits)
      throw UserError(fault,
                      "resume with the config of the checkpoint (config.toml of its run), or begin "
                      "a new run with another run.name");
  };
  for (const auto& [name, value] : tensors)
    check(own.contains(name),
          fmt::format("the checkpoint holds a tensor \"{}\" that this model does not have", name));
  const bool moments = has_moments(tensors);
  for (const auto& [name, sizes] : own) {
    const auto found = tensors.find(name);
    if (found == tensors.end() && !moments && name.starts_with("optimizer.")) continue;
    check(found != tensors.end(),
          fmt::format("the checkpoint lacks the tensor \"{}\" of this model", name));
    check(found->second.sizes() == sizes,
          fmt::format("\"{}\" has shape {} in the checkpoint and {} in this model", name,
                      found->second.sizes().vec(), sizes.vec()));
  }
}

void Optimizer::load(const std::map<std::string, at::Tensor>& tensors, int64_t updates) {
  DOVETAIL_CHECK(!sharded(), "load of sharded state, which `scatter` restores");
  check(tensors);
  const c10::NoGradGuard no_grad;
  const bool moments = has_moments(tensors);
  for (Part& part : parts_) {
    const std::string& name = names_[part.piece.parameter];
    part.master.copy_(tensors.at("model." + name));
    if (part.has_master()) part.weights.copy_(part.master);
    if (!moments) continue;
    part.m.copy_(tensors.at("optimizer.m." + name));
    part.v.copy_(tensors.at("optimizer.v." + name));
  }
  updates_ = updates;
}

void Optimizer::scatter(const std::map<std::string, at::Tensor>& tensors, int64_t updates) {
  DOVETAIL_CHECK(sharded(), "scatter of state that is whole");
  comm::Group& group = *sharding_.group;
  comm::on_rank_zero(group, "restoring the checkpoint", [&] { check(tensors); });
  const bool moments = comm::broadcast_json(group, has_moments(tensors)).get<bool>();
  const c10::NoGradGuard no_grad;
  for (size_t i = 0; i < names_.size(); ++i) {
    const at::ScalarType dtype = comm::sum_dtype(parameters_[i].scalar_type());
    const auto of_rank_zero = [&](const std::string& kind, int64_t size_elsewhere) {
      return group.rank() == 0 ? tensors.at(kind + names_[i]).to(at::kCPU, dtype).reshape({-1})
                               : at::empty({size_elsewhere}, dtype);
    };
    const Part* part = part_of(i);
    at::Tensor weights = of_rank_zero("model.", parameters_[i].numel());
    group.broadcast(weights, 0);
    parameters_[i].detach().view({-1}).copy_(weights);
    if (part != nullptr && part->has_master()) part->master.copy_(range(weights, part->piece));
    if (!moments) continue;
    for (const auto& [kind, which] :
         {std::pair("optimizer.m.", &Part::m), std::pair("optimizer.v.", &Part::v)}) {
      const at::Tensor mine =
          comm::scatter_rows(of_rank_zero(kind, 0), sharding_.group, sizes_on_ranks(i), 0);
      if (part != nullptr) (part->*which).copy_(mine);
    }
  }
  updates_ = updates;
}

}  // namespace dovetail::train
