#include "dovetail/train/ranks/expert_parallel.h"

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "dovetail/base/error.h"
#include "dovetail/comm/collective.h"
#include "dovetail/comm/gather_pieces.h"
#include "dovetail/comm/mesh.h"
#include "dovetail/mx/linear.h"

namespace dovetail::train {
namespace {

/// Tensor that every expert of a layer has, such as "optimizer.m.blocks.3.moe.experts." and
/// "up.weight".
struct Family {
  std::string before, parameter;
  std::string name(int64_t expert) const {
    return fmt::format("{}{}.{}", before, expert, parameter);
  }
};

/// Families in `own`. All ranks get the same ones in the same order.
std::vector<Family> families(const std::map<std::string, at::Tensor>& own) {
  std::set<std::pair<std::string, std::string>> found;
  for (const auto& [name, tensor] : own) {
    if (const auto expert = moe::parse_expert_name(name))
      found.emplace(expert->before, expert->rest);
  }
  std::vector<Family> list;
  list.reserve(found.size());
  for (const auto& [before, parameter] : found) list.push_back({before, parameter});
  return list;
}

/// Distribution of a Family over the ranks. Each rank has its holder's experts, and one slice per
/// expert, with the sizes of `like`.
class Spread {
 public:
  Spread(const models::GPT& model, const Family& family,
         const std::map<std::string, at::Tensor>& own)
      : placement_(model.expert_ranks()->placement),
        group_(model.expert_ranks()->group),
        family_(family),
        activation_(model.config().activation),
        like_(own.at(family.name(first(group_->rank())))) {}

  int64_t first(int rank) const { return placement_.first(placement_.holder(rank)); }
  int64_t end(int rank) const { return placement_.first(placement_.holder(rank) + 1); }
  moe::ExpertSlice slice(int rank) const {
    return moe::expert_slice(family_.parameter, like_.sizes(), activation_, placement_, rank);
  }
  /// Number of elements on each rank.
  std::vector<int64_t> sizes() const {
    std::vector<int64_t> out(static_cast<size_t>(placement_.ranks));
    for (int rank = 0; rank < placement_.ranks; ++rank)
      out[static_cast<size_t>(rank)] = (end(rank) - first(rank)) * like_.numel();
    return out;
  }
  const at::Tensor& like() const { return like_; }

  void unflatten(const at::Tensor& flat, std::map<std::string, at::Tensor>& own) const {
    const auto parts = flat.split(like_.numel());
    for (int64_t e = first(group_->rank()); e < end(group_->rank()); ++e)
      own[family_.name(e)] =
          parts[static_cast<size_t>(e - first(group_->rank()))].view(like_.sizes());
  }
  /// Flattens `whole` into the concatenation of all ranks' elements.
  at::Tensor flat_of_whole(const std::map<std::string, at::Tensor>& whole) const {
    std::vector<at::Tensor> parts;
    for (int rank = 0; rank < placement_.ranks; ++rank)
      for (int64_t e = first(rank); e < end(rank); ++e)
        parts.push_back(slice(rank).of(whole.at(family_.name(e)).contiguous()).reshape({-1}));
    return at::cat(parts).to(like_.scalar_type());
  }
  int64_t whole_bytes() const { return static_cast<int64_t>(like_.nbytes()) * placement_.cut; }
  /// Returns for each expert its slices on the ranks, to be gathered at the owner. `first_rank` is
  /// the rank in the world of this group's rank 0. Owners in other groups count as none.
  std::vector<comm::Pieces> pieces(const std::map<std::string, at::Tensor>& own,
                                   const io::TensorOwners& owners, int first_rank) const {
    std::vector<comm::Pieces> list;
    for (int64_t e = 0; e < placement_.experts; ++e) {
      comm::Pieces& expert = list.emplace_back();
      expert.sizes.assign(static_cast<size_t>(placement_.ranks), 0);
      for (const int rank : ranks_of(e)) expert.sizes[static_cast<size_t>(rank)] = like_.numel();
      const int owner = owners.of(family_.name(e)) - first_rank;
      if (owner >= 0 && owner < placement_.ranks) expert.owner = owner;
      const auto found = own.find(family_.name(e));
      if (found != own.end()) expert.mine = found->second;
    }
    return list;
  }
  /// Ranks of the group that hold a slice of an expert, in the order of the slices.
  std::vector<int> ranks_of(int64_t expert) const {
    std::vector<int> ranks(static_cast<size_t>(placement_.cut));
    std::iota(ranks.begin(), ranks.end(), placement_.holder_of(expert) * placement_.cut);
    return ranks;
  }
  /// Puts the slices of an expert, (slices x elements), together.
  at::Tensor whole(const at::Tensor& slices) const {
    if (placement_.cut == 1) return slices.view(like_.sizes());
    const auto parts = slices.split(like_.numel());
    at::Tensor tensor;
    for (int rank = 0; rank < placement_.cut; ++rank) {
      const moe::ExpertSlice part = slice(rank);
      if (!tensor.defined()) tensor = at::empty(part.whole, like_.options());
      at::Tensor there = part.of(tensor);
      there.copy_(parts[static_cast<size_t>(rank)].view(there.sizes()));
    }
    return tensor;
  }

 private:
  const moe::Placement& placement_;
  std::shared_ptr<comm::Group> group_;
  Family family_;
  std::string activation_;
  at::Tensor like_;
};

moe::Placement placement_of(const RunConfig& config) {
  return moe::make_placement(config.model.moe.experts, static_cast<int>(config.parallel.expert),
                             static_cast<int>(config.parallel.expert_tensor),
                             config.model.moe.ffn_width, config.model.bias);
}

/// Throws UserError for keys that have no effect with the other keys.
void check_used(const ParallelSection& parallel) {
  const ParallelSection none{.shard = parallel.shard};
  user_check(parallel.expert > 1 || parallel == none,
             "[parallel] has keys for expert parallelism, but parallel.expert = 1 spreads no "
             "experts. Set it to a number of ranks, or leave out all keys but parallel.shard");
  user_check(parallel.ranks_per_node == 0 || parallel.all_to_all != "linear" || parallel.chooses(),
             "parallel.ranks_per_node = {} does nothing with all_to_all = \"linear\"; leave it out",
             parallel.ranks_per_node);
  user_check(parallel.costs.empty() || parallel.chooses(),
             "parallel.costs = \"{}\" is what \"auto\" goes by, but nothing in [parallel] is auto; "
             "leave it out",
             parallel.costs);
  user_check(
      parallel.choose_every == none.choose_every || parallel.chooses() || parallel.shadow > 0,
      "parallel.choose_every does nothing without shadow or \"auto\"; leave it out");
  if (parallel.r != 0) return;
  const auto refuse = [](bool given, const char* key) {
    user_check(!given,
               "parallel.{} does nothing with parallel.r = 0, where no row moves; leave it out",
               key);
  };
  refuse(parallel.shadow != 0, "shadow");
  refuse(parallel.overlap != none.overlap, "overlap");
  refuse(parallel.all_to_all != none.all_to_all, "all_to_all");
  refuse(parallel.dispatch != none.dispatch, "dispatch");
  refuse(parallel.combine != none.combine, "combine");
}

}  // namespace

void check_parallel(const RunConfig& config) {
  const ParallelSection& parallel = config.parallel;
  check_used(parallel);
  if (parallel.expert == 1) return;
  user_check(config.model.moe.experts > 0,
             "parallel.expert = {} spreads experts over ranks, but the model has none",
             parallel.expert);
  const int cut = placement_of(config).cut;
  user_check(parallel.r <= 0 || cut % parallel.r == 0,
             "parallel.r = {} does not divide the {} ranks that an expert is cut over "
             "(parallel.expert_tensor)",
             parallel.r, cut);
  user_check(!parallel.chooses() || !config.model.moe.pad_to_capacity,
             "\"auto\" in [parallel] chooses by the rows of experts, but model.moe.pad_to_capacity "
             "gives all the same number. Set r, overlap, shadow and all_to_all yourself");
  user_check(parallel.r != 0 || !config.model.moe.pad_to_capacity,
             "model.moe.pad_to_capacity pads rows that move, but with parallel.r = 0 none does; "
             "leave one of them out");
  const int64_t of_node = parallel.ranks_per_node;
  user_check(of_node <= parallel.expert,
             "parallel.ranks_per_node = {} is more than the {} ranks of parallel.expert", of_node,
             parallel.expert);
  if (parallel.all_to_all == "2dh" && (of_node == 1 || of_node == parallel.expert))
    throw UserError(
        fmt::format("parallel.all_to_all = \"2dh\" goes inside nodes and then between them, but "
                    "the {} ranks of parallel.expert are {}",
                    parallel.expert, of_node == 1 ? "on nodes of one rank" : "one node"),
        "use all_to_all = \"linear\", which does the same there, or give ranks_per_node");
  user_check(parallel.shadow < config.model.moe.experts,
             "parallel.shadow = {} of {} experts; use r = 0 to gather all", parallel.shadow,
             config.model.moe.experts);
  user_check(!parallel.chooses() || parallel.shadow <= 0 ||
                 std::has_single_bit(static_cast<uint64_t>(parallel.shadow)),
             "parallel.shadow = {} beside \"auto\" must be \"auto\", 0 or a power of two",
             parallel.shadow);
}

void check_parallel(const RunConfig& config, const Quantization& quantization) {
  const ParallelSection& parallel = config.parallel;
  if (parallel.expert == 1) return;
  for (const auto& [name, history] : quantization.tensors()) {
    if (moe::parse_expert_name(name))
      throw UserError(fmt::format("parallel.expert = {}: delayed scaling keeps a history of each "
                                  "Linear, {} for one, that is not shared between ranks",
                                  parallel.expert, name),
                      "use a recipe without delayed scaling for the experts");
  }
  const bool modules = std::ranges::any_of(quantization.layers(), [](const auto& linear) {
    return moe::parse_expert_name(linear->options().name).has_value();
  });
  const int cut = placement_of(config).cut;
  const bool gathers =
      (parallel.r != ParallelSection::kAuto && parallel.r != cut) || parallel.shadow > 0;
  if (modules && gathers)
    throw UserError(fmt::format("parallel.r = {} and parallel.shadow = {} gather experts, which "
                                "are quantized where they are and cannot move",
                                parallel.r, parallel.shadow),
                    fmt::format("set parallel.r = {} and parallel.shadow = 0, or give experts the "
                                "recipe bf16 (precision.override)",
                                cut));
}

ExpertParallel::ExpertParallel(const RunConfig& config, std::shared_ptr<comm::Group> world)
    : world_(std::move(world)) {
  const ParallelSection& parallel = config.parallel;
  if (parallel.expert == 1) return;
  const auto ranks = static_cast<int>(parallel.expert);
  if (world_->size() % ranks != 0)
    throw UserError(fmt::format("parallel.expert = {} does not divide the {} ranks of the job",
                                ranks, world_->size()),
                    fmt::format("launch a multiple of {} ranks (dovetail launch -n {} train ...)",
                                ranks, ranks));
  const comm::Mesh mesh(world_, {{"data", world_->size() / ranks}, {"expert", ranks}});
  replicas_ = mesh.group("data");
  auto made = std::make_shared<moe::ExpertRanks>();
  made->placement = placement_of(config);
  made->group = mesh.group("expert");
  made->dispatch.forward = comm::parse_payload(parallel.dispatch);
  made->combine.forward = comm::parse_payload(parallel.combine);
  const auto of_node = static_cast<int>(parallel.ranks_per_node);
  if (parallel.all_to_all == "2dh" ||
      (parallel.all_to_all == "auto" && of_node < ranks && ranks % of_node == 0))
    made->nodes = comm::split_by_node(*made->group, of_node);
  ranks_ = std::move(made);
}

bool ExpertParallel::is_spread(const std::string& name) const {
  return ranks_ && moe::parse_expert_name(name);
}

std::vector<std::shared_ptr<comm::Group>> ExpertParallel::gradient_groups(
    const models::GPT& model) const {
  std::vector<std::shared_ptr<comm::Group>> groups;
  for (const auto& item : model.named_parameters())
    groups.push_back(is_spread(item.key()) ? replicas_ : world_);
  return groups;
}

nlohmann::ordered_json ExpertParallel::joined(nlohmann::ordered_json quantization) const {
  if (!ranks_) return quantization;
  const auto of_ranks = comm::gather_json(*ranks_->group, quantization);
  auto& tensors = quantization["tensors"];
  for (int rank = 0; rank < ranks_->placement.ranks; ++rank) {
    // Slices of one expert have similar statistics, so the first one represents all.
    if (rank == ranks_->group->rank() || ranks_->placement.slice(rank) != 0) continue;
    for (const auto& tensor : of_ranks[static_cast<size_t>(rank)]["tensors"])
      if (is_spread(tensor["layer"].get<std::string>())) tensors.push_back(tensor);
  }
  return quantization;
}

std::vector<io::CheckpointTensor> ExpertParallel::stored(
    const models::GPT& model, const std::map<std::string, at::Tensor>& own) const {
  std::map<std::string, at::Tensor> dense = own;
  std::erase_if(dense, [&](const auto& item) { return is_spread(item.first); });
  std::vector<io::CheckpointTensor> list = io::held_by_all(dense);
  if (!ranks_) return list;
  const int in_group = ranks_->placement.ranks;
  for (const Family& family : families(own)) {
    const Spread spread(model, family, own);
    for (int64_t e = 0; e < ranks_->placement.experts; ++e) {
      std::vector<int> holders;
      for (int first = 0; first < world_->size(); first += in_group)
        for (const int rank : spread.ranks_of(e)) holders.push_back(first + rank);
      list.push_back({family.name(e), spread.whole_bytes(), std::move(holders)});
    }
  }
  return list;
}

std::map<std::string, at::Tensor> ExpertParallel::gathered(
    const models::GPT& model, const std::map<std::string, at::Tensor>& own,
    const io::TensorOwners& owners) const {
  std::map<std::string, at::Tensor> dense = own;
  std::erase_if(dense, [&](const auto& item) { return is_spread(item.first); });
  std::map<std::string, at::Tensor> whole = owners.owned_by(world_->rank(), dense);
  if (!ranks_) return whole;
  const at::NoGradGuard no_grad;
  const int first_rank = world_->rank() - ranks_->group->rank();
  for (const Family& family : families(own)) {
    const Spread spread(model, family, own);
    const auto found = comm::gather_pieces(*ranks_->group, spread.pieces(own, owners, first_rank),
                                           spread.like().options());
    for (size_t e = 0; e < found.size(); ++e)
      if (found[e].defined()) whole[family.name(static_cast<int64_t>(e))] = spread.whole(found[e]);
  }
  return whole;
}

std::map<std::string, at::Tensor> ExpertParallel::scattered(
    const models::GPT& model, const std::map<std::string, at::Tensor>& own,
    std::map<std::string, at::Tensor> whole) const {
  if (!ranks_) return whole;
  const at::NoGradGuard no_grad;
  comm::on_rank_zero(*world_, "restoring the checkpoint", [&] {
    for (const Family& family : families(own)) {
      const auto sizes = Spread(model, family, own).slice(0).whole;
      for (int64_t e = 0; e < ranks_->placement.experts; ++e) {
        const auto found = whole.find(family.name(e));
        user_check(found != whole.end(), "the checkpoint lacks the tensor \"{}\" of this model",
                   family.name(e));
        user_check(found->second.sizes() == at::IntArrayRef(sizes),
                   "\"{}\" has shape {} in the checkpoint and {} in this model", family.name(e),
                   found->second.sizes().vec(), sizes);
      }
    }
  });
  std::map<std::string, at::Tensor> parts;
  for (const Family& family : families(own)) {
    const Spread spread(model, family, own);
    const auto sizes = spread.sizes();
    at::Tensor part;
    if (replicas_->rank() == 0) {
      const at::Tensor all = world_->rank() == 0 ? spread.flat_of_whole(whole)
                                                 : at::empty({0}, spread.like().options());
      part = comm::scatter_rows(all, ranks_->group, sizes, 0);
    } else {
      part =
          at::empty({sizes[static_cast<size_t>(ranks_->group->rank())]}, spread.like().options());
    }
    replicas_->broadcast(part, 0);
    spread.unflatten(part, parts);
    for (int64_t e = 0; e < ranks_->placement.experts; ++e) whole.erase(family.name(e));
  }
  parts.merge(whole);
  return parts;
}

}  // namespace dovetail::train
